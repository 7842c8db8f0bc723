//! What the entries of small files point to: a path on the way in, bytes on the way out. Of one file at a time.

use crate::slot::{BEHIND, OPEN};
use io_uring::squeue::Entry;
use io_uring::{opcode, types};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::LANES;

/// Bytes that are read of a file at most.
pub(crate) const ROOM: usize = 16 << 10;
/// Bytes that are read behind them, to see that there are none.
const TAIL: usize = 64;
/// The longest path, with the 0 at its end.
const PATH: usize = 256;

/// The memory of a lane. It does not move.
struct Memory {
    path: [MaybeUninit<u8>; PATH],
    how: types::OpenHow,
    bytes: [MaybeUninit<u8>; ROOM],
    tail: [MaybeUninit<u8>; TAIL],
}

/// That of all lanes of a ring. What is for one is allocated when it is first used.
pub(super) struct Memories {
    /// Bit *n*: that of lane *n* is free.
    free: AtomicU32,
    memory: [UnsafeCell<Option<Box<Memory>>>; LANES as usize],
}

// SAFETY: the memory of a lane is touched only by what holds it, and `free` passes it on.
unsafe impl Send for Memories {}
// SAFETY: as above.
unsafe impl Sync for Memories {}

impl Memories {
    pub(super) fn new() -> Memories {
        Memories {
            free: AtomicU32::new(u32::MAX),
            memory: [const { UnsafeCell::new(None) }; LANES as usize],
        }
    }

    /// Bit *n*: that of lane *n* can be taken. Owner only.
    pub(super) fn free(&self) -> u32 {
        self.free.load(Ordering::Relaxed)
    }
}

/// Is it a path that there is room for?
pub(super) fn fits(path: &[u8]) -> bool {
    path.len() < PATH && !path.contains(&0)
}

/// A lane that is in use. Its memory may be given back, by being dropped, on any thread, when no entry points to it.
pub(crate) struct Lane {
    memories: Arc<Memories>,
    index: u32,
}

impl Lane {
    /// Lane `index`, whose memory is free, for a file that is opened in this way. Owner only. The path [fits].
    pub(super) fn take(
        memories: &Arc<Memories>,
        index: u32,
        path: &[u8],
        how: types::OpenHow,
    ) -> Lane {
        debug_assert!(fits(path));
        // Only the owner takes bits away. Acquire: what the last user read is read.
        let free = memories.free.fetch_and(!(1 << index), Ordering::Acquire);
        debug_assert!(free & 1 << index != 0);
        let memories = memories.clone();
        // SAFETY: it is ours.
        let memory = unsafe { &mut *memories.memory[index as usize].get() };
        let memory = memory.get_or_insert_with(|| {
            Box::new(Memory {
                path: [MaybeUninit::uninit(); PATH],
                how,
                bytes: [MaybeUninit::uninit(); ROOM],
                tail: [MaybeUninit::uninit(); TAIL],
            })
        });
        memory.how = how;
        for (to, from) in memory.path.iter_mut().zip(path.iter().chain(&[0])) {
            to.write(*from);
        }
        Lane { memories, index }
    }

    /// The number of its direct descriptor.
    pub(super) fn index(&self) -> u32 {
        self.index
    }

    fn memory(&self) -> *mut Memory {
        // SAFETY: it is ours, and has been there since it was taken.
        let memory = unsafe { &mut *self.memories.memory[self.index as usize].get() };
        memory.as_deref_mut().expect("taken with memory")
    }

    /// The entry that opens the file.
    pub(super) fn opening(&self, slot: u64) -> Entry {
        let memory = self.memory();
        let target = types::DestinationSlot::try_from_slot_target(self.index);
        // SAFETY: in bounds of the memory, which lives as long as the lane.
        let (path, how) = unsafe { (&raw const (*memory).path, &raw const (*memory).how) };
        opcode::OpenAt2::new(types::Fd(libc::AT_FDCWD), path.cast(), how)
            .file_index(target.ok())
            .build()
            .user_data(slot | OPEN)
    }

    /// The entry that reads it.
    pub(super) fn reading(&self, slot: u64, ioprio: u16) -> Entry {
        // SAFETY: in bounds of the memory, which lives as long as the lane.
        let bytes = unsafe { &raw mut (*self.memory()).bytes };
        opcode::Read::new(types::Fixed(self.index), bytes.cast(), ROOM as u32)
            .offset(0)
            .rw_flags(libc::RWF_NOWAIT)
            .ioprio(ioprio)
            .build()
            .user_data(slot)
    }

    /// The entries that read it from its own position on, whatever that waits for: up to [`ROOM`] bytes, and what is behind them.
    pub(super) fn waiting(&self, slot: u64, ioprio: u16) -> [Entry; 2] {
        let memory = self.memory();
        // SAFETY: in bounds of the memory, which lives as long as the lane.
        let (bytes, tail) = unsafe { (&raw mut (*memory).bytes, &raw mut (*memory).tail) };
        [
            (bytes.cast(), ROOM, slot),
            (tail.cast(), TAIL, slot | BEHIND),
        ]
        .map(|(start, length, user_data)| {
            opcode::Read::new(types::Fixed(self.index), start, length as u32)
                .offset(u64::MAX)
                .ioprio(ioprio)
                .build()
                .user_data(user_data)
        })
    }

    /// The entry that makes an ordinary descriptor of it, close-on-exec.
    pub(crate) fn installing(&self) -> Entry {
        opcode::FixedFdInstall::new(types::Fixed(self.index), 0).build()
    }

    /// What has been read, and behind it.
    ///
    /// # Safety
    /// So many bytes have.
    pub(crate) unsafe fn bytes(&self, count: usize, behind: usize) -> Vec<u8> {
        let memory = self.memory();
        let mut all = Vec::with_capacity(count + behind);
        // SAFETY: in bounds, initialised as the caller says, and the lane is ours.
        unsafe {
            let bytes = (&raw const (*memory).bytes).cast();
            all.extend_from_slice(std::slice::from_raw_parts(bytes, count));
            let tail = (&raw const (*memory).tail).cast();
            all.extend_from_slice(std::slice::from_raw_parts(tail, behind));
        }
        all
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.memories
            .free
            .fetch_or(1 << self.index, Ordering::Release);
    }
}
