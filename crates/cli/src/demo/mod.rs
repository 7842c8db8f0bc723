//! `upshift demo`: the tour. Its experiments arrive with the coroutine servers.

mod children;
mod progress;

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::args::DemoArgs;

/// Runs the demo.
pub(crate) fn demo(_: &DemoArgs) -> Result<ExitCode> {
    bail!(
        "this build has no coroutine servers to measure; `upshift matrix-server --model thread` works"
    )
}
