//! Flags of `upshift top`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::values;

/// Flags of `upshift top`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  upshift top                    choose one of the observable processes
  upshift top 4711               show this process; ? shows the keys
  upshift top 4711 --once        one table, as text
  upshift top --once --json      the same for scripts, if only one process is observable
  upshift top --machine          show the state of `upshift daemon`
  upshift top 4711 --record a.svg                   an image of its coroutines over one second
  upshift top 4711 --record a.json --interval 5s    the same for https://ui.perfetto.dev

A process is observable if it was started with UPSHIFT_OBSERVE=1 (servers of this command: or
with --observe), or if its program calls `Builder::observe(true)`. Only its user can observe it,
and root, by its process id.")]
pub(crate) struct TopArgs {
    /// Process to show
    #[arg(value_name = "PID", value_parser = values::pid)]
    pub(super) pid: Option<u32>,
    /// Time between two updates
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = upshift_units::positive_duration)]
    pub(super) interval: Duration,
    /// Print one interval and exit
    #[arg(long)]
    pub(super) once: bool,
    /// With --once: print JSON (described in docs/observe.md)
    #[arg(long, requires = "once")]
    pub(super) json: bool,
    /// Record one interval and write the timeline to this file: .json for Perfetto, .svg for an
    /// image
    #[arg(long, value_name = "FILE", conflicts_with_all = ["once", "machine"])]
    pub(super) record: Option<PathBuf>,
    /// Show the processes registered with `upshift daemon`
    #[arg(long, conflicts_with = "pid")]
    pub(super) machine: bool,
}
