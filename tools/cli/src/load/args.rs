//! Flags of `upshift load`.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::measuring::MeasuringArgs;
use super::spin_args::SpinLoadArgs;
use crate::values::{self, Endpoint};

/// Flags of `upshift load`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  upshift load matrix --connect 127.0.0.1:7000 --connections 64 --size 8
  upshift load matrix --connect 127.0.0.1:7000@urgent --connect 127.0.0.1:7001@background \\
                      --connections 8 --size 20 --rate 20000
  upshift load http --connect 127.0.0.1:8000 --connections 64 --pipeline 16
  upshift load spin --connect 127.0.0.1:7000 --rate 20000 --long-share 0.5%

Closed loop: a connection sends its next request when the reply has arrived. Open loop (--period,
--rate): requests are due at fixed times, and latency counts from the time a request was due.
The exit code is 1 when a request failed.")]
pub(crate) struct LoadArgs {
    /// Kind of request
    #[command(subcommand)]
    pub(crate) work: LoadWork,
}

/// Kinds of load that `upshift load` generates.
#[derive(Debug, Subcommand)]
pub(crate) enum LoadWork {
    /// Send matrices, check the returned squares against a local product
    #[command(after_help = "Examples:
  upshift load matrix --connect 127.0.0.1:7000 --connections 64 --size 8
  upshift load matrix --connect 127.0.0.1:7000 --connections 512 --size 20 --period 100ms
  upshift load matrix --connect 127.0.0.1:7000@urgent --connect 127.0.0.1:7001@background \\
                      --connections 8 --rate 20000 --server-pid 4711")]
    Matrix(MatrixLoadArgs),
    /// Send HTTP/1.1 GET requests on kept-alive connections
    #[command(after_help = "Examples:
  upshift load http --connect 127.0.0.1:8000 --connections 64
  upshift load http --connect 127.0.0.1:8000 --connections 64 --pipeline 16 --pin 1 --json
  upshift load http --connect 127.0.0.1:8080 --path /matrix?n=64 --header 'Priority: u=0'")]
    Http(HttpLoadArgs),
    /// Request CPU time in an open loop, mixing short and long requests; latency by class
    Spin(SpinLoadArgs),
}

/// Flags of `upshift load matrix`.
#[derive(Debug, Args)]
pub(crate) struct MatrixLoadArgs {
    /// Rows and columns of the matrices
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = values::size)]
    pub(crate) size: usize,
    #[command(flatten)]
    pub(crate) common: LoadCommonArgs,
}

/// Flags of `upshift load http`.
#[derive(Debug, Args)]
pub(crate) struct HttpLoadArgs {
    /// Path to request
    #[arg(long, default_value = "/", value_parser = values::path)]
    pub(crate) path: String,
    /// Additional header line, e.g. `Priority: u=0`; may be repeated
    #[arg(long, value_name = "LINE")]
    pub(crate) header: Vec<String>,
    /// Requests in flight per connection
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = values::count)]
    pub(crate) pipeline: usize,
    #[command(flatten)]
    pub(crate) common: LoadCommonArgs,
}

/// Flags that every kind of load takes.
#[derive(Debug, Args)]
pub(crate) struct LoadCommonArgs {
    /// Server address, with a label for the result; each gets --connections connections
    #[arg(long, value_name = "ADDR[@LABEL]", required = true, value_parser = values::endpoint)]
    pub(crate) connect: Vec<Endpoint>,
    /// Connections to each address
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = values::count)]
    pub(crate) connections: usize,
    /// Closed loop: send the next request after the reply (the default)
    #[arg(long, conflicts_with_all = ["period", "rate"])]
    pub(crate) closed: bool,
    /// Open loop: each connection sends one request per period, e.g. `100ms`
    #[arg(long, value_name = "TIME", value_parser = upshift_units::positive_duration, conflicts_with = "rate", group = "open")]
    pub(crate) period: Option<Duration>,
    /// Open loop: requests per second to each address, spread over its connections
    #[arg(long, value_name = "REQ/S", value_parser = values::rate, group = "open")]
    pub(crate) rate: Option<f64>,
    /// Run the client in SCHED_FIFO, so that programs on its CPU do not delay it; open loop
    /// only
    #[arg(long, requires = "open")]
    pub(crate) elevate: bool,
    #[command(flatten)]
    pub(crate) measuring: MeasuringArgs,
}
