//! The I/O drivers of Upshift. Each worker thread of a runtime has a ring, whose only interface to
//! the scheduler is [`std::task::Waker`]. A ring is an io_uring or, where io_uring is missing or
//! forbidden, a readiness driver based on epoll ([`Driver`]). The code above `backend.rs` is the
//! same for both.
//!
//! The crate knows neither coroutines nor a scheduler. A [`Ring`] is a plain value; no global or
//! thread-local variable refers to it. One system call per iteration of the owner's loop,
//! [`Ring::wait`] or [`Ring::submit`], hands over all operations that were started and fetches all
//! completions.
//!
//! # The life of an operation
//!
//! ```text
//!          1 start, room              4 terminal completion         6 poll: output taken
//!   Free ─────────────────▶ InFlight ───────────────────────▶ Done ──────────────────────▶ Free
//!     │                     ▲   │                               │
//!     │ 2 start, no room    │   │ 5 handle dropped: cancel      │ 8 handle dropped: dispose
//!     └──────────▶ Backlog ─┘   ▼                               └──────────────────────────▶ Free
//!                   3 submit  InFlight, orphan ────────────────────────────────────────────▶ Free
//!                                             7 terminal completion: dispose
//! ```
//!
//! 1. [`Ring::start`] takes a slot, moves the operation into it and writes its entry into the
//!    submission queue.
//! 2. If the queue is full, the slot waits in the backlog of its level. A copy to the page cache
//!    may also wait, *held*, while other copies are in the kernel and a more urgent operation is in
//!    flight (`copy_limit.rs`).
//! 3. The next [`submit`](Ring::submit) or [`wait`](Ring::wait) drains the backlog, most urgent
//!    level first.
//! 4. [`reap`](Ring::reap) reads the completion, stores the result in the slot, and wakes the
//!    handle's waker.
//! 5. Dropping the handle of an operation in flight cancels the operation. The slot, and with it
//!    every buffer, stays until the kernel is done. [`Ring::settle`] completes this at once for all
//!    operations on a descriptor.
//! 6. The [`Submission`] takes the operation out of the slot and turns it into its output, on the
//!    thread that polls.
//! 7. The output of an operation without a handle (an *orphan*) is disposed of, that is, buffers
//!    are freed and descriptors closed.
//! 8. An output that was not taken is disposed of in the same way.
//!
//! Streams ([`AcceptMulti`], [`RecvMulti`], [`DatagramMulti`]) occupy a slot while they live and
//! get each completion as an event in another slot. A diagram in `stream.rs` shows how they stop,
//! wait for buffers and continue. Completions carry the generation and the index of their slot, so
//! a late completion never reaches the slot's next occupant.
//!
//! # Ownership
//!
//! * Only the ring's thread, its *owner*, may use the ring and the modules marked "owner only";
//!   handles may be polled and dropped on any thread. Another thread may become the owner of the
//!   user-space side (`owner.rs`), and other threads may watch the ring (`watch.rs`).
//! * A handle gets completions through one atomic word of the slot (`inbox.rs`, model-checked). A
//!   handle on another thread sends messages to the ring through the mailbox (`mailbox.rs`), which
//!   cancel operations, request more events, and return slots and buffers.
//! * A buffer belongs to its operation, and the operation to its slot, until the terminal
//!   completion. Operations keep their descriptor open ([`Fd`]).
//! * A received buffer ([`RecvBuf`]) belongs to its holder. When the holder drops it, the buffer
//!   belongs to the kernel again.
//! * Memory is freed when the ring and its last handle are gone; [`Ring::shutdown`] first drains
//!   the kernel.
//!
//! # Cost
//!
//! On the ring's thread an operation costs no system call, no lock and, up to 64 bytes, no
//! allocation. It costs one atomic read-modify-write to deliver the result, two to clone and drop
//! the [`Fd`], and the cost of the waker. A server that handles a request (an event of a
//! [`RecvMulti`] and a [`op::Send`]) pays for two such operations. On another thread, polling adds
//! a read-modify-write, and returning the slot adds a lock.
//!
//! # Faults
//!
//! | fault | consequence |
//! |---|---|
//! | io_uring missing or too limited | readiness; error [`SetupError`] if [`Driver::Ring`] is set |
//! | not enough descriptors or memory | [`Ring::new`] fails and says which limit to change |
//! | submission queue full | the operation waits in the backlog of its level |
//! | completion queue full | the kernel keeps the rest until the next submit or wait |
//! | too many operations | EBUSY from the operation |
//! | no receive buffer | the stream allocates one if nothing is unread, or stops; datagrams wait |
//! | slow consumer of a stream | the stream stops and resumes later |
//! | EMFILE while accepting | an error from [`AcceptMulti`]; the next poll resumes |
//! | slow waker or destructor of users | a runtime runs it elsewhere ([`Ring::take_deferred`]) |
//! | handle dropped with I/O in flight | cancelled; memory stays until the kernel is done |
//! | ring dropped with I/O in flight | cancelled, drained, closed, freed, in this order |
//!
//! # How it is checked
//!
//! Tests run on the real kernel, and once more with io_uring forbidden (`cargo xtask test
//! readiness`). The two state words (`inbox.rs`, `remote.rs`) are checked under loom, everything
//! under the address sanitizer:
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
mod backend;
mod backlog;
mod buffer;
mod catch_panic;
mod config;
mod consumer;
mod copy_limit;
mod counters;
mod cq_positions;
mod datagram;
mod deferred;
mod driver;
mod fd;
mod inbox;
mod iteration;
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
mod uring;
mod watch;

pub use accept::AcceptMulti;
pub use address::Address;
pub use buffer::{IoBuf, IoBufMut, Slice};
pub use catch_panic::catch_panic;
pub use config::{Config, Driver, Mode, Stats};
pub use datagram::{Datagram, DatagramMulti};
pub use deferred::DeferredCall;
pub use fd::{Fd, WeakFd};
/// The submission queue entry that describes an [`Operation`] to the kernel.
pub use io_uring::squeue::Entry;
pub use offload::{Job, Offload};
pub use operation::Operation;
pub use owner::{Owner, Proxy, UseHooks};
pub use probe::ring as probe_ring;
pub use recv::{RecvBuf, RecvMulti};
pub use remote::Remote;
pub use ring::{Ring, StandInOutcome};
pub use setup::SetupError;
pub use submission::Submission;
pub use watch::RingWatch;
