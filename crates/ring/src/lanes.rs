//! Small files: opened, read and closed by entries that many files share one enter for. Owner only, but for [`Lane`].
//!
//! ```text
//!  cached:  open into a direct descriptor; read at once ──► all of it ──────────────────────────────► close, Done
//!               │ one enter, in this order              └──► a part, or nothing yet ─► install ─────► close, Done
//!               └──────────────────────────────────────────► not opened: its name is not cached, … ─► Done
//!  waiting: open ═► read ═► read behind it, linked ────────► the second one finds nothing ──────────► close, Done
//!                                                       └──► it finds something, or one fails ─► install ─► close, Done
//! ```
//!
//! * **What is cached does not wait.** The name is looked up with `RESOLVE_CACHED` and the bytes are read with `RWF_NOWAIT`, so the kernel carries both entries out while it
//!   takes them from the queue, one after the other, and hands neither to a thread of its own. That is the order that a link would make; it saves what
//!   a link costs (0.1 to 0.4 µs for a file). Were an entry to overtake another one, it would find the lane empty: EBADF.
//! * **What waits is a chain** of links. The end of a file is seen by a read that finds nothing, as only regular files promise that a short read has met it. Both reads are
//!   from the file's own position on, so what has been taken out of a FIFO is kept.
//! * **A lane** is a direct descriptor and the memory beside it, of one operation at a time. Its descriptor is closed before its next use is queued; so an
//!   `open` that fails leaves nothing that the `read` behind it could find.
//! * **One completion** for a cached file that is read: those of `open` and `close` are suppressed, or ignored where they fail; the `read` fails, too, then.
//! * **A file is opened once**, whatever it is. A FIFO, a device or a file of procfs does not know `RWF_NOWAIT`: nothing is read of it, and it goes on as
//!   an ordinary descriptor, which it is made by the entry `install` (Linux 6.8), as does what is longer than [`ROOM`], or not cached.
//! * **A chain is cancelled** link by link: each completion of one that is to end asks for the end of the next, and a cancellation that comes between two of them is repeated.

use crate::backend::Backend;
use crate::driver::Driver;
use crate::op::ReadSmall;
use crate::operation::Stored;
use crate::slot::{CANCEL, CANCELLED, CHAIN, CLOSE, Kind, Place, Slot};
use crate::uring::Uring;
use io_uring::squeue::{Entry, Flags};
use io_uring::{opcode, types};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Lanes of a ring.
pub(crate) const LANES: u32 = 32;
/// Bytes that are read of a file at most.
pub(crate) const ROOM: usize = 16 << 10;
/// Bytes that are read behind them, to see that there are none.
const TAIL: usize = 64;
/// The longest path, with the 0 at its end.
pub(crate) const PATH: usize = 256;

/// The memory of a lane. It does not move.
pub(crate) struct Memory {
    path: [MaybeUninit<u8>; PATH],
    how: types::OpenHow,
    bytes: [MaybeUninit<u8>; ROOM],
    tail: [MaybeUninit<u8>; TAIL],
}

/// All lanes of a ring. The memory of one is allocated when it is first used.
pub(crate) struct Lanes {
    /// Bit *n*: lane *n* is free.
    free: AtomicU32,
    memory: [UnsafeCell<Option<Box<Memory>>>; LANES as usize],
}

// SAFETY: the memory of a lane is touched only by what holds the lane, and `free` passes it on.
unsafe impl Send for Lanes {}
// SAFETY: as above.
unsafe impl Sync for Lanes {}

impl Lanes {
    fn new() -> Lanes {
        Lanes {
            free: AtomicU32::new(u32::MAX),
            memory: [const { UnsafeCell::new(None) }; LANES as usize],
        }
    }
}

/// A lane that is in use. It may be given back, by being dropped, on any thread; the close of its descriptor has been queued by then.
pub(crate) struct Lane {
    lanes: Arc<Lanes>,
    index: u32,
}

impl Lane {
    /// A free lane, for a file that is opened in this way. Owner only. The path is shorter than [`PATH`], and contains no 0.
    fn take(lanes: &Arc<Lanes>, path: &[u8], how: types::OpenHow) -> Option<Lane> {
        let index = lanes.free.load(Ordering::Relaxed).trailing_zeros();
        if index == LANES || path.len() >= PATH || path.contains(&0) {
            return None;
        }
        // Only the owner takes bits away. Acquire: what the last user read is read.
        lanes.free.fetch_and(!(1 << index), Ordering::Acquire);
        let lanes = lanes.clone();
        // SAFETY: the lane is ours.
        let memory = unsafe { &mut *lanes.memory[index as usize].get() };
        let memory = memory.get_or_insert_with(|| {
            Box::new(Memory {
                path: [MaybeUninit::uninit(); PATH],
                how,
                bytes: [MaybeUninit::uninit(); ROOM],
                tail: [MaybeUninit::uninit(); TAIL],
            })
        });
        memory.how = how;
        // SAFETY: shorter than the room, with the 0.
        unsafe {
            let room: *mut u8 = memory.path.as_mut_ptr().cast();
            room.copy_from_nonoverlapping(path.as_ptr(), path.len());
            room.add(path.len()).write(0);
        }
        Some(Lane { lanes, index })
    }

    fn memory(&self) -> *mut Memory {
        // SAFETY: the lane is ours, and has had memory since it was taken.
        let memory = unsafe { &mut *self.lanes.memory[self.index as usize].get() };
        memory.as_deref_mut().expect("taken with memory")
    }

    /// The entry that opens the file.
    fn opening(&self) -> Entry {
        let memory = self.memory();
        let slot = types::DestinationSlot::try_from_slot_target(self.index);
        // SAFETY: in bounds of the memory, which lives as long as the lane.
        let (path, how) = unsafe { (&raw const (*memory).path, &raw const (*memory).how) };
        opcode::OpenAt2::new(types::Fd(libc::AT_FDCWD), path.cast(), how)
            .file_index(slot.ok())
            .build()
    }

    /// The entry that reads it.
    pub(crate) fn reading(&self, ioprio: u16) -> Entry {
        // SAFETY: in bounds of the memory, which lives as long as the lane.
        let bytes = unsafe { &raw mut (*self.memory()).bytes };
        opcode::Read::new(types::Fixed(self.index), bytes.cast(), ROOM as u32)
            .offset(0)
            .rw_flags(libc::RWF_NOWAIT)
            .ioprio(ioprio)
            .build()
    }

    /// The entries that read it from its own position on, whatever that waits for: up to [`ROOM`] bytes, and what is behind them.
    fn waiting(&self, ioprio: u16) -> [Entry; 2] {
        let memory = self.memory();
        // SAFETY: in bounds of the memory, which lives as long as the lane.
        let (bytes, tail) = unsafe { (&raw mut (*memory).bytes, &raw mut (*memory).tail) };
        [(bytes.cast(), ROOM), (tail.cast(), TAIL)].map(|(start, length)| {
            opcode::Read::new(types::Fixed(self.index), start, length as u32)
                .offset(u64::MAX)
                .ioprio(ioprio)
                .build()
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
        self.lanes.free.fetch_or(1 << self.index, Ordering::Release);
    }
}

/// What comes after the completion of an entry of such a file.
pub(crate) enum Step {
    /// Its descriptor is closed, if it has one.
    Ends { is_open: bool },
    /// The next entry is to be queued.
    GoesOn,
    /// It has been.
    Waits,
}

impl Driver {
    /// The lanes, if the kernel has everything that they need.
    fn lanes(&self, uring: &Uring) -> Option<&Arc<Lanes>> {
        let lanes = self.lanes.get_or_init(|| {
            let can = uring.skips_success() && uring.register_lanes(LANES);
            can.then(|| Arc::new(Lanes::new()))
        });
        lanes.as_ref()
    }

    /// Queues the entries that open a file and read it: what is cached, or, if it `waits`, whatever is there. `None`: not now, or not here.
    pub(crate) fn start_small(
        &self,
        path: &[u8],
        ioprio: u16,
        level: u8,
        waits: bool,
    ) -> Option<&Slot> {
        let Backend::Kernel(uring) = &self.backend else {
            return None;
        };
        // A close that waits for room goes first.
        let queued = self.backlog.len() + self.cancels.len() != 0;
        if self.closing.get() || queued || uring.room() < 3 {
            return None;
        }
        let (flags, resolve) = match waits {
            false => (libc::O_RDONLY | libc::O_NONBLOCK, libc::RESOLVE_CACHED),
            true => (libc::O_RDONLY, 0),
        };
        let how = types::OpenHow::new().flags(flags as u64).resolve(resolve);
        let lane = Lane::take(self.lanes(uring)?, path, how)?;
        let slot = self.slab.take()?;
        let opening = lane.opening();
        let entries = match waits {
            false => {
                let opening = opening.flags(Flags::SKIP_SUCCESS).user_data(CANCEL);
                [Some(opening), Some(lane.reading(ioprio)), None]
            }
            true => {
                let [first, second] = lane.waiting(ioprio);
                // A short read, which it is, ends an ordinary chain.
                let first = first.flags(Flags::IO_HARDLINK);
                [
                    Some(opening.flags(Flags::IO_LINK)),
                    Some(first),
                    Some(second),
                ]
            }
        };
        // SAFETY: a slot fresh from the slab has a free payload.
        unsafe { Stored::put(slot.payload(), ReadSmall::new(lane, waits)) };
        slot.table.set(Stored::<ReadSmall>::TABLE);
        slot.kind.set(Kind::Small);
        slot.level.set(level);
        slot.place.set(Place::Flying);
        self.handles.set(self.handles.get() + 1);
        self.flying.begin(level);
        self.chains.set(self.chains.get() + u32::from(waits));
        for entry in entries.into_iter().flatten() {
            let entry = match entry.get_user_data() {
                0 => entry.user_data(slot.user_data()),
                _ => entry,
            };
            // SAFETY: what it points to lies in the lane, which the operation in the slot holds until its terminal completion, that of the last entry.
            let pushed = unsafe { uring.push(&entry) };
            debug_assert!(pushed, "there is room");
        }
        Some(slot)
    }

    /// Is it the cancellation of such a slot, which has failed? The kernel knows nothing of an entry that is about to follow another one, so it is asked again,
    /// a few times: what waits for a device is not found either, and ends by itself.
    #[cold]
    pub(crate) fn is_chain(&self, user_data: u64, result: i32) -> bool {
        let Some(slot) = self.slab.get((user_data & !CHAIN) as u32) else {
            return false;
        };
        if slot.user_data() | CHAIN != user_data {
            // It has ended.
            return user_data & CHAIN != 0;
        }
        if slot.kind.get() == Kind::Small && result == -libc::ENOENT {
            // SAFETY: the kind says what the slot holds, and it is not complete.
            let small = unsafe { &mut *Stored::<ReadSmall>::place(slot.payload()) };
            if small.is_worth_another_cancel() {
                self.cancels.push(user_data);
            }
        }
        true
    }

    /// A completion of such a slot.
    #[inline(never)]
    pub(crate) fn small_event(&self, slot: &Slot, result: i32, flags: u32) {
        // SAFETY: the kind says what the slot holds, and it is not complete.
        let small = unsafe { &mut *Stored::<ReadSmall>::place(slot.payload()) };
        match small.step(result) {
            Step::GoesOn => return self.push_or_postpone(slot),
            Step::Waits => {
                if slot.has_mark(CANCELLED) {
                    // What comes next in the kernel has not heard of it.
                    self.cancel_or_close(slot.user_data() | CHAIN);
                }
                return;
            }
            Step::Ends { is_open: true } => {
                self.cancel_or_close(CLOSE | u64::from(small.lane().index));
            }
            Step::Ends { is_open: false } => {}
        }
        self.chains
            .set(self.chains.get() - u32::from(small.waits()));
        slot.kind.set(Kind::Once);
        self.finished(slot, result, flags);
    }
}

/// The entry that closes the descriptor of the lane that this names.
pub(crate) fn closing(user_data: u64) -> Entry {
    opcode::Close::new(types::Fixed((user_data & !CLOSE) as u32)).build()
}
