//! hyper, axum and tower on the runtime, each with a client that knows nothing of it.

mod app;
mod client;
mod connections;
mod dropped;
mod https;
mod levels;
mod requests;
mod upgrades;
