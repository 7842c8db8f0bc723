//! Tests of requests over TLS, to a server whose certificate is signed by a root that the test
//! creates.

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response, Version};
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use upshift::hyper::{Clock, Spawner, https_client, https_client_with};
use upshift::net::TcpListener;
use upshift::tls::{self, Acceptor};
use upshift::{Level, Priority, Runtime};

/// Returns a root certificate, and the certificate and the key of a server that the root has
/// signed.
fn create_chain() -> (String, String, String) {
    let root_key = KeyPair::generate().unwrap();
    let mut root = CertificateParams::new(Vec::new()).unwrap();
    root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root_certificate = root.self_signed(&root_key).unwrap();
    let issuer = Issuer::new(root, root_key);
    let key = KeyPair::generate().unwrap();
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let cert = CertificateParams::new(names).unwrap();
    let cert = cert.signed_by(&key, &issuer).unwrap();
    (root_certificate.pem(), cert.pem(), key.serialize_pem())
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let version = format!("{:?} {}", request.version(), request.uri().path());
    Ok(Response::new(version.into()))
}

/// Starts a server that offers `protocols` (ALPN). Returns its port.
fn serve(chain: &str, key: &str, protocols: &[&str]) -> u16 {
    let mut config = tls::server_config(chain.as_bytes(), key.as_bytes()).unwrap();
    config.alpn_protocols = protocols
        .iter()
        .map(|name| name.as_bytes().to_vec())
        .collect();
    let acceptor = Acceptor::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let accepting = async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            let connection = async move {
                // The handshake fails if the client does not trust the server.
                let Ok(stream) = acceptor.accept(stream).await else {
                    return;
                };
                let is_http2 = stream.alpn_protocol() == Some(b"h2");
                let io = TokioIo::new(stream);
                if is_http2 {
                    let mut builder = http2::Builder::new(Spawner::default());
                    let _ = builder
                        .timer(Clock)
                        .serve_connection(io, service_fn(answer))
                        .await;
                } else {
                    let builder = http1::Builder::new();
                    let _ = builder.serve_connection(io, service_fn(answer)).await;
                }
            };
            upshift::spawn(connection, Priority::Inherit).detach();
        }
    };
    upshift::spawn(accepting, Priority::Inherit).detach();
    port
}

fn block_on(test: impl Future<Output = ()>) {
    let runtime = Runtime::builder().vcpus(1).build().unwrap();
    runtime.block_on(test);
}

#[test]
fn the_server_chooses_the_version_of_http() {
    block_on(async {
        let (root, cert, key) = create_chain();
        let config = tls::client_config(root.as_bytes()).unwrap();
        let client = https_client_with::<Empty<Bytes>>(config, Level::at::<4>());
        for (protocols, version) in [
            (&["h2", "http/1.1"][..], Version::HTTP_2),
            (&["http/1.1"], Version::HTTP_11),
        ] {
            let port = serve(&cert, &key, protocols);
            for host in ["localhost", "127.0.0.1"] {
                let uri = format!("https://{host}:{port}/path").parse().unwrap();
                let response = client.get(uri).await.unwrap();
                assert_eq!(response.version(), version);
                let body = response.into_body().collect().await.unwrap().to_bytes();
                assert_eq!(body, format!("{version:?} /path"));
            }
        }
    });
}

#[test]
fn a_single_connection_carries_requests_of_all_levels() {
    block_on(async {
        let (root, cert, key) = create_chain();
        let port = serve(&cert, &key, &["h2"]);
        let config = tls::client_config(root.as_bytes()).unwrap();
        let client = https_client_with::<Empty<Bytes>>(config, Level::at::<4>());
        let uri: hyper::Uri = format!("https://localhost:{port}/").parse().unwrap();
        let requests = [50, 8, 30].map(|level| {
            let (client, uri) = (client.clone(), uri.clone());
            let request = async move { client.get(uri).await.unwrap().status() };
            upshift::spawn(request, Level::new(level).unwrap())
        });
        for request in requests {
            assert_eq!(request.await.unwrap(), 200);
        }
    });
}

#[test]
fn an_untrusted_server_gets_no_request() {
    block_on(async {
        let (_, cert, key) = create_chain();
        let port = serve(&cert, &key, &["h2"]);
        // The system's roots have not signed the certificate. If there are no roots, the error says
        // so.
        match https_client::<Empty<Bytes>>(Level::at::<4>()) {
            Ok(client) => {
                let uri = format!("https://localhost:{port}/").parse().unwrap();
                let error = client.get(uri).await.unwrap_err();
                assert!(error.is_connect(), "{error:?}");
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    });
}
