//! Assigns handlers, levels of urgency and middleware to the routes.

use std::path::Path;
use std::time::Duration;

use axum::Router;
use axum::http::{Method, StatusCode};
use axum::routing::get;
use tower_http::compression::CompressionLayer;
use tower_http::cors::CorsLayer;
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer};
use tower_http::services::ServeDir;
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::TraceLayer;
use upshift::Level;

use crate::state::Shop;
use crate::{orders, quotes, report};

/// Returns the level of a request, as in the table of `main.rs`.
pub fn level(method: &Method, path: &str) -> Level {
    let first = path.split('/').nth(1).unwrap_or_default();
    match first {
        "healthz" => Level::at::<0>(),
        "orders" if method == Method::GET => Level::at::<0>(),
        "orders" => Level::at::<8>(),
        "quotes" | "events" => Level::at::<16>(),
        "report" => Level::at::<24>(),
        _ => Level::at::<56>(),
    }
}

pub fn router(shop: Shop, files: &Path) -> Router {
    let api = Router::new()
        .route("/orders", axum::routing::post(orders::create))
        .route("/orders/{id}", get(orders::show))
        .route("/quotes/{item}", get(quotes::show))
        .route(
            "/report",
            get(report::show).post(report::start).delete(report::stop),
        )
        .route("/healthz", get(orders::health))
        .layer(CompressionLayer::new())
        .layer(RequestBodyLimitLayer::new(64 * 1024))
        .layer(TimeoutLayer::with_status_code(
            StatusCode::GATEWAY_TIMEOUT,
            Duration::from_secs(10),
        ));
    api.route("/events", get(orders::events))
        .nest_service("/files", ServeDir::new(files))
        .layer(CorsLayer::permissive())
        .layer(PropagateRequestIdLayer::x_request_id())
        .layer(TraceLayer::new_for_http())
        .layer(SetRequestIdLayer::x_request_id(MakeRequestUuid))
        .with_state(shop)
}
