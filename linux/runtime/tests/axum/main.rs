//! Tests of `upshift::axum::serve`: axum applications on each kind of listener, with clients of
//! other crates.

mod app;
#[path = "../support/child.rs"]
mod child;
mod levels;
mod listeners;
mod on_tokio;
mod shutdown;
mod upgrades;
