//! Runs the HTTP service of a shop. It has orders in postgres, counters in redis, prices from a
//! partner over https, a report that is computed in the background, downloads, and a web socket
//! that announces new orders. All of them share the CPUs, and urgent work goes first. Each request
//! has a level of urgency, from 0 (the most urgent) to 63.
//!
//! ```text
//! DATABASE_URL=postgres://postgres@localhost/shop REDIS_URL=redis://localhost/ \
//!     PARTNER_URL=https://partner.example/ \
//!     cargo run --release --bin service
//! ```
//!
//! | request | level | what it does |
//! |---|---|---|
//! | `GET /orders/{id}` | 0 | counts the view in redis, reads the order from postgres |
//! | `GET /healthz` | 0 | checks that redis and postgres answer |
//! | `POST /orders` | 8 | inserts an order, sends it to the web sockets |
//! | `GET /quotes/{item}` | 16 | requests a price from the partner over https |
//! | `GET /events` | 16 | opens the web socket |
//! | `POST`, `GET`, `DELETE /report` | 24 | starts a job of level 48, shows its report, stops it |
//! | `GET /files/…` | 56 | sends a file of the folder `FILES` |
//!
//! `LISTEN` (default 127.0.0.1:8080) is the address; `PARTNER_CA` names a file of certificates to
//! trust besides the system's.

mod config;
mod error;
mod orders;
mod quotes;
mod report;
mod routes;
mod state;

use upshift::net::TcpListener;
use upshift::{Preemption, Runtime, signal};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .init();
    Runtime::builder()
        .preemption(Preemption::Preferred)
        .build()?
        .block_on(serve(config::Config::from_env()?))
}

async fn serve(config: config::Config) -> Result<(), Box<dyn std::error::Error>> {
    let state = state::connect(&config).await?;
    let listener = TcpListener::bind(&*config.listen)?;
    println!("listening on http://{}", listener.local_addr()?);
    upshift::axum::serve(listener, routes::router(state, &config.files))
        .levels(|request| routes::level(request.method(), request.uri().path()))
        .with_graceful_shutdown(async { _ = signal::terminate().await })
        .await?;
    Ok(())
}
