//! Address spaces of processes, and the only way to user memory.
//!
//! A [`UserSlice`] is an *allegation*: a program says that this is memory of its
//! own. It is checked page by page against the page table, for the access that
//! is meant, and copied through the kernel's mapping, at the moment of use and
//! under the lock of the table. The kernel never follows a user's address, so no
//! address makes it fault.
//!
//! An address space is freed when nobody holds it any more; a hart that has it
//! in `satp` holds it ([`load`], [`unload`]).

use alloc::sync::Arc;
use core::ptr::{read_volatile, write_volatile};
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};

use os_abi::shared::{CHAOS, RING_PAGES, TRACING};
use os_abi::thread::LINE_WORDS;
use os_abi::{Error, layout};

use super::frames::{self, Frame};
use super::pagetable::{Access, LOWER_END, Mapping, PageTable};
use super::{KERNEL_TABLE, OutOfMemory, PAGE};
use crate::MAX_HARTS;
use crate::arch::lock::{IrqLock, Once};
use crate::arch::{csr, hart_index};
use crate::{chaos, trace};

/// Frames that user memory leaves to the kernel: 8 MiB.
const RESERVE: usize = 2048;

/// The address space of a process.
pub(crate) struct AddressSpace {
    table: IrqLock<PageTable>,
    satp: usize,
    /// Frames of user memory that may still be taken.
    allowance: AtomicUsize,
    /// The words that the kernel and the program both look at.
    shared: SharedPage,
    /// Where the program writes what its coroutines do.
    trace: Option<TracePage>,
    /// Pages of the completion ring that were needed so far.
    completions: [Once<SharedPage>; RING_PAGES],
    /// The same for each of its threads.
    threads: SharedPage,
}

/// A frame of words that programs see as well. The kernel accesses it word by
/// word, atomically, and holds no reference into it.
pub(crate) struct SharedPage(Frame);

impl SharedPage {
    fn new() -> Result<SharedPage, OutOfMemory> {
        Frame::zeroed().map(SharedPage)
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < PAGE / 8);
        // SAFETY: within a frame of ours that holds nothing but such words;
        // aligned; programs access it too, which atomics allow.
        unsafe { &*((self.0.address().direct() as *const AtomicU64).add(index)) }
    }

    /// Reads a word: whatever the program has put there.
    pub(crate) fn load(&self, index: usize) -> u64 {
        self.word(index).load(SeqCst)
    }

    /// Writes a word.
    pub(crate) fn store(&self, index: usize, value: u64) {
        self.word(index).store(value, SeqCst);
    }

    /// Makes a word that is 0 a 1. False: it is not 0.
    pub(crate) fn claim(&self, index: usize) -> bool {
        let word = self.word(index);
        word.compare_exchange(0, 1, SeqCst, SeqCst).is_ok()
    }
}

/// The page of [`os_abi::trace`].
pub(crate) struct TracePage {
    pub(crate) page: SharedPage,
    /// Entries that were taken out.
    pub(crate) taken: IrqLock<u64>,
}

impl TracePage {
    fn new(page: SharedPage) -> TracePage {
        TracePage {
            page,
            taken: IrqLock::new(0),
        }
    }
}

/// The page with the global bitmap, the same in every space.
static GLOBAL: Once<SharedPage> = Once::new();

/// Makes what all spaces share, while booting.
///
/// # Errors
/// [`OutOfMemory`].
pub(super) fn init() -> Result<(), OutOfMemory> {
    GLOBAL.set(SharedPage::new()?);
    Ok(())
}

/// The page with the global bitmap.
pub(crate) fn global() -> &'static SharedPage {
    GLOBAL.get()
}

/// A range of a program's memory, if it is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UserSlice {
    start: usize,
    len: usize,
}

impl UserSlice {
    /// The range, if it is in the lower half.
    ///
    /// # Errors
    /// [`Error::BadAddress`].
    pub(crate) fn new(start: usize, len: usize) -> Result<UserSlice, Error> {
        match start.checked_add(len) {
            Some(end) if end <= LOWER_END => Ok(UserSlice { start, len }),
            _ => Err(Error::BadAddress),
        }
    }

    /// Bytes.
    pub(crate) fn len(self) -> usize {
        self.len
    }

    /// The part from `offset` on, at most `len` bytes.
    pub(crate) fn part(self, offset: usize, len: usize) -> UserSlice {
        let offset = offset.min(self.len);
        UserSlice {
            start: self.start + offset,
            len: len.min(self.len - offset),
        }
    }

    /// Its pieces, each within one page: page, offset in it, bytes.
    fn pieces(self) -> impl Iterator<Item = (usize, usize, usize)> {
        let mut rest = self;
        core::iter::from_fn(move || {
            let (page, offset) = (rest.start / PAGE * PAGE, rest.start % PAGE);
            let len = rest.len.min(PAGE - offset);
            rest = rest.part(len, usize::MAX);
            (len > 0).then_some((page, offset, len))
        })
    }
}

impl AddressSpace {
    /// A space with the kernel and nothing else, for at most so many frames.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(crate) fn new(allowance: usize) -> Result<AddressSpace, OutOfMemory> {
        let mut table = PageTable::with_kernel(KERNEL_TABLE.get())?;
        let shared = SharedPage::new()?;
        table.map_shared(layout::SHARED, shared.0.address(), Mapping::USER_DATA)?;
        let threads = SharedPage::new()?;
        table.map_shared(layout::THREADS, threads.0.address(), Mapping::USER_DATA)?;
        let trace = match trace::is_on() {
            true => Some(TracePage::new(SharedPage::new()?)),
            false => None,
        };
        if let Some(trace) = &trace {
            let page = trace.page.0.address();
            table.map_shared(layout::TRACE, page, Mapping::USER_DATA)?;
            shared.store(TRACING, 1);
        }
        shared.store(CHAOS, chaos::seed());
        let global = global().0.address();
        table.map_shared(layout::GLOBAL, global, Mapping::USER_CONSTANTS)?;
        Ok(AddressSpace {
            satp: table.satp(),
            table: IrqLock::new(table),
            allowance: AtomicUsize::new(allowance),
            shared,
            threads,
            trace,
            completions: [const { Once::new() }; RING_PAGES],
        })
    }

    /// Makes a page of the completion ring, unless it is there. Under the lock of the
    /// process's ring.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(crate) fn need_completions(&self, page: usize) -> Result<(), OutOfMemory> {
        if self.completions[page].try_get().is_some() {
            return Ok(());
        }
        let frame = SharedPage::new()?;
        let address = layout::COMPLETIONS + page * PAGE;
        let mut table = self.table.lock();
        table.map_shared(address, frame.0.address(), Mapping::USER_DATA)?;
        drop(table);
        csr::flush_translations();
        self.completions[page].set(frame);
        Ok(())
    }

    /// A page of the completion ring, if it was needed.
    pub(crate) fn completions(&self, page: usize) -> Option<&SharedPage> {
        self.completions[page].try_get()
    }

    /// Where the program writes what its coroutines do, if the kernel traces.
    pub(crate) fn trace(&self) -> Option<&TracePage> {
        self.trace.as_ref()
    }

    /// The words that the kernel and the program both look at.
    pub(crate) fn shared(&self) -> &SharedPage {
        &self.shared
    }

    /// A word of the line of a thread.
    pub(crate) fn line(&self, line: usize, word: usize) -> u64 {
        self.threads.load(line * LINE_WORDS + word)
    }

    /// Sets a word of the line of a thread.
    pub(crate) fn set_line(&self, line: usize, word: usize, value: u64) {
        self.threads.store(line * LINE_WORDS + word, value);
    }

    /// Sets all words of the line of a thread to 0.
    pub(crate) fn clear_line(&self, line: usize) {
        for word in 0..LINE_WORDS {
            self.set_line(line, word, 0);
        }
    }

    /// Copies the line of a thread.
    pub(crate) fn copy_line(&self, from: &AddressSpace, line: usize) {
        for word in 0..LINE_WORDS {
            self.set_line(line, word, from.line(line, word));
        }
    }

    /// Copies the words that the kernel and the program both look at.
    pub(crate) fn copy_shared(&self, from: &AddressSpace) {
        for word in 0..PAGE / 8 {
            self.shared.store(word, from.shared.load(word));
        }
    }

    /// Makes copies of at most `count` pages, from address `start` on, that are not
    /// here yet; those that all processes share are shared. Returns where to go on.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(crate) fn copy_pages(
        &self,
        from: &AddressSpace,
        start: usize,
        count: usize,
    ) -> Result<Option<usize>, OutOfMemory> {
        if chaos::is_out_of_memory(512) {
            return Err(OutOfMemory);
        }
        let mut at = start;
        for _ in 0..count {
            let next = from.table.lock().next_page(at);
            let Some(next) = next else { return Ok(None) };
            at = next.page + PAGE;
            // Its ring of completions is its own.
            let of_ring = layout::COMPLETIONS..layout::COMPLETIONS + RING_PAGES * PAGE;
            if self.is_mapped(next.page) || of_ring.contains(&next.page) {
                continue;
            }
            if !next.owned {
                let mut table = self.table.lock();
                table.map_shared(next.page, next.frame, next.mapping)?;
                continue;
            }
            let frame = self.new_frame(&[])?;
            // SAFETY: see `copy`; both are frames, one of ours alone, the other of a
            // space that is held by the caller, from which nothing is ever unmapped.
            unsafe {
                copy(
                    next.frame.direct() as *const u8,
                    frame.address().direct() as *mut u8,
                    PAGE,
                );
            }
            self.table
                .lock()
                .map_owned(next.page, frame, next.mapping)?;
        }
        Ok(Some(at))
    }

    /// A frame of the allowance that begins with these bytes.
    fn new_frame(&self, bytes: &[u8]) -> Result<Frame, OutOfMemory> {
        if frames::free_frames() < RESERVE {
            return Err(OutOfMemory);
        }
        let taken = |allowance: usize| allowance.checked_sub(1);
        self.allowance
            .fetch_update(Relaxed, Relaxed, taken)
            .map_err(|_| OutOfMemory)?;
        Frame::with(bytes)
    }

    /// The 32-bit word at an address, read at once.
    ///
    /// # Errors
    /// [`Error::BadAddress`]: not aligned, or not the program's.
    pub(crate) fn load_word(&self, address: usize) -> Result<u32, Error> {
        let table = self.table.lock();
        if !address.is_multiple_of(4) {
            return Err(Error::BadAddress);
        }
        let (page, offset) = (address / PAGE * PAGE, address % PAGE);
        let frame = table
            .translate(page, Some(Access::Read))
            .ok_or(Error::BadAddress)?;
        // SAFETY: within a frame of the program, which lives while its table is
        // locked; aligned; programs access it too, which atomics allow.
        let word = unsafe { &*((frame.direct() + offset) as *const AtomicU32) };
        Ok(word.load(SeqCst))
    }

    /// Maps a frame that is never freed, not for writing.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(crate) fn map_static(
        &self,
        page: usize,
        frame: &'static Frame,
        mapping: Mapping,
    ) -> Result<(), OutOfMemory> {
        debug_assert!(mapping != Mapping::USER_DATA);
        self.table.lock().map_shared(page, frame.address(), mapping)
    }

    /// Maps a page that has no frame yet to a new one with these first bytes.
    ///
    /// # Errors
    /// [`OutOfMemory`]: memory is short, or the space has used its allowance.
    pub(crate) fn map_page(
        &self,
        page: usize,
        bytes: &[u8],
        mapping: Mapping,
    ) -> Result<(), OutOfMemory> {
        let frame = self.new_frame(bytes)?;
        self.table.lock().map_owned(page, frame, mapping)?;
        // The hardware may remember that there was nothing.
        csr::flush_translations();
        Ok(())
    }

    /// Does the program have all of this memory, for this access? It cannot lose
    /// any: pages are never unmapped, only whole spaces are dropped.
    ///
    /// # Errors
    /// [`Error::BadAddress`].
    pub(crate) fn check(&self, slice: UserSlice, access: Access) -> Result<(), Error> {
        let table = self.table.lock();
        let all = slice
            .pieces()
            .all(|(page, _, _)| table.translate(page, Some(access)).is_some());
        if all { Ok(()) } else { Err(Error::BadAddress) }
    }

    /// Is anything mapped at this page?
    pub(crate) fn is_mapped(&self, page: usize) -> bool {
        self.table.lock().translate(page, None).is_some()
    }

    /// Copies from the program.
    ///
    /// # Errors
    /// [`Error::BadAddress`]; part of it may have been copied.
    pub(crate) fn read(&self, from: UserSlice, to: &mut [u8]) -> Result<(), Error> {
        let from = from.part(0, to.len());
        if from.len < to.len() {
            return Err(Error::BadAddress);
        }
        let mut done = 0;
        for (page, offset, len) in from.pieces() {
            let table = self.table.lock();
            let frame = table
                .translate(page, Some(Access::Read))
                .ok_or(Error::BadAddress)?;
            // SAFETY: see `copy`; `frame` is a frame of the program as long as
            // its table is locked or alive, and `len` bytes stay within it; `to`
            // has `len` bytes left.
            unsafe {
                copy(
                    (frame.direct() + offset) as *const u8,
                    to[done..done + len].as_mut_ptr(),
                    len,
                );
            }
            done += len;
        }
        Ok(())
    }

    /// Copies to the program.
    ///
    /// # Errors
    /// [`Error::BadAddress`]; part of it may have been copied.
    pub(crate) fn write(&self, to: UserSlice, from: &[u8]) -> Result<(), Error> {
        let to = to.part(0, from.len());
        if to.len < from.len() {
            return Err(Error::BadAddress);
        }
        let mut done = 0;
        for (page, offset, len) in to.pieces() {
            let table = self.table.lock();
            let frame = table
                .translate(page, Some(Access::Write))
                .ok_or(Error::BadAddress)?;
            // SAFETY: as in `read`; the page is one that the program may write.
            unsafe {
                copy(
                    from[done..done + len].as_ptr(),
                    (frame.direct() + offset) as *mut u8,
                    len,
                );
            }
            done += len;
        }
        Ok(())
    }
}

/// Copies between kernel memory and a frame of a program.
///
/// Other harts may run the program meanwhile and write the same bytes: what is
/// copied is then any mixture. No Rust object is in such a frame and no
/// reference to it exists, so the accesses are volatile, like those to a device.
///
/// # Safety
/// `from` and `to` are valid for `len` bytes and do not overlap.
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    let words = if (from.addr() | to.addr()).is_multiple_of(8) {
        len / 8
    } else {
        0
    };
    for n in 0..words {
        // SAFETY: within the ranges, and aligned.
        unsafe {
            write_volatile(
                to.cast::<u64>().add(n),
                read_volatile(from.cast::<u64>().add(n)),
            )
        };
    }
    for n in 8 * words..len {
        // SAFETY: within the ranges.
        unsafe { write_volatile(to.add(n), read_volatile(from.add(n))) };
    }
}

/// The space each hart has in `satp`; none: the kernel's own table.
static LOADED: [IrqLock<Option<Arc<AddressSpace>>>; MAX_HARTS] =
    [const { IrqLock::new(None) }; MAX_HARTS];

/// Installs a space on the calling hart, which holds it from now on. Interrupts
/// are masked, or the hart is otherwise kept from changing.
pub(crate) fn load(space: &Arc<AddressSpace>) {
    let mut loaded = LOADED[hart_index()].lock();
    if loaded
        .as_ref()
        .is_some_and(|loaded| Arc::ptr_eq(loaded, space))
    {
        return;
    }
    // SAFETY: it maps the kernel as every table does, and lives until `loaded`
    // is replaced, which happens after another table is installed.
    unsafe { csr::set_satp(space.satp) };
    // A program's text was written by some hart.
    csr::flush_instructions();
    let old = loaded.replace(space.clone());
    drop(loaded);
    drop(old);
}

/// Installs the kernel's own table on the calling hart and lets go of the space
/// it had.
pub(crate) fn unload() {
    let mut loaded = LOADED[hart_index()].lock();
    if loaded.is_some() {
        super::install_kernel_table();
        let old = loaded.take();
        drop(loaded);
        drop(old);
    }
}
