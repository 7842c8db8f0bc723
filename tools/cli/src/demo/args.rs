//! Flags of `upshift demo`.

use std::path::PathBuf;

use clap::Args;

use crate::values;

/// Flags of `upshift demo`.
#[derive(Debug, Args)]
#[command(after_help = "Experiments:
  1  coroutines vs threads, over connections and matrix sizes
  2  8 priority levels at overload, on one vCPU and (not with --quick) on all CPUs
  3  spawn 1,000,000 coroutines: memory and time
  4  99.5 % short and 0.5 % long requests: preemption off and on, latency by class
  5  level 0 pings against a level 40 coroutine that never yields: preemption off and on
  6  an urgent server beside a batch process on every CPU: without and with the daemon

6 starts its own daemon; without the privilege to use SCHED_FIFO, the daemon only asks the batch
process to yield. 4 needs no privileges; with that one it interrupts long requests sooner.

Examples:
  upshift demo
  upshift demo --quick --only 2,3 --report /tmp/report.html

The last lines are the result of experiment 2. The servers run as child processes on 127.0.0.1; with
two or more CPUs the server is pinned to CPU 0 and the client to CPU 1. Ctrl-C stops the children
and leaves no report; exit code 130.")]
pub(crate) struct DemoArgs {
    /// Take 20 seconds instead of 90, with fewer, shorter and less exact measurements
    #[arg(long)]
    pub(crate) quick: bool,
    /// Where to write the report, a self-contained HTML file
    #[arg(long, value_name = "FILE", default_value = "upshift-report.html")]
    pub(crate) report: PathBuf,
    /// Run only these experiments, e.g. `1,3`
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = values::experiment)]
    pub(crate) only: Vec<u8>,
}
