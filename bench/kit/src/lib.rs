//! What every peer of the benchmarks shares, so that servers differ by their runtime alone: the command line and the
//! listening socket (`server`), the user-side work of the plaintext server (`requests`), and the harnesses of the
//! microbenchmarks (`micro`; with two workers, `conserve` and `multi`).
//!
//! Nothing here knows a runtime. The matrix frames come from `upshift-load`, which the peers use directly.

pub mod conserve;
pub mod files;
pub mod frames;
pub mod micro;
pub mod multi;
pub mod requests;
pub mod server;
pub mod workers;
