//! The runtime under the model checker. `tests/loom_sync.rs`: its sync primitives, whose source,
//! `linux/runtime/src/sync`, it takes as it is. `tests/loom_suspend.rs`: how a poll is suspended, with the core's vCPU and
//! the permit of its thread as they are. `tests/loom_signal.rs`: the signal that frees a CPU for
//! it.
//!
//! A crate of its own because `--cfg loom` is for everything that is built: the runtime's
//! dependencies (hyper's among them) do not know it. Nothing else is here.

#![forbid(unsafe_code)]
