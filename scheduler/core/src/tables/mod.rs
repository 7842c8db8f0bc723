//! The containers of coroutines: the slots of a domain and the ready queues of a vCPU.

pub(crate) mod queue;
pub(crate) mod slot_cache;
pub(crate) mod table;
