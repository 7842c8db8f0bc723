//! Runtimes of tokio beside this one, and the contexts that a thread is within while it polls.

pub(crate) mod around;
#[cfg(feature = "tokio-rt")]
pub(crate) mod beside;
#[cfg(feature = "tokio-rt")]
mod servers;
