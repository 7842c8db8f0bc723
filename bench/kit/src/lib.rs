//! Common part of the benchmarks' *peers*: the same programs on other runtimes, with which Upshift
//! is compared. They differ by their runtime alone, because they share the command line and the
//! listening socket (`server`), the harnesses of the microbenchmarks (`micro`; with two workers,
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
