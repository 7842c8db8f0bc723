//! Basic types of the scheduler, which depend on neither coroutines nor vCPUs.

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
