//! Small files: opened and read by entries that many files share one enter for, and closed many by one call. Owner only, but for [`Lane`].
//!
//! ```text
//!  cached:  open into a direct descriptor; read at once ──► all of it ──────────────────────────────► Done, to be closed
//!               │ one enter, in this order              └──► a part, or nothing yet ─► install ─────► Done, to be closed
//!               └──────────────────────────────────────────► not opened: its name is not cached, … ─► Done
//!  waiting: open ═► read ═► read behind it, linked ────────► the second one finds nothing ──────────► Done, to be closed
//!                                                       └──► it finds something, or one fails ─► install ─► Done, to be closed
//! ```
//!
//! * **What is cached does not wait.** The name is looked up with `RESOLVE_CACHED` and the bytes are read with `RWF_NOWAIT`, so the kernel carries both entries out while it
//!   takes them from the queue, one after the other, and hands neither to a thread of its own. That is the order that a link would make; it saves what
//!   a link costs (0.1 to 0.4 µs for a file).
//! * **What waits is a chain** of links. The end of a file is seen by a read that finds nothing, as only regular files promise that a short read has met it. Both reads are
//!   from the file's own position on, so what has been taken out of a FIFO is kept.
//! * **One completion** for a cached file that is read: an open that succeeds does not complete, as the read tells. All files of a turn are closed by one call
//!   (`IORING_REGISTER_FILES_UPDATE`), before what the turn hands over, before the ring sleeps, and when a lane is wanted.
//! * **A file is opened once**, whatever it is. A FIFO, a device or a file of procfs does not know `RWF_NOWAIT`: nothing is read of it, and it goes on as
//!   an ordinary descriptor, which it is made by the entry `install` (Linux 6.8), as does what is longer than [`ROOM`], or not cached.
//!
//! # No file is taken for another one
//!
//! io_uring promises no order of entries that nothing links, so nothing here rests on one. The bytes are safe by a single rule:
//!
//! > **A descriptor is used only while it is known to hold nothing, and no entry that names it is left** ([`Table`]).
//!
//! Then what a read or an install finds in it can only be what this file's own open has put there: no other entry names it. *Known* means:
//!
//! 1. A read or an install that found a file has shown that the open is over, for a file gets there in no other way, and an open is carried out once. It has found one if it
//!    succeeds, or fails as only a file makes it fail (EAGAIN, EOPNOTSUPP; EMFILE). The call that closes returns when the descriptor is empty. (Its count says which ones are.)
//! 2. An open that failed completes, and has put nothing there. The read behind it fails with EBADF.
//! 3. A read that has found nothing, while no failure of the open has been seen, does not tell: the open may be late, and what it opens then stays. This lane is
//!    *retired*: never used again, and closed with the ring. A retired lane is counted ([`Stats::retired`](crate::Stats::retired)), and from then on the ring links what it opens to
//!    what it reads. The same where an open failed and something was read.
//! 4. All entries of a chain complete, in whatever order, and it is done when all have. So its open is known to be over, and how.
//!
//! What may come, for the three entries of a file (open, read, install) and the call that closes:
//!
//! | what | then |
//! |---|---|
//! | read before open | EBADF; 3. The late open fills a lane that is not used again |
//! | install before open | it is queued when the read is over: EBADF; 3 |
//! | close before or among them | it is called when they are over; entries that name the lane are queued when it has returned |
//! | completions in another order | an open's failure behind the read's: 3, and the name of a file that is done is ignored. Those of a chain are counted |
//! | a submission that takes only a part | the rest is taken later, in order. A chain breaks in two, so its reads may come first: they fail, or read their own file; 4 |
//! | drain, entries handed to a thread | later, or in another order: as above |
//! | completion queue overflow | the kernel keeps them, in order. One dropped for want of memory: an open's, 3; a read's, the file is never done, as with any operation |
//! | EAGAIN, ENOENT, EACCES, ENFILE of the open | 2; what is not cached is then waited for by a chain |
//! | EAGAIN of the read | 1; it goes on by `install` |
//! | an error of the read that tells nothing of the descriptor | `install` tells: 1 or 3 |
//! | EMFILE of the install | 1; it counts as not opened |
//! | EAGAIN of the close | no thread could make the call now: later. Another error: all that are to be closed are retired, and lanes are given up |
//! | cancellation | what is cached is not cancelled, it ends with the next enter; of a chain each entry completes, with ECANCELED or without |
//! | the file is replaced, cut off or removed meanwhile | it was opened once, and all entries are about what was opened |
//! | shutdown | the cancellation of everything, as above; then the call that closes |
//!
//! `model.rs` goes through the orders of all entries, completions and calls.
//!
//! # Cancelling a chain
//!
//! The kernel finds the entry that it is at. That is the first one whose completion has not been seen, and when that comes, the next one is asked for. In between, while the next
//! waits in the kernel to be begun, nothing is found (ENOENT) and the question is repeated. An enter begins at least [`BEGUN`] of what waits so; before the entry there are
//! no more than what is in flight. An entry that waits for a device is not found either, and ends by itself.

mod course;
mod memory;
#[cfg(all(test, not(any(loom, sanitized))))]
mod model;
mod table;

pub(crate) use course::{Course, Outcome};
pub(crate) use memory::Lane;

use crate::backend::Backend;
use crate::counters::count;
use crate::driver::Driver;
use crate::op::ReadSmall;
use crate::operation::Stored;
use crate::slot::{ASKED, BEHIND, CANCELLED, Kind, OPEN, PARTS, Place, Slot};
use crate::uring::Uring;
use course::{Left, Part, Step, Way};
use io_uring::squeue::{Entry, Flags};
use io_uring::types;
use memory::{Memories, fits};
use std::cell::Cell;
use std::sync::Arc;
use table::Table;

/// Lanes of a ring: direct descriptors, each with memory beside it.
pub(crate) const LANES: u32 = 32;

/// Requests that the kernel begins in an enter before it returns to its caller, at least, of those that wait for nothing but that (`IO_LOCAL_TW_DEFAULT_MAX`; before Linux 6.14: all).
const BEGUN: usize = 20;

/// In the call that closes: not this one (`IORING_REGISTER_FILES_SKIP`).
const SKIP: i32 = -2;

/// All lanes of a ring.
pub(crate) struct Lanes {
    memories: Arc<Memories>,
    table: Cell<Table>,
    /// How files are read that are cached.
    way: Cell<Way>,
    /// No more of them.
    given_up: Cell<bool>,
}

impl Lanes {
    fn new() -> Lanes {
        Lanes {
            memories: Arc::new(Memories::new()),
            table: Cell::new(Table::new(LANES)),
            way: Cell::new(Way::Cached),
            given_up: Cell::new(false),
        }
    }

    fn update<T>(&self, change: impl FnOnce(&mut Table) -> T) -> T {
        let mut table = self.table.get();
        let result = change(&mut table);
        self.table.set(table);
        result
    }

    /// A lane whose descriptor is empty, and whose memory no operation holds.
    fn take(&self, path: &[u8], how: types::OpenHow) -> Option<Lane> {
        let free = self.memories.free();
        let index = self.update(|table| table.take(free))?;
        Some(Lane::take(&self.memories, index, path, how))
    }
}

/// The entries of a file, in order.
type Entries = [Option<Entry>; 3];

impl Driver {
    /// The lanes, if the kernel has everything that they need.
    fn lanes(&self, uring: &Uring) -> Option<&Lanes> {
        let lanes = self.lanes.get_or_init(|| {
            let can = uring.skips_success() && uring.register_lanes(LANES);
            can.then(Lanes::new)
        });
        lanes.as_ref().filter(|lanes| !lanes.given_up.get())
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
        let (slot, entries) = self.prepare_small(uring, path, ioprio, level, waits)?;
        for entry in entries.iter().flatten() {
            // SAFETY: what it points to lies in the lane, which the operation in the slot holds until the last of its completions.
            let pushed = unsafe { uring.push(entry) };
            debug_assert!(pushed, "there is room");
        }
        Some(slot)
    }

    /// A slot for the file, and its entries, all of which are to be queued.
    fn prepare_small(
        &self,
        uring: &Uring,
        path: &[u8],
        ioprio: u16,
        level: u8,
        waits: bool,
    ) -> Option<(&Slot, Entries)> {
        if self.closing.get() || !self.backlog.is_empty() || uring.room() < 3 || !fits(path) {
            return None;
        }
        let lanes = self.lanes(uring)?;
        let (way, flags, resolve) = match waits {
            true => (Way::Waiting, libc::O_RDONLY, 0),
            false => {
                let flags = libc::O_RDONLY | libc::O_NONBLOCK;
                (lanes.way.get(), flags, libc::RESOLVE_CACHED)
            }
        };
        let how = types::OpenHow::new().flags(flags as u64).resolve(resolve);
        let lane = lanes.take(path, how).or_else(|| {
            self.close_files();
            lanes.take(path, how)
        })?;
        let Some(slot) = self.slab.take() else {
            lanes.update(|table| table.ended(lane.index(), Left::Nothing));
            return None;
        };
        let name = slot.user_data();
        let open = lane.opening(name);
        let entries = match way {
            Way::Cached => {
                let read = lane.reading(name, ioprio);
                [Some(open.flags(Flags::SKIP_SUCCESS)), Some(read), None]
            }
            Way::Linked => {
                let read = lane.reading(name, ioprio);
                [Some(open.flags(Flags::IO_LINK)), Some(read), None]
            }
            Way::Waiting => {
                let [read, behind] = lane.waiting(name, ioprio);
                // A short read, which it is, ends an ordinary chain.
                let read = read.flags(Flags::IO_HARDLINK);
                [Some(open.flags(Flags::IO_LINK)), Some(read), Some(behind)]
            }
        };
        let course = Course::new(way);
        self.chains
            .set(self.chains.get() + u32::from(course.is_chain()));
        let small = ReadSmall {
            lane,
            course,
            cancels: 0,
        };
        // SAFETY: a slot fresh from the slab has a free payload.
        unsafe { Stored::put(slot.payload(), small) };
        slot.table.set(Stored::<ReadSmall>::TABLE);
        slot.kind.set(Kind::Small);
        slot.level.set(level);
        slot.place.set(Place::Flying);
        self.handles.set(self.handles.get() + 1);
        self.flying.begin(level);
        Some((slot, entries))
    }

    /// A completion that has the name of a slot and nothing more.
    #[inline(never)]
    pub(crate) fn small_event(&self, slot: &Slot, result: i32, flags: u32) {
        // SAFETY: the kind says what the slot holds, and it is not complete.
        let small = unsafe { &*Stored::<ReadSmall>::place(slot.payload()) };
        self.small_part(slot, small.course.plain(), result, flags);
    }

    /// A completion that names one of the other entries of a file, or that of the cancellation of one. False: it names none, or none that is in the kernel.
    #[cold]
    pub(crate) fn small_unmatched(&self, name: u64, result: i32, flags: u32) -> bool {
        let slot = self.slab.get((name & !PARTS) as u32);
        let slot = slot.filter(|slot| {
            let is_there = slot.kind.get() == Kind::Small && slot.place.get() == Place::Flying;
            slot.user_data() == name & !PARTS && is_there
        });
        let part = match name & PARTS & !ASKED {
            0 => Part::Read,
            OPEN => Part::Open,
            BEHIND => Part::Behind,
            _ => return false,
        };
        match slot {
            // A cancellation may come too late.
            None => name & ASKED != 0,
            Some(slot) if name & ASKED != 0 => {
                self.was_cancelled(slot, part, result);
                true
            }
            Some(slot) => {
                self.small_part(slot, part, result, flags);
                true
            }
        }
    }

    /// The completion of an entry.
    fn small_part(&self, slot: &Slot, part: Part, result: i32, flags: u32) {
        // SAFETY: the kind says what the slot holds, and it is not complete.
        let small = unsafe { &mut *Stored::<ReadSmall>::place(slot.payload()) };
        small.cancels = 0;
        match small.course.completed(part, result) {
            Step::Installs => self.push_or_postpone(slot),
            // What comes next in the kernel has not heard of it.
            Step::Waits if slot.has_mark(CANCELLED) => self.cancel_small(slot),
            Step::Waits => {}
            Step::Ends(left) => {
                self.chains
                    .set(self.chains.get() - u32::from(small.course.is_chain()));
                self.ended(small.lane.index(), left);
                slot.kind.set(Kind::Once);
                self.finished(slot, result, flags);
            }
        }
    }

    /// No entry names this lane any more.
    fn ended(&self, index: u32, left: Left) {
        let Some(Some(lanes)) = self.lanes.get() else {
            return;
        };
        lanes.update(|table| table.ended(index, left));
        match left {
            Left::Nothing => {}
            Left::File => self.unclosed.set(1),
            Left::Unknown => {
                lanes.way.set(Way::Linked);
                count(&self.counters.retired);
            }
        }
    }

    /// Closes what files have left, by one call. All of it, or later.
    #[cold]
    pub(crate) fn close_files(&self) {
        let (Backend::Kernel(uring), Some(Some(lanes))) = (&self.backend, self.lanes.get()) else {
            return;
        };
        let filled = lanes.table.get().filled();
        if filled == 0 {
            return;
        }
        let (first, end) = (filled.trailing_zeros(), LANES - filled.leading_zeros());
        let closes = |lane| if filled >> lane & 1 != 0 { -1 } else { SKIP };
        let all: [i32; LANES as usize] = std::array::from_fn(closes);
        match uring.update_lanes(first, &all[first as usize..end as usize]) {
            Ok(count) => {
                let behind = (u64::MAX << (first + count as u32)) as u32;
                lanes.update(|table| table.closed(filled & !behind));
            }
            // The thread that could do it is not there.
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
            Err(_) => {
                let retired = lanes.update(Table::retire);
                let counter = &self.counters.retired;
                counter.set(counter.get() + u64::from(retired));
                lanes.given_up.set(true);
            }
        }
        let left = lanes.table.get().filled() != 0;
        self.unclosed.set(usize::from(left));
    }

    /// Asks for the end of the entry of a chain that the kernel is at.
    pub(crate) fn cancel_small(&self, slot: &Slot) {
        // SAFETY: the kind says what the slot holds, and it is not complete.
        let small = unsafe { &*Stored::<ReadSmall>::place(slot.payload()) };
        let part = match small.course.waits_for() {
            None => return,
            Some(Part::Open) => OPEN,
            Some(Part::Behind) => BEHIND,
            Some(Part::Read | Part::Install) => 0,
        };
        self.ask_to_cancel(slot.user_data() | part | ASKED);
    }

    /// What came of that.
    fn was_cancelled(&self, slot: &Slot, part: Part, result: i32) {
        // SAFETY: the kind says what the slot holds, and it is not complete.
        let small = unsafe { &mut *Stored::<ReadSmall>::place(slot.payload()) };
        if result != -libc::ENOENT || small.course.waits_for() != Some(part) {
            return;
        }
        small.cancels += 1;
        if small.cancels as usize <= 1 + self.flying.count() / BEGUN {
            self.cancel_small(slot);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
