//! Tests of how a server shuts down.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use upshift::axum::serve;
use upshift::net::TcpStream;
use upshift::sync::Notify;
use upshift::{Priority, spawn, time};

use crate::app::{get as fetch, listener, runtimes, text};

/// State of the slow handler: a notification when the handler has begun, and a notification that
/// lets it continue.
#[derive(Clone, Default)]
struct Slow {
    begun: Arc<Notify>,
    resume: Arc<Notify>,
}

async fn slow(State(slow): State<Slow>) -> &'static str {
    slow.begun.notify_one();
    slow.resume.notified().await;
    "answered"
}

/// Returns a server with a slow handler, and the server's port. A notification of `end` shuts the
/// server down, with `limit` as its drain timeout.
fn server(
    state: &Slow,
    end: &Arc<Notify>,
    limit: Duration,
) -> (
    impl Future<Output = std::io::Result<()>> + Send + use<>,
    u16,
) {
    let (listener, port) = listener();
    let app = Router::new()
        .route("/", get(slow))
        .with_state(state.clone());
    let end = end.clone();
    let server = serve(listener, app)
        .with_graceful_shutdown(async move { end.notified().await })
        .drain_timeout(limit);
    (server.into_future(), port)
}

#[test]
fn a_running_request_is_answered_after_the_end() {
    for runtime in runtimes() {
        runtime.block_on(async {
            let (state, end) = (Slow::default(), Arc::new(Notify::new()));
            let (server, port) = server(&state, &end, Duration::from_secs(60));
            let mut server = spawn(server, Priority::Inherit);
            let request_task = async move { text(fetch(port, "/").await).await };
            let request_task = spawn(request_task, Priority::Inherit);
            state.begun.notified().await;
            end.notify_one();
            // The listener is closed, and the server still waits for the request.
            while TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
                time::sleep(Duration::from_millis(1)).await;
            }
            let wait = time::timeout(Duration::from_millis(20), &mut server);
            assert!(wait.await.is_err(), "the server ended before its request");
            state.resume.notify_one();
            assert_eq!(request_task.await.unwrap(), "answered");
            server.await.unwrap().unwrap();
        });
    }
}

#[test]
fn a_request_that_does_not_end_is_cut_off() {
    for runtime in runtimes() {
        runtime.block_on(async {
            let (state, end) = (Slow::default(), Arc::new(Notify::new()));
            let (server, port) = server(&state, &end, Duration::from_millis(20));
            let server = spawn(server, Priority::Inherit);
            let client = upshift::hyper::client::<axum::body::Body>();
            let uri = format!("http://127.0.0.1:{port}/").parse().unwrap();
            let request_task = spawn(client.get(uri), Priority::Inherit);
            state.begun.notified().await;
            end.notify_one();
            server.await.unwrap().unwrap();
            assert!(request_task.await.unwrap().is_err());
        });
    }
}
