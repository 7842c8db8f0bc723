//! Which ranks an operation concerns: those to ring for when it has started or ended.

use std::sync::Arc;

/// Which ranks an operation may let go on, by their numbers in the world.
#[derive(Clone, Debug)]
pub(crate) enum Peers {
    None,
    One(u32),
    All(Arc<[u32]>),
}
