//! The command line: every subcommand, flag, default and help text.
//!
//! This module only describes; it opens nothing and starts nothing. Values are checked by the
//! parsers of [`crate::values`], so what arrives in these structs is in range.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::burn_cmd::BurnArgs;
use crate::calibrate::CalibrateArgs;
use crate::daemon_args::DaemonArgs;
use crate::doctor::DoctorArgs;
use crate::documents::DocumentsArgs;
use crate::sched_cmd::SchedArgs;
use crate::serve_args::{EXAMPLES, ServeArgs};
use crate::spin_args::SpinLoadArgs;
use crate::top::TopArgs;
use crate::values::{self, Endpoint, Listen};

/// One priority scheduler for coroutines: in a process, across processes, and for unmodified programs.
#[derive(Debug, Parser)]
#[command(
    name = "upshift",
    version,
    arg_required_else_help = true,
    max_term_width = 100
)]
#[command(after_help = "Examples:
  upshift demo                 a tour of a minute and a half; writes upshift-report.html
  upshift demo --quick         the same in 20 seconds, shorter and less exact
  upshift serve                the current folder on http://127.0.0.1:8080
  upshift sched rr --cpu 0 --run 'make -j4' --run './job'
  upshift daemon               the machine's scheduler; servers join it with --board auto
  upshift top                  what the processes on Upshift are doing

`upshift help COMMAND` shows the flags and examples of one command.")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show the effect of priorities: six experiments in 90 seconds, a verdict, a report
    Demo(DemoArgs),
    /// Serve files and endpoints over HTTP/1.1 and HTTP/2; every request has a priority
    #[command(after_help = EXAMPLES)]
    Serve(Box<ServeArgs>),
    /// Schedule unmodified processes: round-robin, timetable, shares, deadlines, levels
    Sched(Box<SchedArgs>),
    /// Run the most urgent process of each CPU: the machine-wide scheduler, in the foreground
    Daemon(DaemonArgs),
    /// Show a running process: levels, vCPUs, the longest polls and their spawn locations
    Top(TopArgs),
    /// Measure the cost of switches and timers on this machine, and list missing privileges
    Calibrate(CalibrateArgs),
    /// Report what works on this machine and how to enable the rest, on one screen
    Doctor(DoctorArgs),
    /// Serve squares of matrices: receive, queue, compute, queue, send per connection
    MatrixServer(ServerArgs),
    /// Serve `Hello, World!` over HTTP/1.1 and 1.0 with keep-alive and pipelining
    PlaintextServer(ServerArgs),
    /// Serve requests that each compute for a given CPU time at a given level
    #[command(after_help = SPIN_SERVER_EXAMPLES)]
    SpinServer(ServerArgs),
    /// Use all remaining CPU time, like a batch job, and report the work done
    Burn(BurnArgs),
    /// Generate load for a server and report throughput and latency
    Load(LoadArgs),
    /// Write man pages and completions
    #[command(hide = true)]
    Documents(DocumentsArgs),
    /// Spawn many coroutines (or threads) and print their memory and time
    #[command(hide = true)]
    SpawnTest(SpawnTestArgs),
}

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

/// How a server handles its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Model {
    /// Coroutines on the Upshift runtime
    Coroutine,
    /// Threads of the operating system, for comparison; levels have no effect
    Thread,
}

impl Model {
    /// The word used on the command line.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Model::Coroutine => "coroutine",
            Model::Thread => "thread",
        }
    }
}

/// The end of `upshift spin-server --help`.
const SPIN_SERVER_EXAMPLES: &str = "Examples:
  --listen 127.0.0.1:7000                         requests are received at level 32
  --listen 127.0.0.1:7000@0 --pin 0               received at level 0, whatever their own level
  --listen 127.0.0.1:7000 --model thread          a thread per connection; levels have no effect

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
  --listen 127.0.0.1:7000 --model thread          the same service with threads

One line `listening on ADDRESS` per address is printed once connections are accepted; port 0 takes
any free port. SIGTERM and Ctrl-C end the server with status 0.")]
pub(crate) struct ServerArgs {
    /// Address to listen on, optionally with a level for its connections instead of --level
    #[arg(long, value_name = "ADDR[@LEVEL]", required = true, value_parser = values::listen)]
    pub(crate) listen: Vec<Listen>,
    /// Number of vCPUs (coroutine model) [default: as many as --pin names, else 1]
    #[arg(long, value_name = "N", value_parser = values::count)]
    pub(crate) vcpus: Option<usize>,
    /// CPUs to run on, e.g. `0,1`: one vCPU each, in turn (thread model: all threads on these)
    #[arg(long, value_name = "CPUS", value_delimiter = ',', value_parser = values::cpu)]
    pub(crate) pin: Vec<usize>,
    /// How connections are served: coroutine, or thread (for comparison; levels have no effect)
    #[arg(
        long,
        value_enum,
        default_value = "coroutine",
        hide_possible_values = true
    )]
    pub(crate) model: Model,
    /// Priority level of the connections: 0 (most urgent) to 63
    #[arg(long, value_name = "LEVEL", default_value_t = 32, value_parser = values::level)]
    pub(crate) level: u8,
    /// Preempt long polls when equally or more urgent work waits: on or off (coroutine model)
    #[arg(long, value_enum, default_value = "off", hide_possible_values = true)]
    pub(crate) preempt: Switch,
    /// Longest run of a coroutine while an equally urgent one waits, e.g. `50us` (coroutine model)
    #[arg(long, value_name = "TIME", value_parser = upshift_units::positive_duration)]
    pub(crate) quantum: Option<Duration>,
    /// I/O driver: auto (io_uring if it works), ring, or readiness (coroutine model)
    #[arg(long, value_enum, default_value = "auto", hide_possible_values = true)]
    pub(crate) driver: DriverChoice,
    /// Join the machine's daemon: off, auto (if there is one), or required (coroutine model)
    #[arg(long, value_enum, default_value = "off", hide_possible_values = true)]
    pub(crate) board: BoardChoice,
    /// Allow `upshift top` to inspect the server (coroutine model)
    #[arg(long)]
    pub(crate) observe: bool,
}

/// The I/O driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DriverChoice {
    /// io_uring if it works here
    Auto,
    /// io_uring
    Ring,
    /// epoll, and threads for files
    Readiness,
}

impl From<DriverChoice> for upshift::Driver {
    fn from(choice: DriverChoice) -> upshift::Driver {
        match choice {
            DriverChoice::Auto => upshift::Driver::Auto,
            DriverChoice::Ring => upshift::Driver::Ring,
            DriverChoice::Readiness => upshift::Driver::Readiness,
        }
    }
}

/// Whether to join the machine's daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BoardChoice {
    /// No
    Off,
    /// If there is one
    Auto,
    /// Fail without it
    Required,
}

impl From<BoardChoice> for upshift::Board {
    fn from(choice: BoardChoice) -> upshift::Board {
        match choice {
            BoardChoice::Off => upshift::Board::Off,
            BoardChoice::Auto => upshift::Board::Auto,
            BoardChoice::Required => upshift::Board::Required,
        }
    }
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    /// On
    On,
    /// Off
    Off,
}

/// Flags of `upshift load`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  upshift load matrix --connect 127.0.0.1:7000 --connections 64 --size 8
  upshift load matrix --connect 127.0.0.1:7000@urgent --connect 127.0.0.1:7001@background \\
                      --connections 8 --size 20 --rate 20000
  upshift load http --connect 127.0.0.1:8000 --connections 64 --pipeline 16
  upshift load spin --connect 127.0.0.1:7000 --rate 20000 --long-share 0.5%

Closed loop: a connection sends its next request when the reply is there. Open loop (--period,
--rate): requests are due at fixed times, and latency counts from the time a request was due.
The exit code is 1 when a request failed.")]
pub(crate) struct LoadArgs {
    /// Kind of request
    #[command(subcommand)]
    pub(crate) work: LoadWork,
}

/// The kinds of work `upshift load` knows.
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
    /// Warm-up time before measuring
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = upshift_units::duration)]
    pub(crate) warmup: Duration,
    /// Measuring time
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = upshift_units::positive_duration)]
    pub(crate) duration: Duration,
    /// CPU the client runs on
    #[arg(long, value_name = "CPU", value_parser = values::cpu)]
    pub(crate) pin: Option<usize>,
    /// Run the client in SCHED_FIFO, so that programs on its CPU do not delay it; open loop
    /// only
    #[arg(long, requires = "open")]
    pub(crate) elevate: bool,
    /// Process of the server, to report its CPU time per request
    #[arg(long, value_name = "PID", value_parser = values::pid)]
    pub(crate) server_pid: Option<u32>,
    /// Print JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// Flags of the hidden `upshift spawn-test`.
#[derive(Debug, Args)]
pub(crate) struct SpawnTestArgs {
    /// How many to spawn
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = values::count)]
    pub(crate) count: usize,
    /// What to spawn: coroutine or thread
    #[arg(
        long,
        value_enum,
        default_value = "coroutine",
        hide_possible_values = true
    )]
    pub(crate) model: Model,
    /// Print JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    fn error_of(line: &str) -> String {
        parse(line).expect_err("must be refused").to_string()
    }

    #[test]
    fn definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn server_flags_parse() {
        let cli = parse(
            "upshift matrix-server --listen 127.0.0.1:7000@5 --listen [::1]:7001 --vcpus 2 \
             --pin 0,0 --model thread --level 7",
        )
        .unwrap();
        let Command::MatrixServer(args) = cli.command else {
            panic!("wrong command")
        };
        assert_eq!(args.listen.len(), 2);
        assert_eq!(args.listen[0].level, Some(5));
        assert_eq!(args.listen[1].level, None);
        assert_eq!(args.vcpus, Some(2));
        assert_eq!(args.pin, [0, 0]);
        assert_eq!(args.model, Model::Thread);
        assert_eq!(args.level, 7);
    }

    #[test]
    fn preemption_is_off_unless_asked_for() {
        let parsed = |more: &str| {
            let line = format!("upshift spin-server --listen 127.0.0.1:7000 {more}");
            let Command::SpinServer(args) = parse(&line).unwrap().command else {
                panic!("wrong command")
            };
            (args.preempt, args.quantum)
        };
        assert_eq!(parsed(""), (Switch::Off, None));
        let quantum = Some(Duration::from_micros(50));
        assert_eq!(parsed("--preempt on --quantum 50us"), (Switch::On, quantum));
        let text = error_of("upshift matrix-server --listen 127.0.0.1:7000 --preempt perhaps");
        assert!(text.contains("on") && text.contains("off"), "{text}");
        assert!(parse("upshift plaintext-server --listen 127.0.0.1:1 --quantum 0s").is_err());
    }

    #[test]
    fn level_64_is_refused_with_the_allowed_range() {
        for line in [
            "upshift matrix-server --listen 127.0.0.1:7000 --level 64",
            "upshift plaintext-server --listen 127.0.0.1:7000@64",
            "upshift matrix-server --listen 127.0.0.1:7000 --level=-1",
        ] {
            let text = error_of(line);
            assert!(text.contains("0 (most urgent) to 63"), "{text}");
        }
    }

    #[test]
    fn unknown_values_name_the_allowed_ones() {
        let text = error_of("upshift matrix-server --listen 127.0.0.1:7000 --model fibre");
        assert!(
            text.contains("coroutine") && text.contains("thread"),
            "{text}"
        );
        let text = error_of("upshift demo --only 7");
        assert!(text.contains("1 to 6"), "{text}");
        let text = error_of("upshift load matrix --connect 127.0.0.1:1 --period 5weeks");
        assert!(text.contains("100ms"), "{text}");
        let text = error_of("upshift load ftp");
        assert!(text.contains("ftp"), "{text}");
    }

    #[test]
    fn open_and_closed_loop_exclude_each_other() {
        let base = "upshift load matrix --connect 127.0.0.1:1";
        assert!(parse(&format!("{base} --closed --rate 5")).is_err());
        assert!(parse(&format!("{base} --period 1ms --rate 5")).is_err());
        assert!(parse(&format!("{base} --closed")).is_ok());
    }

    #[test]
    fn no_arguments_show_the_help() {
        let error = parse("upshift").expect_err("help is an early exit");
        assert!(error.to_string().contains("demo"));
    }

    #[test]
    fn every_visible_subcommand_has_examples() {
        for command in Cli::command()
            .get_subcommands()
            .filter(|c| !c.is_hide_set())
        {
            let help = command
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            assert!(
                help.contains("Examples"),
                "{} has no examples",
                command.get_name()
            );
        }
    }
}
