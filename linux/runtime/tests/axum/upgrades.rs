//! Tests of server-sent events, and of axum's web sockets with a client of tungstenite.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::routing::{any, get};
use futures_util::stream;
use http_body_util::BodyExt;
use tungstenite::Message as Sent;
use upshift::Level;
use upshift::axum::{TlsListener, serve};
use upshift::tls::rustls::{ClientConnection, StreamOwned};

use crate::app::{certificates, get as fetch, listener, runtimes, spawn};

/// Length of a message that exceeds the buffers of both sockets, in bytes.
const LONG: usize = 4 << 20;

async fn echo(mut socket: WebSocket) {
    while let Some(Ok(message)) = socket.recv().await {
        if let Message::Close(_) = message {
            return;
        }
        if socket.send(message).await.is_err() {
            return;
        }
    }
}

fn app() -> Router {
    let upgrade = |upgrade: WebSocketUpgrade| async { upgrade.on_upgrade(echo) };
    Router::new().route("/ws", any(upgrade))
}

fn run_client(stream: impl Read + Write) {
    let (mut socket, _) = tungstenite::client("ws://localhost/ws", stream).unwrap();
    for number in 0..100 {
        socket.send(Sent::text(number.to_string())).unwrap();
        assert_eq!(socket.read().unwrap(), Sent::text(number.to_string()));
    }
    let long: Vec<u8> = (0..=255).cycle().take(LONG).collect();
    socket.send(Sent::binary(long.clone())).unwrap();
    assert!(socket.read().unwrap().into_data() == long);
    socket.close(None).unwrap();
    while socket.read().is_ok() {}
}

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let limit = Some(Duration::from_secs(60));
    stream.set_read_timeout(limit).unwrap();
    stream
}

#[test]
fn web_sockets_are_served() {
    for runtime in runtimes() {
        runtime.block_on(async {
            let (listener, port) = listener();
            spawn(serve(listener, app()).levels(|_| Level::at::<16>()));
            let client = upshift::spawn_blocking(move || run_client(connect(port)));
            client.await.unwrap();
        });
    }
}

#[test]
fn web_sockets_are_served_over_tls() {
    let (server, client) = certificates();
    for runtime in runtimes() {
        runtime.block_on(async {
            let (listener, port) = listener();
            let listener = TlsListener::new(listener, server.clone());
            spawn(serve(listener, app()).levels(|_| Level::at::<16>()));
            let client = Arc::new(client.clone());
            let client_task = move || {
                let name = "localhost".try_into().unwrap();
                let tls = ClientConnection::new(client, name).unwrap();
                run_client(StreamOwned::new(tls, connect(port)));
            };
            upshift::spawn_blocking(client_task).await.unwrap();
        });
    }
}

/// The server sends the next event when the test requests it. axum's keep-alive uses a timer of
/// tokio.
#[test]
fn events_are_sent_one_by_one() {
    const EVENTS: u32 = 5;
    for runtime in runtimes() {
        runtime.block_on(async {
            let (request_sender, request_receiver) = upshift::sync::mpsc::channel(1);
            let request_receiver = Arc::new(upshift::sync::Mutex::new(request_receiver));
            let events = move || {
                let request_receiver = request_receiver.clone();
                let events = stream::unfold(0, move |number| {
                    let request_receiver = request_receiver.clone();
                    async move {
                        request_receiver.lock().await.recv().await?;
                        let event = Event::default().data(number.to_string());
                        Some((Ok::<_, Infallible>(event), number + 1))
                    }
                });
                async { Sse::new(events).keep_alive(KeepAlive::default()) }
            };
            let (listener, port) = listener();
            spawn(serve(listener, Router::new().route("/", get(events))));
            let mut body = fetch(port, "/").await.into_body();
            for number in 0..EVENTS {
                request_sender.send(()).await.unwrap();
                let frame = body.frame().await.unwrap().unwrap();
                let text = frame.into_data().unwrap();
                assert_eq!(&text[..], format!("data: {number}\n\n").as_bytes());
            }
            drop(request_sender);
            assert!(body.frame().await.is_none());
        });
    }
}
