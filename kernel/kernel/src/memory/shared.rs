//! Frames that kernel and programs share, accessed as atomic words.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::SeqCst;

use super::frames::Frame;
use super::{OutOfMemory, PAGE, PhysAddr};
use crate::arch::lock::{IrqLock, Once};

/// A frame of words that kernel and programs share. The kernel accesses it word by word,
/// atomically, and keeps no reference into it.
pub(crate) struct SharedPage(Frame);

impl SharedPage {
    pub(super) fn new() -> Result<SharedPage, OutOfMemory> {
        Frame::zeroed().map(SharedPage)
    }

    pub(super) fn address(&self) -> PhysAddr {
        self.0.address()
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < PAGE / 8);
        // SAFETY: the word is within the frame that this value owns, and which contains only such
        // words; it is aligned; programs access it concurrently, which atomics permit.
        unsafe { &*((self.0.address().direct() as *const AtomicU64).add(index)) }
    }

    /// Reads a word, which the program may have set to any value.
    pub(crate) fn load(&self, index: usize) -> u64 {
        self.word(index).load(SeqCst)
    }

    pub(crate) fn store(&self, index: usize, value: u64) {
        self.word(index).store(value, SeqCst);
    }

    /// Changes a word from 0 to 1. Returns false if it is not 0.
    pub(crate) fn claim(&self, index: usize) -> bool {
        let word = self.word(index);
        word.compare_exchange(0, 1, SeqCst, SeqCst).is_ok()
    }
}

/// The page of [`os_abi::trace`], which a program fills.
pub(crate) struct TracePage {
    pub(crate) page: SharedPage,
    /// Number of entries that the kernel has read.
    pub(crate) read: IrqLock<u64>,
}

impl TracePage {
    pub(super) fn new(page: SharedPage) -> TracePage {
        TracePage {
            page,
            read: IrqLock::new(0),
        }
    }
}

/// The page with the global bitmap, the same in every space.
static GLOBAL: Once<SharedPage> = Once::new();

/// Creates the pages that all spaces share. Called while booting.
pub(super) fn init() -> Result<(), OutOfMemory> {
    GLOBAL.set(SharedPage::new()?);
    Ok(())
}

pub(crate) fn global() -> &'static SharedPage {
    GLOBAL.get()
}
