//! Defines the flags that several commands share, and their values.

use std::io::Write;
use std::time::Duration;

use clap::{Args, ValueEnum};

/// How the coroutines of a server share the CPUs with each other and with other processes.
#[derive(Debug, Clone, Args)]
pub(crate) struct SchedulingArgs {
    /// Preempt long polls when equally or more urgent work waits: on or off
    #[arg(long, value_enum, default_value = "off", hide_possible_values = true)]
    pub(crate) preempt: Switch,
    /// Longest run of a coroutine while an equally urgent one waits, e.g. `50us`
    #[arg(long, value_name = "TIME", value_parser = upshift_units::positive_duration)]
    pub(crate) quantum: Option<Duration>,
    /// Join the machine's daemon: off, auto (if there is one), or required
    #[arg(long, value_enum, default_value = "off", hide_possible_values = true)]
    pub(crate) board: BoardChoice,
}

/// Model of a batch process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Model {
    /// Coroutines on the Upshift runtime
    Coroutine,
    /// Threads of the operating system; levels have no effect
    Thread,
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
    /// No daemon
    Off,
    /// The daemon, if there is one
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

impl BoardChoice {
    /// Reports on standard error that there is no daemon to join yet. If `UPSHIFT_DAEMON_SOCKET`
    /// names a socket, the runtime reports the missing daemon instead.
    pub(crate) fn warn_if_absent(self) {
        if self == BoardChoice::Auto && upshift_board::client::find().is_none() {
            // Ignore errors: standard error may be closed.
            let _ = writeln!(
                std::io::stderr(),
                "--board auto: there is no daemon; this process joins it as soon as `upshift daemon` runs"
            );
        }
    }
}

/// A switch. `true` and `false`, as in configuration files, are aliases of on and off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    /// On
    #[value(alias = "true")]
    On,
    /// Off
    #[value(alias = "false")]
    Off,
}
