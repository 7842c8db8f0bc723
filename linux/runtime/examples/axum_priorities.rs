//! An axum JSON API whose urgent requests stay fast while other requests compute.
//!
//! `GET /orders/{id}` runs at level 8, `POST /reports` (which computes) at level 40; both share the
//! vCPUs. State, extractors, middleware and server-sent events are axum's own.
//!
//! Without an argument, the example serves on a free port, sends itself requests with hyper's
//! client, and ends:
//!
//! ```text
//! cargo run --release -p upshift --example axum_priorities
//! ```
//!
//! With an address, it serves until Ctrl-C, and ends when the running requests have been answered:
//!
//! ```text
//! cargo run --release -p upshift --example axum_priorities 127.0.0.1:8080
//! curl localhost:8080/orders/7
//! curl -d '{"rows":2000000}' -H 'content-type: application/json' localhost:8080/reports
//! curl -N localhost:8080/ticks
//! ```

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{self, Path, State};
use axum::http::Request;
use axum::middleware::{self, Next};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::stream::{self, Stream};
use http_body_util::{BodyExt, Full};
use serde::{Deserialize, Serialize};
use upshift::net::TcpListener;
use upshift::{Level, Priority, signal, time};

/// Returns the level of a request by its path: orders are urgent, reports are not.
fn level_of(path: &str) -> Level {
    match path {
        path if path.starts_with("/orders/") => Level::at::<8>(),
        _ => Level::at::<40>(),
    }
}

async fn serve(listener: TcpListener) -> std::io::Result<()> {
    upshift::axum::serve(listener, app())
        .levels(|request| level_of(request.uri().path()))
        .with_graceful_shutdown(async { _ = signal::ctrl_c().await })
        .await
}

/// The state that all handlers share.
#[derive(Default)]
struct Shop {
    requests: AtomicU64,
}

#[derive(Serialize)]
struct Order {
    id: u64,
    item: &'static str,
    level: u8,
}

#[derive(Deserialize)]
struct ReportRequest {
    rows: u64,
}

#[derive(Serialize)]
struct Report {
    rows: u64,
    checksum: u64,
    level: u8,
}

fn level() -> u8 {
    upshift::current_level().map_or(u8::MAX, Level::get)
}

async fn order(Path(id): Path<u64>) -> Json<Order> {
    Json(Order {
        id,
        item: "lamp",
        level: level(),
    })
}

async fn report(Json(request): Json<ReportRequest>) -> Json<Report> {
    let mut checksum = 0u64;
    for row in 0..request.rows.min(50_000_000) {
        checksum = checksum.rotate_left(5) ^ row.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // More urgent coroutines run here.
        upshift::yield_if_needed().await;
    }
    Json(Report {
        rows: request.rows,
        checksum,
        level: level(),
    })
}

async fn ticks() -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    Sse::new(stream::unfold(0u32, |n| async move {
        if n == 10 {
            return None;
        }
        time::sleep(Duration::from_millis(50)).await;
        Some((Ok(Event::default().data(n.to_string())), n + 1))
    }))
}

async fn count(State(shop): State<Arc<Shop>>, request: extract::Request, next: Next) -> Response {
    let number = shop.requests.fetch_add(1, Ordering::Relaxed);
    let mut response = next.run(request).await;
    response.headers_mut().insert("x-request", number.into());
    response.into_response()
}

fn app() -> Router {
    let shop = Arc::new(Shop::default());
    Router::new()
        .route("/orders/{id}", get(order))
        .route("/reports", post(report))
        .route("/ticks", get(ticks))
        .layer(middleware::from_fn_with_state(shop.clone(), count))
        .with_state(shop)
}

/// Requests a long report and, meanwhile, an order.
async fn send_requests(address: SocketAddr) -> Result<(), Box<dyn std::error::Error>> {
    let client = upshift::hyper::client::<Full<Bytes>>();
    let report = Request::post(format!("http://{address}/reports"))
        .header("content-type", "application/json")
        .body(Full::from(r#"{"rows":2000000}"#))?;
    let report = upshift::spawn(client.request(report), Level::at::<2>());
    time::sleep(Duration::from_millis(1)).await;
    let order = client.get(format!("http://{address}/orders/7").parse()?);
    let order = order.await?.into_body().collect().await?.to_bytes();
    println!("order:  {}", String::from_utf8_lossy(&order));
    let report = report.await.map_err(|error| error.to_string())??;
    let report = report.into_body().collect().await?.to_bytes();
    println!("report: {}", String::from_utf8_lossy(&report));
    Ok(())
}

#[upshift::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:0"))?;
    let local_address = listener.local_addr()?;
    println!("listening on {local_address}");
    if address.is_some() {
        return Ok(serve(listener).await?);
    }
    upshift::spawn(serve(listener), Priority::Inherit).detach();
    send_requests(local_address).await
}
