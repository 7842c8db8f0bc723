//! Flags of `upshift matrix-server`, `upshift plaintext-server` and `upshift spin-server`.

use clap::Args;

use crate::choice::{DriverChoice, SchedulingArgs};
use crate::values::{self, Listen};

/// Examples at the end of `upshift spin-server --help`.
pub(crate) const SPIN_EXAMPLES: &str = "Examples:
  --listen 127.0.0.1:7000                         requests are received at level 32
  --listen 127.0.0.1:7000@0 --pin 0               received at level 0, whatever their own level

A request is 24 bytes, three u64, little-endian: service time in ns of CPU (at most 60 s), level
(0 to 63), tag. The server burns that much CPU at that level and sends the 24 bytes back.
Requests may be pipelined (up to 256 are under way per connection); replies come in the order of
completion. Give the level of the most urgent requests as that of the connections. Drive it with
`upshift load spin`. SIGTERM and Ctrl-C end the server with status 0.";

/// Flags of `upshift matrix-server`, `upshift plaintext-server` and `upshift spin-server`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  --listen 127.0.0.1:7000                         one address, level 32
  --listen 127.0.0.1:7000@0 --listen 127.0.0.1:7001@56
                                                  urgent and background on one server
  --listen 127.0.0.1:7000 --vcpus 2 --pin 0,1     two vCPUs, one per CPU

One line `listening on ADDRESS` per address is printed once connections are accepted; port 0 takes
any free port. SIGTERM and Ctrl-C end the server with status 0.")]
pub(crate) struct ServerArgs {
    /// Address to listen on, optionally with a level for its connections instead of --level
    #[arg(long, value_name = "ADDR[@LEVEL]", required = true, value_parser = values::listen)]
    pub(crate) listen: Vec<Listen>,
    /// Number of vCPUs [default: as many as --pin names, else 1]
    #[arg(long, value_name = "N", value_parser = values::count)]
    pub(crate) vcpus: Option<usize>,
    /// CPUs to run on, e.g. `0,1`: one vCPU each, in turn
    #[arg(long, value_name = "CPUS", value_delimiter = ',', value_parser = values::cpu)]
    pub(crate) pin: Vec<usize>,
    /// Priority level of the connections: 0 (most urgent) to 63
    #[arg(long, value_name = "LEVEL", default_value_t = 32, value_parser = values::level)]
    pub(crate) level: u8,
    /// I/O driver: auto (io_uring if it works), ring, or readiness
    #[arg(long, value_enum, default_value = "auto", hide_possible_values = true)]
    pub(crate) driver: DriverChoice,
    /// Allow `upshift top` to inspect the server
    #[arg(long)]
    pub(crate) observe: bool,
    #[command(flatten, next_help_heading = "Scheduling")]
    pub(crate) scheduling: SchedulingArgs,
}
