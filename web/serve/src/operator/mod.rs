//! The operator's view of a running server, and the commands that change it.

pub(crate) mod access_log;
pub(crate) mod control;
pub(crate) mod metrics;
pub(crate) mod notice;
