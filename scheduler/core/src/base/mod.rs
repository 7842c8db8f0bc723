//! Types of the scheduler that know neither a coroutine nor a vCPU.

pub(crate) mod config;
pub(crate) mod events;
pub(crate) mod host;
pub(crate) mod id;
pub(crate) mod inbox;
pub(crate) mod kind;
pub(crate) mod level;
pub(crate) mod lock;
pub(crate) mod stats;
pub(crate) mod token_bucket;
