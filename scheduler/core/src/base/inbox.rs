//! The inbox of a vCPU is an intrusive, lock-free list of coroutines that other threads have woken.
//!
//! Any thread pushes; the holder of the vCPU lock takes all elements at once, in the order of the
//! pushes. A push is a compare-exchange loop and needs no memory, because a coroutine is in at most
//! one queue (`OWNED` in the state word) and contains its own link. So the inbox cannot overflow.
//! Taking the elements costs one swap and a constant time per element.
//!
//! There is no ABA problem, because single elements are never popped.

use core::ptr::{NonNull, null_mut};

use crate::sync::{AtomicPtr, Ordering};

/// # Safety
/// `link` always returns the same field, and only the inbox uses the field while the element is in
/// an inbox.
pub(crate) unsafe trait Linked: Sized {
    fn link(&self) -> &AtomicPtr<Self>;
}

pub(crate) struct Inbox<T> {
    head: AtomicPtr<T>,
}

impl<T: Linked> Inbox<T> {
    pub(crate) fn new() -> Inbox<T> {
        Inbox {
            head: AtomicPtr::new(null_mut()),
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head.load(Ordering::Relaxed).is_null()
    }

    /// # Safety
    /// `element` is valid until it has been taken, and in no other list.
    pub(crate) unsafe fn push(&self, element: NonNull<T>) {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            // SAFETY: the element is valid until it has been taken.
            unsafe { element.as_ref() }
                .link()
                .store(head, Ordering::Relaxed);
            // SeqCst, because the pusher then reads the `parked` flag of the vCPU, and the parking
            // vCPU reads this head after it has set the flag.
            match self.head.compare_exchange_weak(
                head,
                element.as_ptr(),
                Ordering::SeqCst,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    pub(crate) fn take(&self) -> Drain<T> {
        // SeqCst, because this follows the clearing of the vCPU's `arriving`, which a pusher sets
        // after its push.
        let mut newest = self.head.swap(null_mut(), Ordering::SeqCst);
        let mut oldest = null_mut();
        while let Some(element) = NonNull::new(newest) {
            // SAFETY: pushed elements are valid until they are taken, which happens here; the
            // swap acquires, so their links are visible.
            let link = unsafe { element.as_ref() }.link();
            newest = link.load(Ordering::Relaxed);
            link.store(oldest, Ordering::Relaxed);
            oldest = element.as_ptr();
        }
        Drain { next: oldest }
    }
}

pub(crate) struct Drain<T> {
    next: *mut T,
}

impl<T: Linked> Iterator for Drain<T> {
    type Item = NonNull<T>;
    fn next(&mut self) -> Option<NonNull<T>> {
        let element = NonNull::new(self.next)?;
        // SAFETY: the iterator owns the rest of the list; the link is read before the element is
        // returned.
        self.next = unsafe { element.as_ref() }.link().load(Ordering::Relaxed);
        Some(element)
    }
}
