//! What every peer of the benchmarks shares, so that servers differ by their runtime alone: the command line and the
//! listening socket (`server`), the user-side work of the plaintext server (`requests`), and the harness of the
//! microbenchmarks (`micro`).
//!
//! Nothing here knows a runtime. The matrix frames come from `upshift-load`, which the peers use directly.

pub mod frames;
pub mod micro;
pub mod requests;
pub mod server;
