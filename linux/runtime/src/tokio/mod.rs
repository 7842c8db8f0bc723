//! Runtimes of tokio beside this one, and the contexts that a thread is within while it polls.

#[cfg(feature = "tokio-rt")]
pub(crate) mod embedded;
#[cfg(feature = "tokio-rt")]
mod servers;
pub(crate) mod thread_hooks;
