//! The drivers of Upshift: one ring per vCPU thread, speaking [`std::task::Waker`] and nothing else. It is an io_uring, or, where that
//! is missing or forbidden, stands on readiness ([`Driver`]); the two part in `backend.rs`, below the slots.
//!
//! It knows no coroutines and no scheduler. It has no globals and no thread-locals: the owner of the thread owns the
//! [`Ring`]. One system call per turn of the owner's loop, [`Ring::wait`] or [`Ring::submit`], hands over everything that was
//! started and fetches everything that has completed.
//!
//! # How an operation travels
//!
//! ```text
//!          1 start, room              4 terminal completion         6 poll: output taken
//!   Free ─────────────────▶ Flying ─────────────────────────▶ Done ──────────────────────▶ Free
//!     │                     ▲   │                               │
//!     │ 2 start, no room    │   │ 5 handle dropped: cancel      │ 8 handle dropped: output disposed of
//!     └──────────▶ Backlog ─┘   ▼                               └──────────────────────────▶ Free
//!                   3 submit  Flying, orphan ───────────────────────────────────────────────▶ Free
//!                                             7 terminal completion: output disposed of
//! ```
//!
//! 1. [`Ring::start`] takes a slot, moves the operation into it and writes its entry into the submission queue.
//! 2. With the queue full the slot waits in the backlog of its level instead. So does a copy to the page cache while others are in the kernel and
//!    something more urgent is in flight (`admission.rs`).
//! 3. The next [`submit`](Ring::submit) or [`wait`](Ring::wait) drains the backlog, most urgent level first.
//! 4. [`reap`](Ring::reap) reads the completion, stores the result in the slot, and wakes the handle's waker.
//! 5. A handle dropped too early cancels; the slot, and with it every buffer, stays until the
//!    kernel is done. [`Ring::settle`] brings that about at once, for all of a descriptor.
//! 6. The [`Submission`] takes the operation out of the slot and turns it into its output, on the thread that polls.
//! 7. What completes without a handle is disposed of: buffers are freed, descriptors closed.
//! 8. So is what was not taken.
//!
//! Streams ([`AcceptMulti`], [`RecvMulti`], [`DatagramMulti`]) occupy a slot for as long as they live and get each completion as an event in
//! another; how they are stopped, starved and armed again is drawn in `stream.rs`. Completions carry generation and index of
//! their slot, so one that comes late never hits the slot's next occupant.
//!
//! # Ownership
//!
//! * The ring and everything marked "owner" belong to the ring's thread; handles may be polled and dropped on any. Its
//!   user-space side may change hands (`owner.rs`), and be watched from elsewhere (`watch.rs`).
//! * A handle and the ring meet in one word of the slot (`inbox.rs`, model-checked) and in the mailbox (`mailbox.rs`), which
//!   handles on other threads use to cancel, to ask for more, and to give slots and buffers back.
//! * A buffer belongs to its operation, the operation to its slot, until the terminal completion. A descriptor is kept open by
//!   the operations on it ([`Fd`]).
//! * A received buffer ([`RecvBuf`]) belongs to its holder, and to the kernel again once dropped.
//! * Memory is freed when the ring and its last handle are gone; [`Ring::shutdown`] first drains the kernel.
//!
//! # What it costs
//!
//! Per operation, on the ring's thread: no system call, no lock, no allocation up to 64 bytes of operation, one atomic
//! read-modify-write to deliver the result, two to clone and drop the [`Fd`], and whatever the waker costs. A request of a
//! server (an event of a [`RecvMulti`] and a [`op::Send`]) comes to two of these. On another thread, polling adds a
//! read-modify-write and giving back a lock.
//!
//! # Faults
//!
//! | fault | what happens |
//! |---|---|
//! | no io_uring, or one that lacks something | readiness, unless io_uring is asked for; then [`Ring::new`] says what to change ([`SetupError`]) |
//! | not enough descriptors or memory | [`Ring::new`] says what to change |
//! | submission queue full | the backlog, by level |
//! | completion queue full | the kernel keeps the rest; the next submit or wait fetches it |
//! | too many operations | EBUSY from the operation |
//! | no receive buffer | the stream allocates one, if it has nothing unread, or stops; datagrams wait |
//! | slow consumer of a stream | the stream stops and goes on later |
//! | EMFILE while accepting | an error from [`AcceptMulti`], which goes on at the next poll |
//! | waker or destructor of users that takes long | a runtime takes it along and runs it elsewhere ([`Ring::take_foreign`]) |
//! | handle dropped with I/O in flight | cancelled; memory stays until the kernel is done |
//! | ring dropped with I/O in flight | cancelled, drained, closed, freed, in this order |

//! # How it is checked
//!
//! Tests run on the real kernel, and once more where io_uring is forbidden (`cargo xtask test readiness`). The two state words under loom,
//! everything under the address sanitizer:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test --release -p upshift-ring --lib
//! RUSTFLAGS=-Zsanitizer=address RUSTDOCFLAGS=-Zsanitizer=address \
//!     cargo +nightly test -p upshift-ring --target x86_64-unknown-linux-gnu
//! RUSTFLAGS=-Zsanitizer=thread cargo +nightly test -Zbuild-std -p upshift-ring \
//!     --target x86_64-unknown-linux-gnu --test threads
//! cargo +nightly miri test -p upshift-ring --lib -- slab backlog pool address
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_op_in_unsafe_fn)]

mod accept;
mod address;
mod admission;
mod backend;
mod backlog;
mod buffer;
mod catch_panic;
mod config;
mod consumer;
mod counters;
mod datagram;
mod driver;
mod ends;
mod fd;
mod foreign;
mod inbox;
mod mailbox;
mod offload;
pub mod op;
mod operation;
mod owner;
mod pool;
mod pools;
mod probe;
mod readiness;
mod recv;
mod remote;
mod ring;
mod setup;
mod shared;
mod slab;
mod slot;
mod stream;
mod submission;
mod sync;
mod turn;
mod uring;
mod watch;

pub use accept::AcceptMulti;
pub use address::Address;
pub use buffer::{IoBuf, IoBufMut, Slice};
pub use catch_panic::catch_panic;
pub use config::{Config, Driver, Mode, Stats};
pub use datagram::{Datagram, DatagramMulti};
pub use fd::{Fd, WeakFd};
pub use foreign::Foreign;
/// The submission queue entry that an [`Operation`] describes itself by.
pub use io_uring::squeue::Entry;
pub use offload::{Job, Offload};
pub use operation::Operation;
pub use owner::{Bracket, Owner, Proxy};
pub use probe::ring as probe_ring;
pub use recv::{RecvBuf, RecvMulti};
pub use remote::Remote;
pub use ring::{Ring, StoodIn};
pub use setup::SetupError;
pub use submission::Submission;
pub use watch::Watch;
