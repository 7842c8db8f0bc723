//! The runtime's sync primitives under the model checker: `tests/loom_sync.rs` takes their
//! source, `crates/runtime/src/sync`, as it is.
//!
//! A crate of its own because `--cfg loom` is for everything that is built: the runtime's
//! dependencies (hyper's among them) do not know it. Nothing else is here.

#![forbid(unsafe_code)]
