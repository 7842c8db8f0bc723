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
//! * Errors are negative errno values. A panic below the ABI becomes `-ENOTRECOVERABLE`. Nothing
//!   unwinds across the ABI in either direction, so a foreign function that throws ends the
//!   process.
//! * Each handle has one owner. The comment of its type says which threads may use it, and how.
//!   Functions whose comment ends with "Any thread" may be called on any thread.
//! * A buffer of an operation ([`upshift_buf`](buf::upshift_buf)) comes back with its result, or is
//!   released after the kernel's terminal completion, even if the task and the operation are gone.
//! * A null pointer where an object is needed leads to `-EINVAL`, which the function returns, or
//!   which is the result of the operation that it starts. (Functions that return a descriptor
//!   return `-EBADF`.) Freeing null does nothing.
//! * A task is dropped exactly once, even on failure, because a function that takes a task owns it
//!   from the call on.
//!
//! `tests/header.rs` compares the header with these sources.

#![cfg_attr(docsrs, feature(doc_cfg))]
// The names are those of the C side, and a function's contract is its comment in the header.
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
