//! Values of flags that several commands have: models, drivers, the board, switches.

use clap::ValueEnum;

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
