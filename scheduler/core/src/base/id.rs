//! Ids of coroutines. An id is the index of a slot of the table and the generation of the slot,
//! which counts the coroutines that the slot has had.

use core::fmt;

/// A unique name of a coroutine in its domain. A later coroutine in the same slot has another
/// generation, so an old id is dead and never names another coroutine.
///
/// ```
/// use upshift_core::CoroutineId;
///
/// let id = CoroutineId::from_u64(3 << 32 | 7);
/// assert_eq!((id.index(), id.generation()), (7, 3));
/// assert_eq!(CoroutineId::from_u64(id.to_u64()), id);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CoroutineId {
    generation: u32,
    index: u32,
}

impl CoroutineId {
    pub(crate) const fn new(index: u32, generation: u32) -> CoroutineId {
        CoroutineId { generation, index }
    }

    /// Returns the index of the slot in the domain's table.
    #[must_use]
    pub const fn index(self) -> u32 {
        self.index
    }

    /// Returns the number of coroutines that had the slot before.
    #[must_use]
    pub const fn generation(self) -> u32 {
        self.generation
    }

    /// Returns the id as one word, to pass through a system call or a completion.
    #[must_use]
    pub const fn to_u64(self) -> u64 {
        ((self.generation as u64) << 32) | self.index as u64
    }

    /// Returns the id that a word contains. Any word is allowed; an id that names no coroutine is
    /// dead.
    #[must_use]
    pub const fn from_u64(word: u64) -> CoroutineId {
        CoroutineId {
            generation: (word >> 32) as u32,
            index: word as u32,
        }
    }
}

impl fmt::Debug for CoroutineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CoroutineId({}.{})", self.index, self.generation)
    }
}

impl fmt::Display for CoroutineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

/// Error of an id that names no living coroutine: the coroutine has exited, or has never existed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dead;

impl fmt::Display for Dead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no such coroutine: it has exited")
    }
}

impl core::error::Error for Dead {}
