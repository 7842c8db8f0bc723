//! The global page, in which the daemon publishes to all processes which vCPU runs first on each
//! CPU.
//!
//! The daemon maps the page writable once and then seals it. From then on no process, the daemon
//! included, can map the page writable, write to its file or change its length, through any
//! descriptor. Processes get a read-only descriptor.
//!
//! The line and the slots of a CPU have one writer, the scheduler of that CPU. The control thread
//! writes the header.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Relaxed, Release};

use rustix::fs::{Mode, OFlags};
use upshift_board::layout::{CPUS, GlobalPage, VERSION};
use upshift_board::os::{Mapping, global_page};

#[derive(Debug)]
pub(crate) struct Global {
    page: Mapping<GlobalPage>,
    file: OwnedFd,
}

impl Global {
    /// Creates the page for CPUs with numbers below `cpus`.
    ///
    /// # Errors
    /// The kernel refuses to create, map or seal the file.
    pub(crate) fn new(generation: u64, cpus: usize) -> io::Result<Global> {
        let (file, page) = global_page()?;
        // With these permissions, no other process can open the file for writing, or set extended
        // attributes, which would last as long as the daemon.
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
            // Without /proc, processes get the first descriptor, to which the seals also apply.
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

    /// Publishes that the daemon was alive at `now`, CLOCK_MONOTONIC in ns.
    pub(crate) fn beat(&self, now: u64) {
        self.page.header().heartbeat.store(now, Relaxed);
    }
}
