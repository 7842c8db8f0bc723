//! Defines the routes of the service.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::get;
use tokio::runtime::Handle;
use upshift::Level;

use crate::engine::Engine;

/// The place where queries run.
#[derive(Clone)]
pub(crate) enum Queries {
    /// Awaited in the handler; `tokio::spawn` puts their tasks on tokio's threads.
    InHandler,
    /// Spawned on another tokio runtime.
    On(Handle),
}

#[derive(Clone)]
struct Service {
    engine: Arc<Engine>,
    queries: Queries,
}

pub(crate) fn level(path: &str) -> Level {
    if path.starts_with("/prices/") {
        Level::at::<4>()
    } else {
        Level::at::<40>()
    }
}

pub(crate) fn router(engine: Engine, queries: Queries) -> Router {
    let engine = Arc::new(engine);
    Router::new()
        .route("/prices/{id}", get(price))
        .route("/reports", get(report))
        .with_state(Service { engine, queries })
}

async fn price(Path(id): Path<u64>) -> String {
    format!("{}\n", id * 7919 % 997)
}

async fn report(State(service): State<Service>) -> Result<String, (StatusCode, String)> {
    let Service { engine, queries } = service;
    let query = async move { engine.report().await.map_err(|error| error.to_string()) };
    let report = match queries {
        Queries::InHandler => query.await,
        Queries::On(runtime) => {
            let result = runtime.spawn(query).await;
            result.unwrap_or_else(|error| Err(error.to_string()))
        }
    };
    report.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error))
}
