//! Tools that show what a runtime does: reports of stalls (polls that take too long), `tracing`
//! spans, and the socket of the live view.
//!
//! | file | concern |
//! |---|---|
//! | `names` | names of work, counted and shown instead of spawn locations |
//! | `longest` | the longest polls by name or spawn location, and stalls to be reported |
//! | `watchdog` | the thread that looks for polls that take too long |
//! | `monitor` | the state that the watchdog and the vCPUs share |
//! | `starved` | levels with ready coroutines that are not polled |
//! | `span` | a `tracing` span per coroutine (feature `tracing`) |
//! | `directory`, `view` | the socket that `upshift top` attaches to (feature `observe`) |
//!
//! The search for stalls costs a vCPU's thread little. The thread only records the end of a watched
//! poll, at most once per look of the watchdog, and takes one uncontended lock for that.

#[cfg(feature = "observe")]
mod directory;
mod longest;
mod monitor;
mod names;
mod span;
mod starved;
#[cfg(feature = "observe")]
mod view;
mod watchdog;

#[cfg(feature = "observe")]
pub use directory::{SocketName, socket_dir, sockets, sockets_of};
#[cfg(feature = "tracing")]
pub use longest::to_tracing;
pub use longest::{Stall, to_stderr};
#[cfg(feature = "observe")]
pub use view::{PROTOCOL, Recording, View};

pub use names::{Named, named};

pub(crate) use longest::{LongestPolls, NamedPoll, OnStall, report_panic};
pub(crate) use monitor::Monitor;
pub(crate) use names::Names;
pub(crate) use span::traced;
#[cfg(feature = "observe")]
pub(crate) use view::Server;
pub(crate) use watchdog::Watchdog;
