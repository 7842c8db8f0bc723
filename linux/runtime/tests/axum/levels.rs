//! Tests of the levels of requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use upshift::axum::serve;
use upshift::{Level, Priority, Runtime};

use crate::app::{get as fetch, listener, spawn, text};

async fn level() -> String {
    upshift::current_level().unwrap().to_string()
}

#[test]
fn a_handler_runs_at_the_level_of_its_request() {
    let runtime = Runtime::builder().vcpus(1).build().unwrap();
    runtime.block_on(async {
        let (listener, port) = listener();
        let app = Router::new().fallback(level);
        let server = serve(listener, app)
            .receive_level(Level::at::<2>())
            .levels(|request| match request.uri().path() {
                "/urgent" => Level::at::<8>(),
                _ => Level::at::<40>(),
            });
        spawn(server);
        for (path, level) in [("/urgent", "8"), ("/report", "40"), ("/urgent", "8")] {
            assert_eq!(text(fetch(port, path).await).await, level);
        }
    });
}

#[test]
fn without_levels_a_handler_runs_at_the_level_of_receiving() {
    let runtime = Runtime::builder().vcpus(1).build().unwrap();
    runtime.block_on(async {
        let (listener, port) = listener();
        spawn(serve(listener, Router::new().fallback(level)).receive_level(Level::at::<5>()));
        assert_eq!(text(fetch(port, "/").await).await, "5");
    });
}

/// Number of urgent requests for which the computing request waits.
const URGENT_REQUESTS: u32 = 50;

/// Computes until [`URGENT_REQUESTS`] urgent requests have been served, and returns its level.
async fn compute(State(served): State<Arc<AtomicU32>>) -> (StatusCode, String) {
    let began = Instant::now();
    while served.load(Ordering::Relaxed) < URGENT_REQUESTS {
        if began.elapsed() > Duration::from_secs(30) {
            return (StatusCode::GATEWAY_TIMEOUT, "no urgent request".to_owned());
        }
        upshift::yield_if_needed().await;
    }
    (StatusCode::OK, level().await)
}

#[test]
fn with_levels_requests_are_received_at_the_most_urgent_level() {
    let runtime = Runtime::builder().vcpus(1).build().unwrap();
    runtime.block_on(async {
        let (listener, port) = listener();
        let receive_level = Arc::new(AtomicU32::new(u32::MAX));
        let recorded_level = receive_level.clone();
        let server = serve(listener, Router::new().fallback(level)).levels(move |_| {
            let level = upshift::current_level().unwrap().get();
            recorded_level.store(level.into(), Ordering::Relaxed);
            Level::at::<40>()
        });
        spawn(server);
        assert_eq!(text(fetch(port, "/").await).await, "40");
        assert_eq!(receive_level.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn urgent_requests_are_served_while_another_request_computes() {
    let runtime = Runtime::builder().vcpus(1).build().unwrap();
    runtime.block_on(async {
        let served = Arc::new(AtomicU32::new(0));
        let count = |State(served): State<Arc<AtomicU32>>| async move {
            served.fetch_add(1, Ordering::Relaxed).to_string()
        };
        let app = Router::new()
            .route("/compute", get(compute))
            .route("/urgent", get(count))
            .with_state(served);
        let (listener, port) = listener();
        let server = serve(listener, app).levels(|request| match request.uri().path() {
            "/urgent" => Level::at::<8>(),
            _ => Level::at::<40>(),
        });
        spawn(server);
        let client = async move {
            let computation = async move { text(fetch(port, "/compute").await).await };
            let computation = upshift::spawn(computation, Priority::Inherit);
            for number in 0..URGENT_REQUESTS {
                let answer = text(fetch(port, "/urgent").await).await;
                assert_eq!(answer, number.to_string());
            }
            computation.await.unwrap()
        };
        let client = upshift::spawn(client, Level::at::<4>());
        assert_eq!(client.await.unwrap(), "40");
    });
}
