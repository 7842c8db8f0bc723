//! Offers Upshift under the names of tokio's modules and types. Tokio's published tests use this
//! library, which shows how far `upshift::{sync, time, task}` are source-compatible.
//!
//! `cargo xtask compat tokio` creates a package of this library and of the tests in the registry's
//! copy of tokio, and compares the failing tests with `differences.txt`. `io` and the macros are
//! tokio's own; every runtime is a runtime of Upshift.

pub mod runtime;

pub use real::{io, join, main, pin, select, task_local, test, try_join};
pub use upshift::{net, sync, time};

pub mod task {
    pub use upshift::task::*;
}
pub use upshift::task::spawn;
