//! Code that the benchmarks' *peers* share. Peers are programs on other runtimes, with which
//! Upshift is compared. They differ only by their runtime, because they share the command line and
//! the listening socket (`server`), the code of the microbenchmarks (`micro`; with two workers,
//! `conserve` and `multi`), and the work on files (`files`).
//!
//! The crate depends on no runtime. `upshift-load` parses matrix frames and page requests, as in
//! Upshift's own server.

pub mod conserve;
pub mod files;
pub mod micro;
pub mod multi;
pub mod server;
mod words;
pub mod workers;

pub use upshift_load::{frames, requests};
