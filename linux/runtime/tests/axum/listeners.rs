//! Tests of servers on TCP, Unix and TLS listeners, and of what a handler learns about its client.

use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, Path, State};
use axum::handler::HandlerWithoutStateExt;
use axum::http::{StatusCode, Version};
use axum::routing::{get, post};
use bytes::Bytes;
use upshift::axum::{IncomingStream, TlsListener, serve};
use upshift::hyper::https_client_with;
use upshift::io::AsyncReadExt;
use upshift::net::unix::UCred;
use upshift::net::{TcpStream, UnixListener, UnixStream};
use upshift::{Level, Priority, tls};

use crate::app::{
    bytes, certificates, get as fetch, listener, post as post_request, runtimes, spawn, text,
};

async fn peer(ConnectInfo(peer): ConnectInfo<SocketAddr>) -> String {
    peer.to_string()
}

#[test]
fn routes_with_state_are_served() {
    for runtime in runtimes() {
        runtime.block_on(async {
            let item = |State(shop): State<&'static str>, Path(id): Path<u32>| async move {
                format!("{shop} {id}")
            };
            let app = Router::new()
                .route("/items/{id}", get(item))
                .with_state("lamp");
            let (listener, port) = listener();
            let server = serve(listener, app);
            assert_eq!(server.local_addr().unwrap().port(), port);
            spawn(server);
            assert_eq!(text(fetch(port, "/items/7").await).await, "lamp 7");
            let missing = fetch(port, "/nothing").await;
            assert_eq!(missing.status(), StatusCode::NOT_FOUND);
        });
    }
}

#[test]
fn every_kind_of_axum_service_is_served() {
    let runtime = upshift::Runtime::builder().vcpus(1).build().unwrap();
    async fn hello() -> &'static str {
        "hello"
    }
    runtime.block_on(async {
        let app = Router::new().route("/", get(hello));
        let mut ports = Vec::new();
        let mut next_listener = || {
            let (listener, port) = listener();
            ports.push(port);
            listener
        };
        spawn(serve(next_listener(), app.clone()));
        spawn(serve(next_listener(), app.into_make_service()));
        spawn(serve(next_listener(), get(hello)));
        spawn(serve(next_listener(), hello.into_service()));
        spawn(serve(next_listener(), hello.into_make_service()));
        for port in ports {
            assert_eq!(text(fetch(port, "/").await).await, "hello");
        }
    });
}

#[test]
fn a_handler_learns_the_address_of_its_client() {
    for runtime in runtimes() {
        runtime.block_on(async {
            let (listener, port) = listener();
            let app = Router::new().route("/", get(peer));
            let app = app.into_make_service_with_connect_info::<SocketAddr>();
            spawn(serve(listener, app));
            let mut client = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let client_address = client.local_addr().unwrap().to_string();
            let head = "GET / HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n";
            client.write_all(head).await.0.unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            assert!(answer.ends_with(&client_address), "{answer}");
        });
    }
}

#[derive(Clone)]
struct Process(UCred);

impl Connected<IncomingStream<'_, UnixListener>> for Process {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Process {
        Process(stream.io().peer_cred().unwrap())
    }
}

#[test]
fn a_handler_behind_a_unix_socket_learns_the_process_of_its_client() {
    async fn process(ConnectInfo(process): ConnectInfo<Process>) -> String {
        format!("{:?}", process.0.pid())
    }
    let folder = tempfile::tempdir().unwrap();
    for (number, runtime) in runtimes().into_iter().enumerate() {
        runtime.block_on(async {
            let path = folder.path().join(number.to_string());
            let listener = UnixListener::bind(&path).unwrap();
            let app = Router::new().route("/", get(process));
            let app = app.into_make_service_with_connect_info::<Process>();
            spawn(serve(listener, app));
            let mut client = UnixStream::connect(&path).await.unwrap();
            let head = "GET / HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n";
            client.write_all(head).await.0.unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            let pid = format!("{:?}", Some(std::process::id() as i32));
            assert!(answer.ends_with(&pid), "{answer}");
        });
    }
}

#[test]
fn tls_is_served_with_both_versions_of_http() {
    const BODY_LENGTH: usize = 2 << 20;
    let (server, client) = certificates();
    for runtime in runtimes() {
        runtime.block_on(async {
            let (listener, port) = listener();
            let listener = TlsListener::new(listener, server.clone());
            let echo = |ConnectInfo(peer): ConnectInfo<SocketAddr>, body: Body| async move {
                assert!(peer.ip().is_loopback());
                body
            };
            let app = Router::new().route("/echo", post(echo));
            let app = app.into_make_service_with_connect_info::<SocketAddr>();
            spawn(serve(listener, app).levels(|_| Level::at::<40>()));
            let https = https_client_with(client.clone(), Priority::Inherit);
            let long: Bytes = (0..=255).cycle().take(BODY_LENGTH).collect();
            let uri = format!("https://localhost:{port}/echo");
            let answer = https.request(post_request(&uri, long.clone())).await.unwrap();
            assert_eq!(answer.version(), Version::HTTP_2);
            assert!(bytes(answer).await == long);

            // This client sends no ALPN extension, so the server answers with HTTP/1.1.
            let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let connector = tls::Connector::new(client.clone());
            let mut stream = connector.connect("localhost", stream).await.unwrap();
            let head = format!(
                "POST /echo HTTP/1.1\r\nhost: here\r\nconnection: close\r\ncontent-length: {BODY_LENGTH}\r\n\r\n"
            );
            use upshift::io::AsyncWriteExt;
            stream.write_all(head.as_bytes()).await.unwrap();
            let (mut reader, mut writer) = upshift::io::split(stream);
            let sent = long.clone();
            let sender = async move { writer.write_all(&sent).await.unwrap() };
            upshift::spawn(sender, Priority::Inherit).detach();
            let mut answer = Vec::new();
            reader.read_to_end(&mut answer).await.unwrap();
            assert!(answer.starts_with(b"HTTP/1.1 200"));
            assert!(answer.ends_with(&long));
        });
    }
}

/// Each connection performs its handshake in its own coroutine, not in the coroutine that accepts.
#[test]
fn a_client_that_performs_no_handshake_delays_no_other_client() {
    let (server, client) = certificates();
    for runtime in runtimes() {
        runtime.block_on(async {
            let (listener, port) = listener();
            let app = Router::new().route("/", get(|| async { "hello" }));
            spawn(serve(TlsListener::new(listener, server.clone()), app));
            let silent = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let https = https_client_with::<axum::body::Body>(client.clone(), Priority::Inherit);
            let uri = format!("https://localhost:{port}/").parse().unwrap();
            assert_eq!(text(https.get(uri).await.unwrap()).await, "hello");
            drop(silent);
        });
    }
}
