//! Decides whether the next operation on a file is *tried*, that is, attempted without the ring
//! (the vCPU's io_uring or its substitute).
//!
//! An attempt that succeeds (a *hit*) saves the way through the ring; an attempt that would have
//! waited (a *miss*) costs somewhat more than a hit saves. So after [`MISSES`] misses in a row the
//! next [`PAUSE`] operations go through the ring, then one operation is tried again. A hit ends the
//! pause, a miss begins another pause. Of operations that all miss, one in `PAUSE + 1` is tried in
//! vain; a file that becomes cached is read without the ring after at most [`PAUSE`] more reads.
//! Where hits and misses alternate, every operation is tried, and nothing is gained or lost.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use upshift_ring::Fd;

/// Number of misses in a row after which a pause begins.
const MISSES: u32 = 3;
/// Number of operations in a pause, which all go through the ring.
const PAUSE: u32 = 128;
/// State in which no operation is tried.
const NEVER: u32 = u32::MAX;
/// State in which the kernel has not yet been asked for the flags of the file.
const UNKNOWN: u32 = u32::MAX - 1;

/// History of recent attempts on a file, or on the names that a thread opens. It is only a hint,
/// because threads that use it at the same time may overwrite each other's results.
///
/// A value below [`MISSES`] is the number of misses in a row. A larger value is `MISSES - 1` plus
/// the number of operations left in the pause.
#[derive(Debug)]
pub(super) struct AttemptHistory(AtomicU32);

impl AttemptHistory {
    pub(super) const fn new() -> AttemptHistory {
        AttemptHistory(AtomicU32::new(0))
    }

    /// Creates the history of a file that was opened elsewhere, with unknown flags.
    pub(super) const fn unknown() -> AttemptHistory {
        AttemptHistory(AtomicU32::new(UNKNOWN))
    }

    /// Creates the history of a file opened with these flags. Reads with `O_DIRECT` wait for the
    /// device, and are never tried.
    pub(super) fn with_flags(flags: i32) -> AttemptHistory {
        let never = flags & (libc::O_DIRECT | libc::O_PATH) != 0;
        AttemptHistory(AtomicU32::new(if never { NEVER } else { 0 }))
    }

    /// Returns true if the next operation is tried; `file` is the file of the operation, if any.
    #[inline]
    pub(super) fn is_due(&self, file: Option<&Fd>) -> bool {
        match self.0.load(Relaxed) {
            0..MISSES => true,
            state => self.is_due_in(state, file),
        }
    }

    #[cold]
    fn is_due_in(&self, state: u32, file: Option<&Fd>) -> bool {
        match state {
            NEVER => false,
            UNKNOWN => file.is_none_or(|fd| self.load_flags(fd)),
            _ => {
                self.0.store(state - 1, Relaxed);
                false
            }
        }
    }

    /// Asks the kernel for the flags of a file that was opened elsewhere. Returns true if
    /// operations on the file can be tried.
    fn load_flags(&self, file: &Fd) -> bool {
        // SAFETY: `F_GETFL` takes no pointer.
        let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
        let state = AttemptHistory::with_flags(flags).0.into_inner();
        self.0.store(state, Relaxed);
        state == 0
    }

    /// Returns true unless the file is known to bypass the page cache.
    pub(super) fn is_cacheable(&self, file: &Fd) -> bool {
        match self.0.load(Relaxed) {
            NEVER => false,
            UNKNOWN => self.load_flags(file),
            _ => true,
        }
    }

    #[inline]
    pub(super) fn record_hit(&self) {
        if self.0.load(Relaxed) != 0 {
            self.0.store(0, Relaxed);
        }
    }

    pub(super) fn record_miss(&self) {
        let misses = self.0.load(Relaxed).saturating_add(1);
        let state = if misses < MISSES {
            misses
        } else {
            MISSES + PAUSE - 1
        };
        self.0.store(state, Relaxed);
    }

    pub(super) fn disable(&self) {
        self.0.store(NEVER, Relaxed);
    }
}

impl Clone for AttemptHistory {
    fn clone(&self) -> AttemptHistory {
        AttemptHistory(AtomicU32::new(self.0.load(Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_that_all_miss_are_tried_once_per_pause() {
        let history = AttemptHistory::new();
        let tried = |n: u32| {
            let due = (0..n).filter(|_| history.is_due(None));
            due.inspect(|_| history.record_miss()).count() as u32
        };
        assert_eq!(tried(MISSES), MISSES);
        assert_eq!(tried(PAUSE), 0);
        assert_eq!(tried(10 * (PAUSE + 1)), 10);
    }

    #[test]
    fn a_hit_ends_the_pause() {
        let history = AttemptHistory::new();
        for _ in 0..MISSES {
            assert!(history.is_due(None));
            history.record_miss();
        }
        let waited = (0..).take_while(|_| !history.is_due(None)).count() as u32;
        assert_eq!(waited, PAUSE);
        history.record_hit();
        for _ in 0..MISSES - 1 {
            history.record_miss();
            assert!(history.is_due(None));
        }
    }

    #[test]
    fn direct_io_and_a_disabled_file_are_never_tried() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let fd = Fd::new(file);
        assert!(AttemptHistory::unknown().is_due(Some(&fd)));
        assert!(!AttemptHistory::with_flags(libc::O_DIRECT).is_due(Some(&fd)));
        let history = AttemptHistory::new();
        history.disable();
        assert!((0..1000).all(|_| !history.is_due(Some(&fd))));
    }
}
