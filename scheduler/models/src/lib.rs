//! Model checks of the runtime with `loom`, which runs all interleavings of a few threads:
//!
//! * `tests/loom_sync.rs`: the sync primitives, whose source in `linux/runtime/src/sync` is
//!   included unmodified;
//! * `tests/loom_suspend.rs`: the suspension of a poll, with the unmodified vCPU of
//!   `scheduler/core` and the unmodified permit of its thread;
//! * `tests/loom_signal.rs`: the signal that frees a CPU for a suspended poll.
//!
//! The models are a separate crate because `--cfg loom` applies to all crates of a build, and some
//! dependencies of the runtime, such as hyper, do not build with it. The library is empty.

#![forbid(unsafe_code)]
