//! Runs an axum service whose spans go to OpenTelemetry. Each request has a span with its route and
//! its level (urgency).
//!
//! ```text
//! cargo run                          # requests two routes from itself, prints the spans, and ends
//! cargo run 127.0.0.1:8080           # serves until SIGTERM
//! ```
//!
//! The spans are printed. To send them to a collector, replace `opentelemetry-stdout` with
//! `opentelemetry-otlp`, since [`export_by`] takes a processor for any exporter. The batch
//! processor has a thread of its own, so no vCPU waits for the exporter, and no runtime of tokio is
//! needed.

use std::io::{Read, Write};
use std::net::SocketAddr;

use axum::Router;
use axum::extract::Path;
use axum::http::Request;
use axum::routing::{get, post};
use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{BatchSpanProcessor, SdkTracerProvider, SpanProcessor};
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::layer::SubscriberExt;
use upshift::axum::NameRoutes;
use upshift::hyper::Server;
use upshift::net::TcpListener;
use upshift::{Level, signal};

/// Returns the provider of OpenTelemetry's tracers, to be shut down at the end, and a subscriber
/// that passes the spans of `tracing` on.
fn export_by(
    processor: impl SpanProcessor + 'static,
) -> (SdkTracerProvider, impl Subscriber + Send + Sync) {
    let provider = SdkTracerProvider::builder()
        .with_resource(Resource::builder().with_service_name("shop").build())
        .with_span_processor(processor)
        .build();
    let spans = tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("shop"))
        // Coroutines have spans at DEBUG. Without this filter, the span of a connection would
        // be the parent of the spans of its requests.
        .with_filter(LevelFilter::INFO);
    (provider, tracing_subscriber::registry().with(spans))
}

async fn order(Path(id): Path<u64>) -> String {
    // A span of the program's own is a child of the request's span.
    let span = tracing::info_span!("look up", order.id = id);
    span.in_scope(|| format!("order {id}"))
}

async fn report() -> String {
    let mut sum = 0u64;
    for row in 0..1_000_000u64 {
        sum = sum.wrapping_mul(31).wrapping_add(row);
        if row % 1000 == 0 {
            upshift::yield_if_needed().await;
        }
    }
    format!("sum {sum}")
}

fn app() -> Router {
    Router::new()
        .route("/orders/{id}", get(order))
        .route("/reports", post(report))
        // Opens a span for each request, with the route as its name and the level as its attribute
        // `level`.
        .layer(NameRoutes)
}

fn level_of<B>(request: &Request<B>) -> Level {
    match request.uri().path() {
        path if path.starts_with("/orders/") => Level::at::<8>(),
        _ => Level::at::<40>(),
    }
}

fn ask(address: SocketAddr, method: &str, path: &str) -> std::io::Result<String> {
    let mut stream = std::net::TcpStream::connect(address)?;
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn ask_for_all(address: SocketAddr) -> std::io::Result<Vec<String>> {
    [("GET", "/orders/7"), ("POST", "/reports")]
        .map(|(method, path)| ask(address, method, path))
        .into_iter()
        .collect()
}

/// Serves on `address`. Without an address, requests each route from its own server and returns the
/// answers.
fn run(address: Option<&str>) -> std::io::Result<Vec<String>> {
    let runtime = upshift::Runtime::builder().vcpus(1).build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(address.unwrap_or("127.0.0.1:0"))?;
        let bound = listener.local_addr()?;
        let server = Server::new(listener)
            .receive_level(Level::at::<4>())
            .levels(level_of);
        if address.is_some() {
            eprintln!("listening on {bound}");
            let server = server.with_graceful_shutdown(async { _ = signal::terminate().await });
            server.run(app()).await?;
            return Ok(Vec::new());
        }
        let client_thread = upshift::spawn_blocking(move || ask_for_all(bound));
        let (end_sender, end_receiver) = upshift::sync::oneshot::channel();
        let client = async move {
            let answers = client_thread.await;
            let _ = end_sender.send(());
            answers
        };
        let client = upshift::spawn(client, Level::at::<4>());
        let server = server.with_graceful_shutdown(async { _ = end_receiver.await });
        server.run(app()).await?;
        let answers = client.await.map_err(std::io::Error::other)?;
        answers.map_err(std::io::Error::other)?
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let exporter = opentelemetry_stdout::SpanExporter::default();
    let (provider, subscriber) = export_by(BatchSpanProcessor::builder(exporter).build());
    tracing::subscriber::set_global_default(subscriber)?;
    for answer in run(std::env::args().nth(1).as_deref())? {
        eprintln!("{}", answer.lines().last().unwrap_or_default());
    }
    // Sends the last batch.
    provider.shutdown()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use opentelemetry::Value;
    use opentelemetry_sdk::trace::{InMemorySpanExporter, SimpleSpanProcessor, SpanData};

    use super::*;

    fn level(span: &SpanData) -> Option<&Value> {
        let mut attributes = span.attributes.iter();
        let level = attributes.find(|attribute| attribute.key.as_str() == "level")?;
        Some(&level.value)
    }

    #[test]
    fn exported_spans_have_the_route_and_the_level_of_the_request() {
        let exporter = InMemorySpanExporter::default();
        let processor = SimpleSpanProcessor::new(exporter.clone());
        let (provider, subscriber) = export_by(processor);
        tracing::subscriber::set_global_default(subscriber).unwrap();
        let answers = run(None).unwrap();
        assert!(answers[0].ends_with("order 7"), "{answers:?}");
        assert!(answers[1].contains("sum "), "{answers:?}");
        provider.force_flush().unwrap();
        let spans = exporter.get_finished_spans().unwrap();
        let find = |name: &str| {
            let span = spans.iter().find(|span| span.name == name);
            span.unwrap_or_else(|| panic!("{name} in {spans:?}"))
        };
        let order = find("GET /orders/{id}");
        assert_eq!(level(order), Some(&Value::I64(8)));
        assert_eq!(level(find("POST /reports")), Some(&Value::I64(40)));
        let part = find("look up");
        assert_eq!(part.parent_span_id, order.span_context.span_id());
        let trace = part.span_context.trace_id();
        assert_eq!(trace, order.span_context.trace_id());
    }
}
