//! Server-sent events, and web sockets of axum with a client of tungstenite.

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

use crate::app::{certificates, get as request, listener, runtimes, spawn};

/// More than the sockets hold.
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

/// Talks to the echo.
fn talk(stream: impl Read + Write) {
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
            let client = upshift::spawn_blocking(move || talk(connect(port)));
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
            let talks = move || {
                let name = "localhost".try_into().unwrap();
                let tls = ClientConnection::new(client, name).unwrap();
                talk(StreamOwned::new(tls, connect(port)));
            };
            upshift::spawn_blocking(talks).await.unwrap();
        });
    }
}

/// Events with pauses, with axum's keep-alive, whose timer is tokio's.
#[test]
fn events_are_sent_one_by_one() {
    const EVENTS: u32 = 5;
    for runtime in runtimes() {
        runtime.block_on(async {
            let (ask, asked) = upshift::sync::mpsc::channel(1);
            let asked = Arc::new(upshift::sync::Mutex::new(asked));
            let events = move || {
                let asked = asked.clone();
                let events = stream::unfold(0, move |number| {
                    let asked = asked.clone();
                    async move {
                        asked.lock().await.recv().await?;
                        let event = Event::default().data(number.to_string());
                        Some((Ok::<_, Infallible>(event), number + 1))
                    }
                });
                async { Sse::new(events).keep_alive(KeepAlive::default()) }
            };
            let (listener, port) = listener();
            spawn(serve(listener, Router::new().route("/", get(events))));
            let mut body = request(port, "/").await.into_body();
            for number in 0..EVENTS {
                ask.send(()).await.unwrap();
                let frame = body.frame().await.unwrap().unwrap();
                let text = frame.into_data().unwrap();
                assert_eq!(&text[..], format!("data: {number}\n\n").as_bytes());
            }
            drop(ask);
            assert!(body.frame().await.is_none());
        });
    }
}
