//! The ranks that an operation concerns, which are woken when it has started or ended.

use std::sync::Arc;

/// The ranks that an operation concerns, by their numbers in the world.
#[derive(Clone, Debug)]
pub(crate) enum Peers {
    None,
    One(u32),
    All(Arc<[u32]>),
}
