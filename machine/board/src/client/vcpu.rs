//! One vCPU's handle: publish, look, ring. No locks; a ring is the only system call.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::fence;

use crate::client::inner::Inner;
use crate::layout::VcpuLine;
use crate::os;
use crate::urgency::Standing;

/// The handle of one vCPU. Clones share everything.
#[derive(Debug, Clone)]
pub struct Vcpu {
    inner: Arc<Inner>,
    index: usize,
}

impl Vcpu {
    pub(super) fn new(inner: Arc<Inner>, index: usize) -> Vcpu {
        Vcpu { inner, index }
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

    /// After publishing: rings if the order of the vCPUs of this CPU may have changed by it, and says whether it rang. A
    /// full barrier and some loads if not. The same change is told once.
    ///
    /// # Errors
    /// The kernel's, if the doorbell cannot be written to.
    #[inline]
    pub fn settle(&self) -> io::Result<bool> {
        let (standing, level) = self.look();
        let rung = self.inner.rung(self.index);
        if !standing.wants_ring(level) {
            if rung.load(Relaxed) != 0 {
                rung.store(0, Relaxed);
            }
            return Ok(false);
        }
        if rung.swap(told(standing, level), Relaxed) == told(standing, level) {
            return Ok(false);
        }
        self.ring()?;
        Ok(true)
    }

    /// Standing and potential, in this order after what the caller has published: the daemon publishes a standing and then reads
    /// the claim again, so one of the two sees the other's last word.
    #[inline]
    fn look(&self) -> (Standing, u8) {
        fence(SeqCst);
        (self.standing(), self.line().claim().potential())
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

    /// For a dispatcher: something of `level` has arrived for this vCPU. Publishes it, rings if the order may have changed by it
    /// (each time: a dispatcher does not come back to see whether it was heard), and says whether it rang.
    ///
    /// # Errors
    /// As [`Vcpu::settle`].
    pub fn arrive(&self, level: u8) -> io::Result<bool> {
        if level < crate::LEVELS {
            self.line().arrived().fetch_or(1 << level, SeqCst);
        }
        let (standing, level) = self.look();
        if !standing.wants_ring(level) {
            return Ok(false);
        }
        self.inner
            .rung(self.index)
            .store(told(standing, level), Relaxed);
        self.ring()?;
        Ok(true)
    }

    /// Whether another vCPU of this CPU has something more urgent than `level` to run. If nothing enforces that (the daemon has
    /// no rights), a vCPU that sees it gives way: `sched_yield`, or sleep. Three loads.
    ///
    /// It is as old as the daemon's last turn: a quantum at most while several compete, 36 ms if all of them slept. A process that gives way to one that has fallen asleep
    /// meanwhile loses that, and as much as long as the daemon stands still: give way for a bounded time.
    #[inline]
    pub fn is_outranked(&self, level: u8) -> bool {
        let global = self.inner.global();
        let Some(line) = global.cpu(self.inner.cpu(self.index)) else {
            return false;
        };
        line.winning_level() < level && line.winner() != Some(self.inner.slot(self.index))
    }
}

/// What was told by a ring: never 0.
fn told(standing: Standing, level: u8) -> u64 {
    u64::from(standing.word()) << 8 | u64::from(level) | 1 << 63
}
