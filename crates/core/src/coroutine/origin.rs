//! What the coroutines of one type that are spawned at one place in the source have in common: an [`Origin`] per domain.
//!
//! A control block points to it, and so has one word for the calls that know the type of its future and for where it was spawned. There are
//! as many as the program has such places, and they stay as long as the domain.
//!
//! To find one takes a load and mostly one comparison, for what is in the table came in turn; to add one, an allocation and a compare-exchange. Two threads that add the
//! same at once may add it twice, which is as good.

use alloc::alloc::{alloc, dealloc};
use core::alloc::Layout;
use core::panic::Location;
use core::ptr::{self, NonNull, null_mut};

use super::cell::VTable;
use crate::host::Host;
use crate::sync::AtomicPtr;
use crate::sync::Ordering::{AcqRel, Acquire, Relaxed};

/// Lists of origins.
const LISTS: usize = if cfg!(loom) { 1 } else { 64 };

/// See the module.
pub(crate) struct Origin<H: Host> {
    /// A copy: one load less per call.
    pub(super) calls: VTable<H>,
    pub(super) location: &'static Location<'static>,
    of: &'static VTable<H>,
    next: *mut Origin<H>,
}

/// The origins of a domain.
pub(crate) struct Origins<H: Host>([AtomicPtr<Origin<H>>; LISTS]);

impl<H: Host> Origins<H> {
    pub(crate) fn new() -> Origins<H> {
        Origins(core::array::from_fn(|_| AtomicPtr::new(null_mut())))
    }

    /// The origin of coroutines with these calls that are spawned there. `None`: there is no memory for it.
    #[inline]
    pub(super) fn find(
        &self,
        of: &'static VTable<H>,
        location: &'static Location<'static>,
    ) -> Option<NonNull<Origin<H>>> {
        // Both are aligned to words, and lie beside others of their kind.
        let number = ptr::from_ref(of).addr() / 8 + ptr::from_ref(location).addr() / 8;
        let list = &self.0[number % LISTS];
        let head = list.load(Acquire);
        let mut at = head;
        while let Some(origin) = NonNull::new(at) {
            // SAFETY: what is in a list stays as long as the domain.
            let known = unsafe { origin.as_ref() };
            if ptr::eq(known.location, location) && ptr::eq(known.of, of) {
                return Some(origin);
            }
            at = known.next;
        }
        add(list, head, of, location)
    }
}

#[cold]
fn add<H: Host>(
    list: &AtomicPtr<Origin<H>>,
    mut head: *mut Origin<H>,
    of: &'static VTable<H>,
    location: &'static Location<'static>,
) -> Option<NonNull<Origin<H>>> {
    // SAFETY: the layout is not empty.
    let memory = unsafe { alloc(Layout::new::<Origin<H>>()) }.cast::<Origin<H>>();
    let origin = NonNull::new(memory)?;
    loop {
        let fresh = Origin {
            calls: VTable { ..*of },
            location,
            of,
            next: head,
        };
        // SAFETY: allocated for this type, and ours until the exchange below.
        unsafe { origin.write(fresh) };
        match list.compare_exchange(head, origin.as_ptr(), AcqRel, Acquire) {
            Ok(_) => return Some(origin),
            Err(now) => head = now,
        }
    }
}

impl<H: Host> Drop for Origins<H> {
    fn drop(&mut self) {
        for list in &self.0 {
            let mut at = list.load(Relaxed);
            while !at.is_null() {
                // SAFETY: allocated by `add`, and nothing that points to it is left; it has nothing to drop.
                unsafe {
                    let next = (*at).next;
                    dealloc(at.cast(), Layout::new::<Origin<H>>());
                    at = next;
                }
            }
        }
    }
}
