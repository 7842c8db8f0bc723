//! The C ABI of Upshift: what `cpp/include/upshift.h` declares, and C++ coroutines stand on.
//!
//! # The shape
//!
//! * A coroutine of another language is an [`upshift_task`](task::upshift_task): data, a function that polls it, one that drops it. It becomes a Rust
//!   future in the same ready queues as every other coroutine (`task.rs`).
//! * Its poll is given an [`upshift_cx`](cx::upshift_cx), the wake token of this poll. Whatever the task waits for is polled with it, and wakes the task later.
//! * An operation is a Rust future in memory of the caller, an [`upshift_op`](op::upshift_op): no allocation, no callback (`op.rs`). The function that
//!   starts it polls it once; `upshift_op_poll` polls it again; `upshift_op_drop` ends it early.
//!
//! # Rules
//!
//! * Errors are negative errno values. A panic below the ABI becomes `-ENOTRECOVERABLE`; nothing unwinds across in either direction: a function
//!   given from the other side that throws ends the process.
//! * Each handle has one owner. What may be done with it on which thread stands at the function that makes it.
//! * A buffer that an operation was given ([`upshift_buf`](buf::upshift_buf)) comes back with its result, or is released after the kernel's terminal completion, whatever becomes
//!   of the task and of the operation.
//! * A null pointer where an object is needed is `-EINVAL`, as the result of an operation that was started with it (of a descriptor `-EBADF`). To free null does nothing.
//! * A task is dropped exactly once, whatever fails: a function that takes one owns it from the call on.
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
pub mod fs;
pub mod metrics;
pub mod mutex;
pub mod net;
pub mod op;
pub mod runtime;
pub mod sys;
pub mod task;
pub mod time;
mod turns;
pub mod udp;
pub mod version;
