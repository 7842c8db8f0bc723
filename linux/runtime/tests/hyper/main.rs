//! Tests of hyper, axum and tower on the runtime, with clients that are independent of the runtime.

mod app;
mod client;
mod connections;
mod dropped;
mod https;
mod levels;
mod requests;
mod upgrades;
