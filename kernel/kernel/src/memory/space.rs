//! Address spaces of processes: their mappings, and the harts that use them.
//!
//! An address space is freed when its last holder is dropped; a hart that has the space in `satp`,
//! or will load it before it returns to user mode, is a holder ([`load`], [`unload`]).

use alloc::sync::Arc;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

use os_abi::layout;
use os_abi::shared::{CHAOS, RING_PAGES, TRACING};
use os_abi::thread::LINE_WORDS;

use super::frames::{self, Frame};
use super::pagetable::{Mapping, PageTable};
use super::shared::{SharedPage, TracePage, global};
use super::user::copy;
use super::{OutOfMemory, PAGE, isolation};
use crate::MAX_HARTS;
use crate::arch::lock::{IrqLock, Once};
use crate::arch::{csr, hart_index};
use crate::process::Share;
use crate::process::share::{Charge, PAGE_KIB, Resource};
use crate::{chaos, trace};

/// Maximum number of frames of user memory that a process may have: 16 MiB.
const MAX_FRAMES: usize = 4096;
/// Number of frames that a space needs for itself: shared pages, tables, the kernel's records of
/// the process.
const OVERHEAD: usize = 16;
/// Number of frames that user memory leaves to the kernel: 8 MiB.
const RESERVE: usize = 2048;

pub(crate) struct AddressSpace {
    pub(super) table: IrqLock<PageTable>,
    satp: usize,
    asid: isolation::Asid,
    /// Number of frames of user memory that may still be charged.
    allowance: AtomicUsize,
    shared: SharedPage,
    /// Page in which the program records the events of its coroutines.
    trace: Option<TracePage>,
    /// Pages of the completion ring, allocated on demand.
    completions: [Once<SharedPage>; RING_PAGES],
    /// A line of words for each thread of the process.
    threads: SharedPage,
    /// Memory charged to the share of the process. The last field, so that it is dropped last.
    charge: Charge,
}

impl AddressSpace {
    /// Creates a space that contains only its shared pages. Its memory is charged to `share`, the
    /// limits of the process (`process/share.rs`).
    pub(crate) fn new(share: &Arc<Share>) -> Result<AddressSpace, OutOfMemory> {
        let charge = share.charge(Resource::Memory, OVERHEAD * PAGE_KIB);
        let charge = charge.map_err(|_| OutOfMemory)?;
        let asid = isolation::Asid::new()?;
        let mut table = PageTable::with_upper(isolation::upper_half_table())?;
        let shared = SharedPage::new()?;
        table.map_shared(layout::SHARED, shared.address(), Mapping::USER_DATA)?;
        let threads = SharedPage::new()?;
        table.map_shared(layout::THREADS, threads.address(), Mapping::USER_DATA)?;
        let trace = if trace::is_on() {
            Some(TracePage::new(SharedPage::new()?))
        } else {
            None
        };
        if let Some(trace) = &trace {
            let page = trace.page.address();
            table.map_shared(layout::TRACE, page, Mapping::USER_DATA)?;
            shared.store(TRACING, 1);
        }
        shared.store(CHAOS, chaos::seed());
        let global = global().address();
        table.map_shared(layout::GLOBAL, global, Mapping::USER_CONSTANTS)?;
        Ok(AddressSpace {
            satp: asid.satp(&table),
            asid,
            table: IrqLock::new(table),
            allowance: AtomicUsize::new(MAX_FRAMES),
            shared,
            threads,
            trace,
            completions: [const { Once::new() }; RING_PAGES],
            charge,
        })
    }

    /// Allocates a page of the completion ring, unless it exists. The caller holds the lock of the
    /// process's ring.
    pub(crate) fn ensure_completions(&self, page: usize) -> Result<(), OutOfMemory> {
        if self.completions[page].try_get().is_some() {
            return Ok(());
        }
        self.charge.grow(PAGE_KIB).map_err(|_| OutOfMemory)?;
        let frame = SharedPage::new()?;
        let address = layout::COMPLETIONS + page * PAGE;
        let mut table = self.table.lock();
        table.map_shared(address, frame.address(), Mapping::USER_DATA)?;
        drop(table);
        csr::flush_translations();
        self.completions[page].set(frame);
        Ok(())
    }

    pub(crate) fn completions(&self, page: usize) -> Option<&SharedPage> {
        self.completions[page].try_get()
    }

    /// Returns the page in which the program records the events of its coroutines, if the kernel
    /// traces.
    pub(crate) fn trace(&self) -> Option<&TracePage> {
        self.trace.as_ref()
    }

    pub(crate) fn shared(&self) -> &SharedPage {
        &self.shared
    }

    /// Returns a word of a line, that is, of the words of one thread.
    pub(crate) fn line(&self, line: usize, word: usize) -> u64 {
        self.threads.load(line * LINE_WORDS + word)
    }

    pub(crate) fn set_line(&self, line: usize, word: usize, value: u64) {
        self.threads.store(line * LINE_WORDS + word, value);
    }

    pub(crate) fn clear_line(&self, line: usize) {
        for word in 0..LINE_WORDS {
            self.set_line(line, word, 0);
        }
    }

    pub(crate) fn copy_line(&self, from: &AddressSpace, line: usize) {
        for word in 0..LINE_WORDS {
            self.set_line(line, word, from.line(line, word));
        }
    }

    pub(crate) fn copy_shared(&self, from: &AddressSpace) {
        for word in 0..PAGE / 8 {
            self.shared.store(word, from.shared.load(word));
        }
    }

    /// Copies at most `count` pages, from address `start` on, that do not exist in this space.
    /// Pages common to all processes are mapped, not copied. Returns the address at which to
    /// continue, or `None` when no page is left.
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
            // Each space has its own ring of completions.
            let ring = layout::COMPLETIONS..layout::COMPLETIONS + RING_PAGES * PAGE;
            if self.is_mapped(next.page) || ring.contains(&next.page) {
                continue;
            }
            if !next.is_owned {
                let mut table = self.table.lock();
                table.map_shared(next.page, next.frame, next.mapping)?;
                continue;
            }
            let frame = self.new_frame(&[])?;
            // SAFETY: see `copy`; both pointers lead to frames. This space has just allocated the
            // target; the source belongs to a space that the caller holds, and pages are never
            // unmapped.
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

    /// Allocates a frame that begins with `bytes`, and charges it to the allowance.
    fn new_frame(&self, bytes: &[u8]) -> Result<Frame, OutOfMemory> {
        if frames::free_frames() < RESERVE {
            return Err(OutOfMemory);
        }
        let decrement = |allowance: usize| allowance.checked_sub(1);
        self.allowance
            .fetch_update(Relaxed, Relaxed, decrement)
            .map_err(|_| OutOfMemory)?;
        self.charge.grow(PAGE_KIB).map_err(|_| OutOfMemory)?;
        Frame::with(bytes)
    }

    /// Maps a frame that is never freed, read-only.
    pub(crate) fn map_static(
        &self,
        page: usize,
        frame: &'static Frame,
        mapping: Mapping,
    ) -> Result<(), OutOfMemory> {
        debug_assert!(mapping != Mapping::USER_DATA);
        self.table.lock().map_shared(page, frame.address(), mapping)
    }

    /// Maps an unmapped page to a new frame that begins with `bytes`.
    ///
    /// # Errors
    /// [`OutOfMemory`] if memory is short, or the space has used its allowance or its share.
    pub(crate) fn map_page(
        &self,
        page: usize,
        bytes: &[u8],
        mapping: Mapping,
    ) -> Result<(), OutOfMemory> {
        let frame = self.new_frame(bytes)?;
        self.table.lock().map_owned(page, frame, mapping)?;
        // The hardware may have cached the absence of a mapping.
        csr::flush_translations();
        Ok(())
    }

    pub(crate) fn is_mapped(&self, page: usize) -> bool {
        self.table.lock().translate(page, None).is_some()
    }
}

/// The space of the program that a hart runs or ran last, if any.
static LOADED: [IrqLock<Option<Arc<AddressSpace>>>; MAX_HARTS] =
    [const { IrqLock::new(None) }; MAX_HARTS];

/// Installs a space on the calling hart, which becomes a holder. Interrupts are masked, or the
/// caller otherwise stays on this hart.
pub(crate) fn load(space: &Arc<AddressSpace>) {
    let mut loaded = LOADED[hart_index()].lock();
    if loaded
        .as_ref()
        .is_some_and(|loaded| Arc::ptr_eq(loaded, space))
    {
        return;
    }
    // SAFETY: the table maps the same pages of the kernel as every table, and lives until `loaded`
    // is replaced, which happens after another table is installed.
    unsafe { space.asid.enter(space.satp) };
    // Another hart may have written the program's text.
    csr::flush_instructions();
    let old = loaded.replace(space.clone());
    drop(loaded);
    drop(old);
}

/// Installs the kernel's table on the calling hart, and releases the space of its last program.
pub(crate) fn unload() {
    let mut loaded = LOADED[hart_index()].lock();
    if loaded.is_some() {
        isolation::leave();
        let old = loaded.take();
        drop(loaded);
        drop(old);
    }
}
