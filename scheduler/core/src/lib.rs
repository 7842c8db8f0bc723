//! The priority scheduler of Upshift, which decides which coroutine a worker thread polls next. A
//! coroutine is a future with a control block and a *level*, its priority. A *vCPU* is served by
//! one worker thread at a time. It has a FIFO queue per level, and a bitmap of the levels that are
//! not empty. To *pick* is to take the next coroutine to poll out of these queues. Scheduling
//! operations take O(1).
//!
//! The crate is `no_std` + `alloc` and knows no operating system. A process, a kernel and a test
//! are three implementations of [`Host`]. There are no globals and no thread-locals, because all
//! state belongs to a [`Domain`] and its vCPUs.
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
//! 1. *Order*: a vCPU starts no poll while a more urgent coroutine is ready on it; a level is FIFO;
//!    across vCPUs a more urgent ready coroutine waits for at most one poll of a less urgent one.
//! 2. *No wake is lost or doubled*, from any thread, at any moment: see `coroutine/state.rs`.
//! 3. *One at a time*: no coroutine is polled by two threads at once.
//! 4. *O(1)*: pick, enqueue, wake and `reprio` in any state.
//! 5. *Bitmap = truth*: bit L is set iff level L has a ready coroutine.
//! 6. *Bounded*: a coroutine is in one queue at most and contains its own links, so queues need no
//!    memory.
//!
//! # Folders
//!
//! | folder | concern |
//! |---|---|
//! | `domain/` | the handles: spawn, wake, reprio, cancel, shut down; the right to serve a vCPU |
//! | `poll/` | the poll of a coroutine and its outcome; wakers, join handles |
//! | `vcpu/` | pick, enqueue, wake, steal, park, suspend; the state that a domain's vCPUs share |
//! | `preempt/` | the decision to suspend a poll |
//! | `tables/` | slots of coroutines that never move; 64 levels, bitmap, doubly linked FIFO lists |
//! | `coroutine/` | the control block, its state word, the future's allocation, lent levels |
//! | `base/` | levels, ids, counters, lock, inbox; `Host`, the interface to the environment |
//!
//! A folder uses only the folders below it in the table. There are two cycles of files:
//! `vcpu/shared.rs` with `vcpu/release.rs`, and the files of the control block. `coroutine/` stores
//! the address of a vCPU without its type.
//!
//! # Example
//!
//! ```
//! use upshift_core::{Config, Domain, Host, Level, Picked, Polled, Priority, ServedVcpu};
//!
//! struct Bare;
//! // SAFETY: no thread claims to serve a vCPU.
//! unsafe impl Host for Bare {
//!     fn waker_table() -> &'static core::task::RawWakerVTable {
//!         upshift_core::waker_table!(Bare)
//!     }
//!     fn now(&self) -> u64 { 0 }
//!     fn current(&self) -> Option<ServedVcpu> { None }
//!     fn kick(&self, _vcpu: usize) {}
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

pub use base::config::{Config, Floor, MAX_VCPUS, SpawnError, SpawnOptions, TooManyVcpus};
pub use base::events::{Change, Poll, Step};
pub use base::host::{Host, Panic, ServedVcpu};
pub use base::id::{CoroutineId, Dead};
pub use base::kind::{Kind, QueueEnd, State};
pub use base::level::{LEVELS, Level, LevelError, ParseLevelError, Priority};
pub use base::stats::{BUCKETS, LevelStats, TickHistogram, WaitHistogram};
pub use base::token_bucket::TokenBucket;
pub use coroutine::CONTROL_BLOCK_BYTES;
pub use coroutine::join_error::{JoinError, Payload};
pub use domain::{Domain, Executor};
pub use poll::cancel::CancelHandle;
pub use poll::join::JoinHandle;
pub use poll::running::{Picked, Polled, Running, Yielded};
#[doc(hidden)]
pub use poll::waker::new_table;
pub use vcpu::{SetAside, Vcpu};
