//! Upshift under the name of tokio: the library that tokio's published tests use here, to see
//! how far `upshift::{sync, time, task}` are source-compatible.
//!
//! `cargo xtask compat tokio` makes a package of this library and of the tests in the registry's
//! copy of tokio, and compares those that fail with `differences.txt`. `select!` and `io`
//! are tokio's own; a runtime is one of Upshift's.

pub mod runtime;

pub use real::{io, join, main, pin, select, task_local, test, try_join};
pub use upshift::{net, sync, time};

pub mod task {
    pub use upshift::task::*;
}
pub use upshift::task::spawn;
