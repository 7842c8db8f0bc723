//! The two ends of a completion queue, as threads see them that do not own it.
//!
//! [`CompletionStatus`] loads the end that the owner advances without an atomic step: right on the owner's thread, and a data race on
//! any other. Here both are atomic loads. Which of the two is which is not known, and does not matter for how far they are apart.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Acquire;

use io_uring::cqueue::{CompletionQueue, CompletionStatus};

type Pointers = [*const AtomicU32; 2];

pub(crate) struct Ends(Pointers);

// SAFETY: the words are shared with the kernel, and only loaded, atomically.
unsafe impl Send for Ends {}
// SAFETY: as above.
unsafe impl Sync for Ends {}

impl Ends {
    /// # Safety
    /// Used while the instance of the queue lives.
    pub(crate) unsafe fn of(cq: &CompletionQueue<'_>) -> Ends {
        const { assert!(size_of::<CompletionStatus>() == size_of::<Pointers>()) };
        // SAFETY: passed on. It consists of the pointers to the two positions, in some order: the manifest names the version of the crate
        // in which it does.
        Ends(unsafe { std::mem::transmute::<CompletionStatus, Pointers>(cq.status()) })
    }

    /// How many completions wait to be read, about. Two loads.
    #[inline]
    pub(crate) fn unread(&self) -> u32 {
        // SAFETY: they point into the mapped queue.
        let [one, other] = self.0.map(|end| unsafe { &*end }.load(Acquire));
        let apart = one.wrapping_sub(other);
        apart.min(apart.wrapping_neg())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unread_is_how_far_the_ends_are_apart_in_either_order() {
        for (head, tail, unread) in [(3, 3, 0), (3, 5, 2), (u32::MAX, 1, 2)] {
            let ends = [head, tail].map(AtomicU32::new);
            let [head, tail] = [&raw const ends[0], &raw const ends[1]];
            assert_eq!(Ends([head, tail]).unread(), unread);
            assert_eq!(Ends([tail, head]).unread(), unread);
        }
    }
}
