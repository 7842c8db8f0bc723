//! Helpers for the tests: runtimes, listeners, certificates and requests.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Request, Response};
use upshift::net::TcpListener;
use upshift::tls::{self, rustls};
use upshift::{Driver, Preemption, Runtime};

/// Returns a runtime for each driver and form of preemption.
pub(crate) fn runtimes() -> Vec<Runtime> {
    let mut runtimes = Vec::new();
    for driver in [Driver::Auto, Driver::Readiness] {
        for preemption in [Preemption::Off, Preemption::Preferred] {
            let builder = Runtime::builder().driver(driver).preemption(preemption);
            runtimes.push(builder.vcpus(2).build().unwrap());
        }
    }
    runtimes
}

pub(crate) fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// Spawns a server that runs until its runtime is dropped.
pub(crate) fn spawn(server: impl IntoFuture<IntoFuture: Future + Send + 'static>) {
    let server = server.into_future();
    let server_task = async { _ = server.await };
    upshift::spawn(server_task, upshift::Priority::Inherit).detach();
}

/// Returns the configurations of a server named `localhost` and of a client that trusts it.
pub(crate) fn certificates() -> (rustls::ServerConfig, rustls::ClientConfig) {
    let names = ["localhost".to_owned()];
    let certificate = rcgen::generate_simple_self_signed(names).unwrap();
    let (chain, key) = (
        certificate.cert.pem(),
        certificate.signing_key.serialize_pem(),
    );
    let server = tls::server_config(chain.as_bytes(), key.as_bytes()).unwrap();
    (server, tls::client_config(chain.as_bytes()).unwrap())
}

pub(crate) async fn get(port: u16, path: &str) -> Response<Incoming> {
    let client = upshift::hyper::client::<Full<Bytes>>();
    let uri = format!("http://127.0.0.1:{port}{path}").parse().unwrap();
    client.get(uri).await.unwrap()
}

pub(crate) fn post(uri: &str, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    Request::post(uri).body(Full::new(body.into())).unwrap()
}

pub(crate) async fn bytes(response: Response<Incoming>) -> Bytes {
    response.into_body().collect().await.unwrap().to_bytes()
}

pub(crate) async fn text(response: Response<Incoming>) -> String {
    String::from_utf8(bytes(response).await.into()).unwrap()
}
