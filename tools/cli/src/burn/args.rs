//! Flags of `upshift burn`.

use std::time::Duration;

use clap::Args;
use upshift_load::scenario::BATCH_LEVEL;

use crate::choice::{BoardChoice, Model};
use crate::values;

/// Flags of `upshift burn`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  upshift burn --workers 4 --duration 10s         four coroutines of level 40 on all CPUs
  upshift burn --model thread --workers 4         four threads, until Ctrl-C
  upshift burn --model thread --nice 19           the least share the kernel gives

The command prints the line `burning` when it starts. It reports its work in seconds of CPU time.")]
pub(crate) struct BurnArgs {
    /// Kind of worker: coroutine (yields to more urgent work), or thread
    #[arg(
        long,
        value_enum,
        default_value = "coroutine",
        hide_possible_values = true
    )]
    pub(super) model: Model,
    /// Number of concurrent workers [default: twice the CPUs]
    #[arg(long, value_name = "N", value_parser = values::count)]
    pub(super) workers: Option<usize>,
    /// CPUs to use, e.g. `0,1` [default: all this process may use]
    #[arg(long, value_name = "CPUS", value_delimiter = ',', value_parser = values::cpu)]
    pub(super) pin: Vec<usize>,
    /// Priority level of the coroutines: 0 (most urgent) to 63
    #[arg(long, value_name = "LEVEL", default_value_t = BATCH_LEVEL, value_parser = values::level)]
    pub(super) level: u8,
    /// Join the machine's daemon: off, auto (if there is one), or required (coroutine model)
    #[arg(long, value_enum, default_value = "off", hide_possible_values = true)]
    pub(super) board: BoardChoice,
    /// Nice value: -20 to 19 (smallest share)
    #[arg(long, value_name = "N", default_value_t = 0, allow_hyphen_values = true, value_parser = values::nice)]
    pub(super) nice: i32,
    /// Duration, e.g. `10s` [default: until SIGTERM or Ctrl-C]
    #[arg(long, value_name = "TIME", value_parser = upshift_units::positive_duration)]
    pub(super) duration: Option<Duration>,
    /// Print JSON instead of a sentence
    #[arg(long)]
    pub(super) json: bool,
}
