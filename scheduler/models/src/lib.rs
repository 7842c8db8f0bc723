//! The runtime under the model checker:
//!
//! * `tests/loom_sync.rs`: its sync primitives, whose source in `linux/runtime/src/sync` is
//!   included unmodified;
//! * `tests/loom_suspend.rs`: suspension of a poll, with the unmodified vCPU of the core and permit
//!   of its thread;
//! * `tests/loom_signal.rs`: the signal that frees a CPU for a suspended poll.
//!
//! The models are a crate of their own because `--cfg loom` holds for all that is built: the
//! runtime's dependencies (hyper among them) do not know it. The library itself is empty.

#![forbid(unsafe_code)]
