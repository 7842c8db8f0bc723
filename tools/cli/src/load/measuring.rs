//! Flags that every kind of load takes.

use std::time::Duration;

use clap::Args;

use crate::values;

/// Flags of every kind of load: duration, client CPU, and output.
#[derive(Debug, Args)]
pub(crate) struct MeasuringArgs {
    /// Warm-up time before measuring
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = upshift_units::duration)]
    pub(crate) warmup: Duration,
    /// Measuring time
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = upshift_units::positive_duration)]
    pub(crate) duration: Duration,
    /// CPU of the client
    #[arg(long, value_name = "CPU", value_parser = values::cpu)]
    pub(crate) pin: Option<usize>,
    /// Process of the server; reports its CPU time per request
    #[arg(long, value_name = "PID", value_parser = values::pid)]
    pub(crate) server_pid: Option<u32>,
    /// Print JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}
