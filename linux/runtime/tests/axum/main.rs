//! `upshift::axum::serve`: applications of axum on each listener, with clients of other crates.

mod app;
#[path = "../support/child.rs"]
mod child;
mod levels;
mod listeners;
mod on_tokio;
mod shutdown;
mod upgrades;
