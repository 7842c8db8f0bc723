//! `upshift::axum::serve`: applications of axum on each listener, with clients of other crates.

mod app;
mod levels;
mod listeners;
mod shutdown;
mod upgrades;
