//! The head and the tail of a completion queue, as threads that do not own the queue see them.
//!
//! [`CompletionStatus`] loads the owner's position non-atomically. That is correct on the owner's
//! thread, but a data race on any other. Here both loads are atomic. Which of the two words is the
//! head is unknown, and does not matter for their distance.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Acquire;

use io_uring::cqueue::{CompletionQueue, CompletionStatus};

type Pointers = [*const AtomicU32; 2];

pub(crate) struct CqPositions(Pointers);

// SAFETY: the words are shared with the kernel. This type only loads them, atomically, so threads
// cannot race on them.
unsafe impl Send for CqPositions {}
// SAFETY: as above.
unsafe impl Sync for CqPositions {}

impl CqPositions {
    /// Copies the pointers to both positions.
    ///
    /// # Safety
    /// The result is used only while the instance of the queue lives.
    pub(crate) unsafe fn new(cq: &CompletionQueue<'_>) -> CqPositions {
        const { assert!(size_of::<CompletionStatus>() == size_of::<Pointers>()) };
        // SAFETY: the type consists of the pointers to the two positions, in some order. The
        // manifest pins the version of the crate for which this is true. The caller keeps the
        // instance alive.
        CqPositions(unsafe { std::mem::transmute::<CompletionStatus, Pointers>(cq.status()) })
    }

    /// Returns the approximate number of completions that wait to be read. Two loads.
    #[inline]
    pub(crate) fn unread(&self) -> u32 {
        // SAFETY: the pointers are valid, because the caller of `new` keeps the queue mapped.
        let [first, second] = self.0.map(|end| unsafe { &*end }.load(Acquire));
        let distance = first.wrapping_sub(second);
        distance.min(distance.wrapping_neg())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unread_is_the_distance_of_the_ends_in_either_order() {
        for (head, tail, unread) in [(3, 3, 0), (3, 5, 2), (u32::MAX, 1, 2)] {
            let ends = [head, tail].map(AtomicU32::new);
            let [head, tail] = [&raw const ends[0], &raw const ends[1]];
            assert_eq!(CqPositions([head, tail]).unread(), unread);
            assert_eq!(CqPositions([tail, head]).unread(), unread);
        }
    }
}
