//! Allocates the slots of a ring, that is, the memory of its operations. Slots have stable
//! addresses, in chunks of 256. The slot that was returned last is taken first, because it is
//! probably in the cache.
//!
//! Taking and returning a slot are a few loads and stores. A chunk (32 KiB) is allocated when the
//! free list is empty. All chunks are freed when the ring and its last handle are gone. Only the
//! thread that owns the ring may use the slab.

use crate::slot::{Slot, SlotState};
use std::cell::{Cell, UnsafeCell};
use std::ptr::{self, NonNull};

/// Number of slots in a chunk.
const CHUNK_SLOTS: usize = 256;

pub(crate) struct Slab {
    chunks: UnsafeCell<Vec<NonNull<[Slot]>>>,
    free: Cell<*const Slot>,
    used: Cell<u32>,
    max: u32,
}

impl Slab {
    pub(crate) fn new(max: u32) -> Self {
        Self {
            chunks: UnsafeCell::new(Vec::new()),
            free: Cell::new(ptr::null()),
            used: Cell::new(0),
            max,
        }
    }

    /// Takes a slot for an operation or a stream. Returns `None` if the maximum number is in use.
    #[inline]
    pub(crate) fn take(&self) -> Option<&Slot> {
        (self.used.get() < self.max).then(|| self.take_event())
    }

    /// Takes a slot for an event. Events need no maximum here, because there are never more events
    /// than buffers, unread connections and streams together.
    #[inline]
    pub(crate) fn take_event(&self) -> &Slot {
        if self.free.get().is_null() {
            self.grow();
        }
        // SAFETY: the pointer is valid, because it points into a chunk, and chunks are never freed
        // before `self`.
        let slot = unsafe { &*self.free.get() };
        self.free.set(slot.next.get());
        self.used.set(self.used.get() + 1);
        slot
    }

    #[cold]
    fn grow(&self) {
        // SAFETY: this is the only reference, because only the owner calls this, and no user code
        // runs while the reference lives.
        let chunks = unsafe { &mut *self.chunks.get() };
        let first = chunks.len() * CHUNK_SLOTS;
        // The largest number that the configuration allows is far below the reserved indices.
        let indices = first..first + CHUNK_SLOTS;
        let chunk: Box<[Slot]> = indices.map(|i| Slot::new(i as u32)).collect();
        // From here on a raw pointer, because handles keep pointers into the chunk. `drop` frees
        // the chunk.
        let chunk = NonNull::from(Box::leak(chunk));
        chunks.push(chunk);
        // SAFETY: the chunk was leaked above and has not been freed.
        for slot in unsafe { chunk.as_ref() }.iter().rev() {
            slot.next.set(self.free.get());
            self.free.set(slot);
        }
    }

    /// Puts a slot back into the free list. Completions that still name the slot are stale from
    /// here on.
    #[inline]
    pub(crate) fn give_back(&self, slot: &Slot) {
        debug_assert_ne!(slot.state.get(), SlotState::Free);
        slot.state.set(SlotState::Free);
        slot.marks.set(0);
        slot.inbox.reset();
        slot.generation.set(slot.generation.get().wrapping_add(1));
        slot.next.set(self.free.get());
        self.free.set(slot);
        self.used.set(self.used.get() - 1);
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&Slot> {
        // SAFETY: only the owner calls this, so no reference from `grow` exists at the same time.
        let chunks = unsafe { &*self.chunks.get() };
        let index = index as usize;
        let chunk = chunks.get(index / CHUNK_SLOTS)?;
        // SAFETY: chunks live as long as `self`, so the pointer is valid.
        Some(&unsafe { chunk.as_ref() }[index % CHUNK_SLOTS])
    }

    pub(crate) fn used(&self) -> u32 {
        self.used.get()
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        for chunk in self.chunks.get_mut().drain(..) {
            // SAFETY: `grow` leaked the chunk once; no handle is left when the slab is dropped.
            drop(unsafe { Box::from_raw(chunk.as_ptr()) });
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_bound_holds_and_a_reused_slot_has_a_new_generation() {
        let slab = Slab::new(2);
        let first = slab.take().unwrap();
        first.state.set(SlotState::Done);
        let second = slab.take().unwrap();
        second.state.set(SlotState::Done);
        assert!(slab.take().is_none());
        let old_user_data = first.user_data();
        slab.give_back(first);
        let reused = slab.take().unwrap();
        assert!(ptr::eq(first, reused));
        assert_ne!(old_user_data, reused.user_data());
        assert_eq!(old_user_data as u32, reused.user_data() as u32);
    }

    #[test]
    fn addresses_stay_while_chunks_are_added() {
        let slab = Slab::new(10_000);
        let first = slab.take().unwrap() as *const Slot;
        for _ in 0..5_000 {
            slab.take().unwrap().state.set(SlotState::Done);
        }
        assert!(ptr::eq(first, slab.get(0).unwrap()));
        assert!(slab.get(5_000).is_some());
        assert!(slab.get(1 << 20).is_none());
    }
}
