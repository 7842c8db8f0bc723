//! The daemon's side of the global page.
//!
//! Mapped writable once, then sealed: from then on no process, the daemon included, can map it
//! writable, write to it or change its length, through any descriptor. Processes get a descriptor
//! opened for reading.
//!
//! Each CPU's line and each slot have one writer, the scheduler of that CPU; the control thread
//! writes the header.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Relaxed, Release};

use rustix::fs::{Mode, OFlags};
use upshift_board::layout::{CPUS, GlobalPage, VERSION};
use upshift_board::os::{Mapping, global_page};

/// The page, and the descriptor for processes.
#[derive(Debug)]
pub(crate) struct Global {
    page: Mapping<GlobalPage>,
    file: OwnedFd,
}

impl Global {
    /// Creates the page. CPUs have numbers below `cpus`.
    pub(crate) fn new(generation: u64, cpus: usize) -> io::Result<Global> {
        let (file, page) = global_page()?;
        // Only the daemon can open the file again for writing, or add attributes to it, which would
        // last as long as the daemon.
        rustix::fs::fchmod(&file, Mode::RUSR)?;
        let reopened = rustix::fs::open(
            format!("/proc/self/fd/{}", file.as_raw_fd()),
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        );
        let header = page.header();
        header.generation.store(generation, Relaxed);
        header.version.store(u32::from(VERSION), Relaxed);
        header.cpus.store(cpus.min(CPUS) as u32, Relaxed);
        Ok(Global {
            page,
            // Without /proc the first descriptor is used: the seals apply to it, too.
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
}
