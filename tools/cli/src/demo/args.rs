//! Flags of `upshift demo`.

use std::path::PathBuf;

use clap::Args;

use crate::values;

/// Flags of `upshift demo`.
#[derive(Debug, Args)]
#[command(after_help = "Parts:
  1  eight levels at 130 % load: latency of the most urgent one, compared with its latency alone
  2  99.5 % short and 0.5 % long requests: preemption off and on
  3  an urgent server beside a batch process on every CPU: without and with the daemon

The verdict on each comparison is better, worse, or inconclusive (the client itself was late by more
than the difference). A part that other programs disturb is repeated once. Part 3 starts its own
daemon. Without the privilege to use SCHED_FIFO, that daemon only asks the batch process to yield,
and part 2 suspends long requests later.

Examples:
  upshift demo
  upshift demo --quick --only 1,2 --report /tmp/report.html

The servers run as child processes on 127.0.0.1; with two or more CPUs the server is pinned to CPU 0
and the client to CPU 1. Ctrl-C stops the children and leaves no report; exit code 130.")]
pub(crate) struct DemoArgs {
    /// Take 15 seconds instead of 45, with shorter and less exact measurements
    #[arg(long)]
    pub(crate) quick: bool,
    /// Path of the report, a self-contained HTML file
    #[arg(long, value_name = "FILE", default_value = "upshift-report.html")]
    pub(crate) report: PathBuf,
    /// Run only these parts, e.g. `1,3`
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = values::part)]
    pub(crate) only: Vec<u8>,
}
