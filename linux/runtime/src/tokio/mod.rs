//! A runtime of tokio beside this runtime, and the hooks of threads that serve a vCPU.

#[cfg(feature = "tokio-rt")]
pub(crate) mod embedded;
#[cfg(feature = "tokio-rt")]
mod servers;
pub(crate) mod thread_hooks;
