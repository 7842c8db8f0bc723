//! A priority scheduler for coroutines. It is a thread-per-core io_uring runtime in which every
//! coroutine has a level, and the most urgent ready coroutine runs next. A *vCPU* is the right to
//! run on one CPU, with its ready queues and its io_uring.
//!
//! ```
//! use upshift::{Level, Priority, time};
//! use std::time::Duration;
//!
//! #[upshift::main]
//! async fn main() -> std::io::Result<()> {
//!     // Level 0 is the most urgent, 63 the least. A child inherits the level of its parent.
//!     let batch = upshift::spawn(
//!         async {
//!             for _ in 0..1000 {
//!                 // … a piece of work, then let more urgent coroutines run:
//!                 upshift::yield_if_needed().await;
//!             }
//!         },
//!         Level::at::<40>(),
//!     );
//!     let urgent = upshift::spawn(
//!         async { time::sleep(Duration::from_millis(1)).await },
//!         Level::at::<2>(),
//!     );
//!     urgent.await.unwrap();
//!     batch.await.unwrap();
//!     Ok(())
//! }
//! ```
//!
//! # Guarantees
//!
//! * A vCPU starts no poll while a more urgent coroutine is ready on it. Within a level, coroutines
//!   run in FIFO order. Across vCPUs, a more urgent coroutine waits for at most one less urgent
//!   poll.
//! * No wake is lost or counted twice, whichever thread it comes from.
//! * [`reprio`] moves a queued coroutine to its new level, in constant time.
//! * A buffer is freed only after the kernel has finished with it; dropping a
//!   future cancels its operation.
//!
//! Without preemption a vCPU is cooperative, so nothing interrupts a poll that does not return. Use
//! [`yield_if_needed`] in loops that compute, and [`spawn_blocking`] for calls that block.
//!
//! # Where things are
//!
//! | module | concern |
//! |---|---|
//! | `runtime` | builder, shutdown, the state that all vCPUs share |
//! | `worker` | the loop of a vCPU, and its thread |
//! | `preempt` | suspension of polls, the watcher that decides it, a permit to use the vCPU |
//! | `stand_in` | service of a busy vCPU's ring and timers by an idle one |
//! | `board` | the connection to `upshift daemon`, which elevates threads with urgent work |
//! | `context`, `host` | access from a thread to its vCPU |
//! | `coroutine` | spawning, preemption test and budget |
//! | `blocking` | threads for functions that block |
//! | `user_code` | calls of the user's wakers, destructors and hooks |
//! | `memory` | allocation of futures and control blocks |
//! | `tokio` (feature `tokio-rt`) | a runtime of tokio beside this one |
//! | [`task`] | coroutines under tokio's names: spawning, `JoinHandle`, `JoinSet` |
//! | [`net`], [`fs`], [`process`], [`signal`], [`time`], [`sync`] | the API for programs |
//! | [`io`] | the I/O traits of the ecosystem, and copying |
//! | `tls` | TLS over any of the streams (feature `tls`) |
//! | [`metrics`] | counters and histograms |
//! | [`observe`] | stalls, spans, the live view |
//! | [`trace`] | a timeline of coroutines and vCPUs |
//! | [`sys`] | system calls in a blocking and an asynchronous form |
//! | `axum` (feature) | `axum::serve` on this runtime, with a level per request; names of routes |
//! | `hyper` (feature) | hyper, axum and tower on this runtime |

#![cfg_attr(docsrs, feature(doc_cfg))]
mod affinity;
#[cfg(feature = "axum")]
pub mod axum;
mod blocking;
mod board;
mod context;
mod coroutine;
pub mod fs;
mod host;
#[cfg(feature = "hyper")]
pub mod hyper;
pub mod io;
mod memory;
pub mod metrics;
pub mod net;
mod notice;
pub mod observe;
mod preempt;
pub mod process;
mod runtime;
pub mod signal;
mod stand_in;
pub mod sync;
pub mod sys;
pub mod task;
pub mod time;
#[cfg(feature = "tls")]
pub mod tls;
mod tokio;
pub mod trace;
mod user_code;
mod worker;

pub(crate) use upshift_elevate::futex;

/// The macros of `sys` expand to paths through this re-export.
#[doc(hidden)]
pub use sys as calls;

pub use board::{Board, BoardStats};
pub use coroutine::coop::{YieldIfNeeded, need_preempt, yield_if_needed, yield_now};
pub use coroutine::{
    LocalHandle, alloc_cpu, current_level, get_cid, get_vcpu, release_cpu, reprio, spawn,
    spawn_blocking, spawn_local, try_spawn, try_spawn_blocking, wake,
};
pub use host::Linux;
pub use notice::errno_of;
pub use observe::named;
pub use preempt::{Preemption, PreemptionStats, no_suspend};
pub use runtime::Runtime;
pub use runtime::builder::Builder;
pub use runtime::driver::Report;
pub use runtime::handle::Handle;
pub use runtime::stats::LevelStats;
pub use task::{JoinError, JoinHandle};
pub use upshift_core::{
    CoroutineId, Dead, LEVELS, Level, LevelError, ParseLevelError, Priority, SpawnError, State,
};
pub use upshift_macros::{main, test};
pub use upshift_ring::{Driver, Mode, RecvBuf};

/// The program of the README is compiled with the examples of the documentation.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// The guide to levels is compiled, too.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/levels.md")]
struct Levels;
