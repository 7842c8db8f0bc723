//! Tests of hyper-util's client with the runtime's connector.

use axum::body::Bytes;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::{Method, Request, Response, Version};
use hyper_util::client::legacy::Client;
use upshift::hyper::{Clock, Connector, Spawner};

use crate::app::TestServer;

/// Creates a client that speaks HTTP/2 with prior knowledge.
pub(crate) fn http2_client() -> Client<Connector, Empty<Bytes>> {
    Client::builder(Spawner::default())
        .timer(Clock)
        .http2_only(true)
        .build(Connector)
}

pub(crate) async fn body_text(response: Response<Incoming>) -> String {
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

#[test]
fn a_client_reuses_its_connection() {
    let server = TestServer::start(1, |server| server);
    let runtime = upshift::Runtime::builder().vcpus(1).build().unwrap();
    runtime.block_on(async {
        let client = upshift::hyper::client::<Full<Bytes>>();
        for (a, b) in [(1, 2), (30, 12)] {
            let request = Request::builder()
                .method(Method::POST)
                .uri(format!("http://{}/add", server.address))
                .header("content-type", "application/json")
                .body(Full::from(format!(r#"{{"a":{a},"b":{b}}}"#)))
                .unwrap();
            let response = client.request(request).await.unwrap();
            assert_eq!(body_text(response).await, (a + b).to_string());
        }
    });
}

#[test]
fn host_names_are_resolved() {
    let server = TestServer::start(1, |server| server);
    let runtime = upshift::Runtime::builder().vcpus(1).build().unwrap();
    runtime.block_on(async {
        let client = upshift::hyper::client::<Empty<Bytes>>();
        let port = server.address.port();
        let uri = format!("http://localhost:{port}/").parse().unwrap();
        assert_eq!(body_text(client.get(uri).await.unwrap()).await, "hello");
        // The connector does not support `https`.
        let error = client.get("https://127.0.0.1:1/".parse().unwrap()).await;
        assert!(format!("{:?}", error.unwrap_err()).contains("only http"));
    });
}

#[test]
fn a_hundred_streams_share_an_http2_connection() {
    let server = TestServer::start(2, |server| server);
    let address = server.address;
    let runtime = upshift::Runtime::builder().vcpus(1).build().unwrap();
    runtime.block_on(async {
        let client = http2_client();
        let requests: Vec<_> = (0..100)
            .map(|id| {
                let client = client.clone();
                upshift::spawn(
                    async move {
                        let uri = format!("http://{address}/items/{id}").parse().unwrap();
                        let response = client.get(uri).await.unwrap();
                        assert_eq!(response.version(), Version::HTTP_2);
                        assert_eq!(body_text(response).await, format!("item {id}"));
                    },
                    upshift::Priority::Inherit,
                )
            })
            .collect();
        for request in requests {
            request.await.unwrap();
        }
        let uri = format!("http://{address}/zeros?bytes=2000000");
        let response = client.get(uri.parse().unwrap()).await.unwrap();
        assert_eq!(body_text(response).await.len(), 2_000_000);
    });
}
