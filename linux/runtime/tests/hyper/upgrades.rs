//! Tests of connections that are upgraded from HTTP and continue in a task of tokio, as axum's web
//! sockets do.
#![cfg(feature = "tokio-rt")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use upshift::hyper::Server;
use upshift::net::TcpListener;
use upshift::{Driver, Level, Preemption, Priority, Runtime};

/// Number of bytes that exceeds the buffers of both sockets.
const LONG: usize = 24 << 20;

fn runtimes() -> Vec<Runtime> {
    let mut runtimes = Vec::new();
    for driver in [Driver::Auto, Driver::Readiness] {
        for preemption in [Preemption::Off, Preemption::Preferred] {
            let builder = Runtime::builder().driver(driver).preemption(preemption);
            runtimes.push(builder.vcpus(2).build().unwrap());
        }
    }
    runtimes
}

/// Upgrades the connection and echoes its bytes until the client closes it.
async fn echo(mut request: Request<Body>) -> Response<Body> {
    tokio::spawn(async move {
        let upgraded = hyper::upgrade::on(&mut request).await.unwrap();
        let (mut reader, mut writer) = tokio::io::split(TokioIo::new(upgraded));
        let mut bytes = vec![0; 256 << 10];
        loop {
            let count = reader.read(&mut bytes).await.unwrap_or(0);
            if count == 0 || writer.write_all(&bytes[..count]).await.is_err() {
                return;
            }
        }
    });
    let answer = Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header("connection", "upgrade")
        .header("upgrade", "echo");
    answer.body(Body::empty()).unwrap()
}

fn serve() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server::new(listener)
        .levels(|_| Level::at::<16>())
        .run(Router::new().fallback(echo));
    upshift::spawn(server, Priority::Inherit).detach();
    address
}

fn connect_and_upgrade(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let head = "GET / HTTP/1.1\r\nHost: here\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut response_head = Vec::new();
    while !response_head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        response_head.push(byte[0]);
    }
    assert!(response_head.starts_with(b"HTTP/1.1 101"));
    stream
}

#[test]
fn an_upgraded_connection_continues_in_a_tokio_task() {
    for runtime in runtimes() {
        let client = runtime.block_on(async {
            let address = serve();
            upshift::spawn_blocking(move || {
                let mut stream = connect_and_upgrade(address);
                for n in 0..100_u8 {
                    stream.write_all(&[n]).unwrap();
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    assert_eq!(byte[0], n);
                }
                // The client reads late, so the buffers of both directions fill.
                let mut sender = stream.try_clone().unwrap();
                let writer = thread::spawn(move || {
                    let piece: Vec<u8> = (0..=255).cycle().take(LONG).collect();
                    sender.write_all(&piece).unwrap();
                });
                thread::sleep(Duration::from_millis(100));
                let mut echoed = vec![0; LONG];
                stream.read_exact(&mut echoed).unwrap();
                writer.join().unwrap();
                assert!(echoed.iter().enumerate().all(|(n, byte)| *byte == n as u8));
                stream
            })
            .await
            .unwrap()
        });
        // The runtime is dropped before the connection.
        drop(runtime);
        drop(client);
    }
}

/// The handler continues in a task of tokio, as behind axum's `on_upgrade`.
#[test]
fn a_call_that_needs_the_ring_fails_in_a_tokio_task_and_names_the_alternative() {
    async fn answer(mut request: Request<Body>) -> Response<Body> {
        tokio::spawn(async move {
            let upgraded = hyper::upgrade::on(&mut request).await.unwrap();
            let mut stream = TokioIo::new(upgraded);
            assert!(tokio::runtime::Handle::try_current().is_ok());
            let read = upshift::fs::read("/proc/self/stat").await.unwrap_err();
            let connect = upshift::net::TcpStream::connect("127.0.0.1:9")
                .await
                .unwrap_err();
            let messages = format!("{read}\n{connect}\n");
            stream.write_all(messages.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
        });
        let answer = Response::builder()
            .status(StatusCode::SWITCHING_PROTOCOLS)
            .header("connection", "upgrade")
            .header("upgrade", "echo");
        answer.body(Body::empty()).unwrap()
    }
    for runtime in runtimes() {
        let messages = runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let server = Server::new(listener).run(Router::new().fallback(answer));
            upshift::spawn(server, Priority::Inherit).detach();
            let client = move || {
                let mut messages = String::new();
                connect_and_upgrade(address)
                    .read_to_string(&mut messages)
                    .unwrap();
                messages
            };
            upshift::spawn_blocking(client).await.unwrap()
        });
        assert_eq!(messages.lines().count(), 2, "{messages}");
        for line in messages.lines() {
            assert!(
                line.contains("task of tokio's") && line.contains("upshift::spawn"),
                "{line}"
            );
        }
    }
}
