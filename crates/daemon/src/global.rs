//! The daemon's side of the global page.
//!
//! Mapped writable once, then sealed: from then on nobody, the daemon included, can map it writable, write to it or change its
//! length, whatever descriptor of it he holds. Processes get a descriptor opened for reading.
//!
//! Each CPU's line and each slot have one writer, the scheduler thread of that CPU; the header is written by all.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use rustix::fs::{Mode, OFlags, SealFlags};
use upshift_board::layout::{CPUS, GLOBAL_BYTES, GlobalPage, VERSION};
use upshift_board::os::{Mapping, memory_file};

/// The page and the descriptor that is handed out.
#[derive(Debug)]
pub(crate) struct Global {
    page: Mapping<GlobalPage>,
    file: OwnedFd,
}

impl Global {
    pub(crate) fn new(generation: u64) -> io::Result<Global> {
        let file = memory_file("upshift-global", GLOBAL_BYTES)?;
        let page = Mapping::global(file.as_fd())?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        let reopened = rustix::fs::open(
            format!("/proc/self/fd/{}", file.as_raw_fd()),
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        );
        let header = page.header();
        header.generation.store(generation, Relaxed);
        header.version.store(u32::from(VERSION), Relaxed);
        Ok(Global {
            page,
            // Without /proc the first descriptor has to do: the seals hold for it, too.
            file: reopened.unwrap_or(file),
        })
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(crate) fn page(&self) -> &GlobalPage {
        &self.page
    }

    pub(crate) fn set_enforcing(&self, enforcing: bool) {
        let header = self.page.header();
        header.enforcing.store(u32::from(enforcing), Release);
    }

    pub(crate) fn beat(&self, now: u64) {
        self.page.header().heartbeat.store(now, Relaxed);
    }

    /// Recomputes the machine's bitmap, for which CPU lines are scanned up to `cpus`, after the caller has published its own. The header is
    /// written only when the result is another one. Whoever writes it looks again: the last one to write has seen every line that was
    /// published before, and a line that is published later is followed by a writer of its own.
    pub(crate) fn publish_machine(&self, cpus: usize) {
        let header = self.page.header();
        for _ in 0..4 {
            fence(SeqCst);
            let lines = (0..cpus.min(CPUS)).filter_map(|cpu| self.page.cpu(cpu));
            let bitmap = lines.fold(0, |all, line| all | line.bitmap.load(Acquire));
            if header.bitmap.load(SeqCst) == bitmap {
                return;
            }
            header.bitmap.store(bitmap, SeqCst);
        }
    }
}
