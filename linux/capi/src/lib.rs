//! The C ABI of Upshift, declared in `cpp/include/upshift.h`. The C++ coroutines are built on it.
//!
//! # Structure
//!
//! * A coroutine of another language is an [`upshift_task`](task::upshift_task). It consists of
//!   data, a function that polls the task, and a function that drops it. The task becomes a Rust
//!   future in the same ready queues as every other coroutine (`task.rs`).
//! * The polling function gets an [`upshift_cx`](cx::upshift_cx), the wake token of this poll. The
//!   task polls its operations with the token, and they wake the task later.
//! * An operation is a Rust future in the caller's memory, an [`upshift_op`](op::upshift_op). It
//!   needs no allocation and no callback (`op.rs`). The function that starts an operation polls it
//!   once; `upshift_op_poll` polls it again; `upshift_op_drop` ends it early.
//!
//! # Rules
//!
//! * Errors are negative errno values: a function returns them, or they are the `result` of an
//!   operation. A panic below the ABI becomes `-ENOTRECOVERABLE`. Nothing unwinds across the ABI in
//!   either direction, so a foreign function that throws ends the process.
//! * Each object and each handle has one owner. The comment of its type says which threads may use
//!   it, and so where the functions that take it may be called. Functions that start or poll an
//!   operation are called in a poll of a task.
//! * A buffer of an operation ([`upshift_buf`](buf::upshift_buf)) comes back with its result, or is
//!   released after the kernel's terminal completion, even if the task and the operation are gone.
//! * A null pointer where an object is needed leads to `-EINVAL`, which the function returns, or
//!   which is the result of the operation that it starts. The functions that return a descriptor,
//!   and `upshift_writer_shutdown`, return `-EBADF` instead. Functions that return a pointer return
//!   null. Freeing null does nothing.
//! * A task is dropped exactly once, even on failure, because a function that takes a task owns it
//!   from the call on.
//! * `op` and `cx` should never be null. The error is `-EINVAL`, too, but the buffer, the bytes or
//!   the message of the operation may have been released.
//!
//! # Contract of the caller
//!
//! The unsafe functions rely on the following points. In their `SAFETY` comments "the caller
//! guarantees" refers to them, and to the `# Safety` sections of the private functions.
//!
//! * Pointers: each pointer is null or valid. A pointer to an object came from this library, and
//!   the object has not been freed. A pointer to a struct refers to a struct that is filled as its
//!   comments say; a pointer to a result refers to room for that result.
//! * Lifetimes: a file, listener, UDP socket, sender or mutex outlives the operations on it. A
//!   reader, writer or receiver may be freed during an operation. A mutex is not freed while a
//!   coroutine holds it, and only its holder unlocks it.
//! * Threads: an object is used only on the threads that the comment of its type permits. While an
//!   object is freed, no other thread uses it.
//! * Operations: `op` is null, or has room for an [`upshift_op`](op::upshift_op). A function that
//!   starts an operation gets an `op` without an operation in progress. From the start of the
//!   operation to its end, the memory is not moved, and only this library writes to it. Calls with
//!   the same `op` do not overlap. Before an `op` without a started operation is polled or dropped,
//!   its `vtable` is null.
//! * Tokens: `cx` is null, or belongs to the poll that is in progress on the calling thread.
//! * Strings: a string ends with NUL, and is valid during the call.
//! * Memory: `data` is null, or valid for `len` bytes until the operation ends. If the operation
//!   writes to these bytes, no other code uses them meanwhile.
//! * Words: an [`upshift_join`](task::upshift_join), an [`upshift_waker`](cx::upshift_waker) or an
//!   [`upshift_bytes`](buf::upshift_bytes) contains only zeros, or the words that this library
//!   wrote. A copy replaces its original.
//! * Ownership: the caller owns each object that it frees and each task, buffer, message and
//!   descriptor that it gives away, and does so once. A descriptor that the caller does not give
//!   away stays open during the call.
//! * Functions: the functions of a task, a buffer or a channel accept their arguments, on any
//!   thread, and do not throw.
//!
//! `tests/header.rs` compares the header with these sources.

#![cfg_attr(docsrs, feature(doc_cfg))]
// The names are those of the C side, and the contract of all unsafe functions is stated above.
#![allow(non_camel_case_types)]
#![allow(clippy::missing_safety_doc)]

pub mod blocking;
pub mod buf;
pub mod channel;
pub mod cx;
pub mod error;
mod exclusive;
pub mod fs;
pub mod metrics;
pub mod mutex;
pub mod net;
pub mod op;
pub mod runtime;
pub mod sys;
pub mod task;
pub mod time;
pub mod udp;
pub mod version;
