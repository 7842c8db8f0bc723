//! Flags of `upshift calibrate`.

use clap::Args;

use crate::values;

/// Flags of `upshift calibrate`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  upshift calibrate
  upshift calibrate --cpu 1

A preemptive server raises its quantum to at least the smallest sensible one, printed here. The exit
code is 1 if SCHED_FIFO is not permitted; the output then says what to change.")]
pub(crate) struct CalibrateArgs {
    /// CPU to measure [default: the first one available]
    #[arg(long, value_name = "CPU", value_parser = values::cpu)]
    pub(super) cpu: Option<usize>,
}
