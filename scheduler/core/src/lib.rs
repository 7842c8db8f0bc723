//! The priority scheduler of Upshift: coroutines with a control block and a
//! level, one bitmap, FIFO queues, O(1) everything.
//!
//! The crate is `no_std` + `alloc` and knows no operating system. A process, a
//! kernel and a test are three implementations of [`Host`]. There are no globals
//! and no thread-locals: all state hangs off a [`Domain`] and its vCPUs.
//!
//! ```text
//!   Domain ── table of slots (id → control block)
//!     │
//!     ├─ Vcpu 0 ── inbox ──► ready queues + bitmap ──► pick ──► poll
//!     ├─ Vcpu 1 ── …            ▲      ▲                          │
//!     ⋮                   wake ─┘      └── yielded ◄──────────────┘
//! ```
//!
//! # Invariants
//!
//! 1. *Order*: a vCPU starts no poll while something more urgent is ready on it;
//!    FIFO within a level; across vCPUs a more urgent ready coroutine waits for
//!    at most one poll of a less urgent one.
//! 2. *No lost, no doubled wake*, from any thread, at any moment: `state.rs`.
//! 3. *One at a time*: no coroutine is polled by two threads at once.
//! 4. *O(1)*: pick, enqueue, wake and `reprio` in any state.
//! 5. *Bitmap = truth*: bit L is set iff level L has a ready coroutine.
//! 6. *Bounded*: a coroutine is in one queue at most and brings its own links.
//!
//! # Where things are
//!
//! | file | concern |
//! |---|---|
//! | `state.rs` | the state word: ownership of a coroutine, wakes, exits, references |
//! | `coroutine.rs` | the control block, a slot of the table, and the future's allocation |
//! | `sites.rs` | where coroutines are spawned, and what their types decide, by number |
//! | `table.rs` | ids: slots that never move |
//! | `queue.rs` | 64 levels, bitmap, doubly linked FIFO lists |
//! | `inbox.rs` | wakes from other threads |
//! | `lock.rs` | the vCPU's lock |
//! | `vcpu.rs` | pick, enqueue, steal, park |
//! | `running.rs` | a poll and what becomes of it |
//! | `domain.rs` | the handles: spawn, wake, reprio, cancel, shut down |
//! | `loans.rs` | what waiters lend to the holder of their locks |
//! | `join.rs`, `waker.rs` | results and wakers |
//! | `token_bucket.rs` | an allowance that refills with time |
//! | `stats.rs` | counters and histograms per level |
//! | `watch.rs` | how long polls take, for a watchdog |
//! | `host.rs` | what the scheduler asks of its surroundings |
//!
//! # Example
//!
//! ```
//! use core::ptr::NonNull;
//! use upshift_core::{Config, Domain, Host, Level, Picked, Polled, Priority, Vcpu};
//!
//! struct Bare;
//! // SAFETY: no thread claims to serve a vCPU.
//! unsafe impl Host for Bare {
//!     fn waker_table() -> &'static core::task::RawWakerVTable {
//!         upshift_core::waker_table!(Bare)
//!     }
//!     fn now(&self) -> u64 { 0 }
//!     fn current(&self) -> Option<NonNull<Vcpu<Bare>>> { None }
//!     fn pend(&self, _vcpu: usize) {}
//! }
//!
//! let domain = Domain::new(Bare, Config::default());
//! let vcpu = domain.add_vcpu()?;
//! domain.spawn(async { println!("later") }, Priority::At(Level::at::<40>()))?.detach();
//! domain.spawn(async { println!("first") }, Priority::At(Level::at::<4>()))?.detach();
//!
//! let mut back = None;
//! while let Some(Picked::Poll(coroutine)) = vcpu.pick(back.take()) {
//!     if let Polled::Yielded(coroutine) = coroutine.poll() {
//!         back = Some(coroutine);
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]
#![no_std]

extern crate alloc;

mod base;
mod coroutine;
mod domain;
mod poll;
pub mod preempt;
mod sync;
mod tables;
mod vcpu;

pub use base::config::{Config, MAX_VCPUS, SpawnError, SpawnOptions, TooManyVcpus};
pub use base::host::{Host, Panic};
pub use base::id::{CoroutineId, Dead};
pub use base::level::{LEVELS, Level, LevelError, Priority};
pub use base::stats::{BUCKETS, LevelStats, WaitHistogram};
pub use base::token_bucket::TokenBucket;
pub use coroutine::{CONTROL_BLOCK_BYTES, Kind, State};
pub use domain::{Domain, Executor};
pub use poll::cancel::CancelHandle;
pub use poll::join::{JoinError, JoinHandle, Payload};
pub use poll::running::{Picked, Polled, Running, Yielded};
#[doc(hidden)]
pub use poll::waker::new_table;
pub use vcpu::trace::{Change, Step};
pub use vcpu::{Aside, Place, Poll, Vcpu};
