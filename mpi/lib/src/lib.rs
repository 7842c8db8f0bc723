//! Runs MPI programs on the coroutine scheduler Upshift. A request of MPI is a future, and a
//! *level* (the urgency of a coroutine, 0 to 63, 0 is the most urgent) is passed from rank to rank
//! with a request.
//!
//! The crate is for MPI programs whose ranks also serve requests, or overlap communication and
//! computing. [`Launch`] starts a rank, [`World`] contains all ranks, and [`Comm`] has messages and
//! collectives. Each of these is an [`Operation`] that can be awaited:
//!
//! ```no_run
//! use upshift_mpi::{Launch, Op, Result};
//!
//! fn main() -> Result<()> {
//!     Launch::new().run(async |world| {
//!         let comm = world.comm();
//!         let next = (world.rank() + 1) % world.size();
//!         let previous = (world.rank() + world.size() - 1) % world.size();
//!         let sent = comm.isend(vec![world.rank() as u64; 1000], next, 7);
//!         let message = comm.irecv(vec![0u64; 1000], previous, 7).await?;
//!         assert_eq!(message.data[0], previous as u64);
//!         sent.await?;
//!         comm.allreduce(vec![1u64], Op::Sum).await.map(drop)
//!     })
//! }
//! ```
//!
//! | module | concern |
//! |---|---|
//! | `launch` | start and end: MPI, runtime, watchdog |
//! | `table` | the requests and their buffers |
//! | `job` | the lock under which MPI is called |
//! | `progress` | the coroutine that asks MPI for completions |
//! | `operation` | the future of a request |
//! | `comm`, `constructors`, `point`, `collective`, `persistent` | the functions of MPI |
//! | `serve` | requests with a level between ranks |
//! | `node` | pages and wake-ups that the ranks of a node share |
//! | `watchdog`, `lifeline` | the death of a rank, on this host or on another |
//! | `data`, `error`, `peers` | types of items; errors; the ranks that an operation concerns |
//!
//! # Drop and cancel
//!
//! An operation runs from the call that creates it. Dropping a receive cancels it, and loses a
//! message that it has already received; [`Operation::cancel`] loses no message. A dropped send or
//! collective completes in the background. A buffer is freed only after MPI has finished with it,
//! whether the future is alive or not.
//!
//! # Bindings
//!
//! The crate `mpi-sys` generates its bindings from the `mpi.h` of the installed library. The crate
//! `mpi` above it ties a request to a value that panics when it is dropped early, so it cannot be
//! the base of a future.

mod collective;
mod comm;
mod constructors;
mod data;
mod error;
mod job;
mod launch;
mod lifeline;
mod node;
mod operation;
mod peers;
mod persistent;
mod point;
mod progress;
mod serve;
mod table;
mod watchdog;

pub use comm::Comm;
pub use data::{Datatype, Number, Op, SendBuf};
pub use error::{Death, Error, Result, Threads};
pub use launch::Launch;
pub use operation::Operation;
pub use persistent::Persistent;
pub use point::{Message, Received, Source, Tag};
pub use serve::{MAX_HANDLERS, Request, World};
pub use watchdog::EXIT_STATUS;

/// The program of the documentation page, compiled with the doc tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/mpi.md")]
struct Page;
