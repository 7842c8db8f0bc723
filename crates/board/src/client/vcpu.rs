//! One vCPU's handle: publish, look, ring. No locks; a ring is the only system call.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, fence};

use crate::client::inner::Inner;
use crate::layout::VcpuLine;
use crate::os;
use crate::urgency::Standing;

/// The handle of one vCPU. Its clones are independent: the memory of the last ring is per clone.
#[derive(Debug)]
pub struct Vcpu {
    inner: Arc<Inner>,
    index: usize,
    /// Standing and level at the last ring, so that one change is told once; 0: forgotten.
    rung: AtomicU64,
}

impl Clone for Vcpu {
    fn clone(&self) -> Vcpu {
        Vcpu::new(Arc::clone(&self.inner), self.index)
    }
}

impl Vcpu {
    pub(super) fn new(inner: Arc<Inner>, index: usize) -> Vcpu {
        Vcpu {
            inner,
            index,
            rung: AtomicU64::new(0),
        }
    }

    /// Its words on the local page, to publish in. They stay valid whether a daemon is there or not.
    #[inline]
    pub fn line(&self) -> &VcpuLine {
        match self.inner.page().vcpu(self.index) {
            Some(line) => line,
            None => unreachable!("handles are made for lines that exist"),
        }
    }

    /// Where the scheduler has put this vCPU. One load; [`Standing::ALONE`] without a daemon.
    #[inline]
    pub fn standing(&self) -> Standing {
        let global = self.inner.global();
        global.standing(self.inner.slot(self.index))
    }

    /// After publishing: rings if the order of the vCPUs of this CPU may have changed by it, and says whether it rang. Some
    /// 10 ns if not. The same change is told once.
    ///
    /// # Errors
    /// The kernel's, if the doorbell cannot be written to.
    #[inline]
    pub fn settle(&self) -> io::Result<bool> {
        // The daemon publishes a standing and then reads the claim again; we publish the claim and then read the standing.
        fence(SeqCst);
        let standing = self.standing();
        let level = self.line().claim().potential();
        if !standing.wants_ring(level) {
            if self.rung.load(Relaxed) != 0 {
                self.rung.store(0, Relaxed);
            }
            return Ok(false);
        }
        let what = u64::from(standing.word()) << 8 | u64::from(level) | 1 << 63;
        if self.rung.swap(what, Relaxed) == what {
            return Ok(false);
        }
        self.ring()?;
        Ok(true)
    }

    /// Rings unconditionally. One system call; none without a daemon.
    ///
    /// # Errors
    /// The kernel's.
    pub fn ring(&self) -> io::Result<()> {
        match self.inner.doorbell(self.index) {
            Some(doorbell) => os::ring(doorbell),
            None => Ok(()),
        }
    }

    /// For a dispatcher: something of `level` has arrived for this vCPU. Publishes it and settles.
    ///
    /// # Errors
    /// As [`Vcpu::settle`].
    pub fn arrive(&self, level: u8) -> io::Result<bool> {
        if level < crate::LEVELS {
            self.line().arrived().fetch_or(1 << level, SeqCst);
        }
        self.settle()
    }

    /// Whether another vCPU of this CPU has something more urgent than `level` to run. If nobody enforces that (the daemon has
    /// no rights), a vCPU that sees it gives way: `sched_yield`, or sleep. Three loads.
    #[inline]
    pub fn is_outranked(&self, level: u8) -> bool {
        let global = self.inner.global();
        let Some(line) = global.cpu(self.inner.cpu(self.index)) else {
            return false;
        };
        line.winning_level() < level && line.winner() != Some(self.inner.slot(self.index))
    }

    /// Levels that are runnable on this vCPU's CPU, its own included; 0 without a daemon. A hint.
    pub fn cpu_bitmap(&self) -> u64 {
        let global = self.inner.global();
        let line = global.cpu(self.inner.cpu(self.index));
        line.map_or(0, |line| line.bitmap.load(Acquire))
    }
}
