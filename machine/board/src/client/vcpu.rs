//! [`Vcpu`] is the handle with which a worker publishes the levels of its vCPU (the run queues of
//! one CPU) and notifies the daemon. It takes no locks, and its only system call is the write to
//! the doorbell, which is an eventfd.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::fence;

use crate::client::inner::Inner;
use crate::layout::VcpuLine;
use crate::os;
use crate::urgency::Standing;

/// A handle of one vCPU. Clones share the vCPU.
#[derive(Debug, Clone)]
pub struct Vcpu {
    inner: Arc<Inner>,
    index: usize,
}

impl Vcpu {
    pub(super) fn new(inner: Arc<Inner>, index: usize) -> Vcpu {
        Vcpu { inner, index }
    }

    /// Returns the words of the vCPU on the local page. They stay valid with and without a daemon.
    #[inline]
    pub fn line(&self) -> &VcpuLine {
        match self.inner.page().vcpu(self.index) {
            Some(line) => line,
            None => unreachable!("handles are made for lines that exist"),
        }
    }

    /// Returns the standing of the vCPU. One load; [`Standing::UNCONTESTED`] without a daemon.
    #[inline]
    pub fn standing(&self) -> Standing {
        let global = self.inner.global();
        global.standing(self.inner.slot(self.index))
    }

    /// Rings if the published words may have changed the order of the vCPUs of this CPU, and
    /// returns whether it rang. Call this after publishing. The same change rings only once. A call
    /// that does not ring costs a full barrier and a few loads.
    ///
    /// # Errors
    /// Errors of the kernel, if the doorbell cannot be written.
    #[inline]
    pub fn settle(&self) -> io::Result<bool> {
        let (standing, level) = self.standing_and_level();
        let last_ring = self.inner.last_ring(self.index);
        if !standing.requires_ring(level) {
            if last_ring.load(Relaxed) != 0 {
                last_ring.store(0, Relaxed);
            }
            return Ok(false);
        }
        let change = encode_change(standing, level);
        if last_ring.swap(change, Relaxed) == change {
            return Ok(false);
        }
        self.ring()?;
        Ok(true)
    }

    /// Returns standing and potential. At least one side sees the last store of the other: this
    /// read sees the daemon's new standing, or the daemon sees the caller's new claim. The fence
    /// orders the reads after the caller's stores, and the daemon reads the claim again after it
    /// has published a standing.
    #[inline]
    fn standing_and_level(&self) -> (Standing, u8) {
        fence(SeqCst);
        (self.standing(), self.line().claim().potential())
    }

    /// Rings unconditionally. One system call; none without a daemon.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn ring(&self) -> io::Result<()> {
        match self.inner.doorbell(self.index) {
            Some(doorbell) => os::ring(doorbell),
            None => Ok(()),
        }
    }

    /// Publishes an arrival of `level` for this vCPU, rings if the order of the vCPUs may have
    /// changed, and returns whether it rang. This call is for dispatchers. They do not check later
    /// whether a ring took effect, so the same change rings in each call.
    ///
    /// # Errors
    /// Errors of the kernel, if the doorbell cannot be written.
    pub fn arrive(&self, level: u8) -> io::Result<bool> {
        if level < crate::LEVELS {
            self.line().arrived().fetch_or(1 << level, SeqCst);
        }
        let (standing, level) = self.standing_and_level();
        if !standing.requires_ring(level) {
            return Ok(false);
        }
        self.inner
            .last_ring(self.index)
            .store(encode_change(standing, level), Relaxed);
        self.ring()?;
        Ok(true)
    }

    /// Returns whether another vCPU of this CPU has runnable work that is more urgent than `level`.
    /// If the daemon has no rights to elevate threads, an outranked vCPU yields by `sched_yield` or
    /// by a sleep. Three loads.
    ///
    /// The answer is as old as the daemon's last decision about this CPU: at most a quantum while
    /// several vCPUs compete, longer while they sleep, and without a bound while the daemon is
    /// stopped. So a process must not yield without a time limit.
    #[inline]
    pub fn is_outranked(&self, level: u8) -> bool {
        let global = self.inner.global();
        let Some(line) = global.cpu(self.inner.cpu(self.index)) else {
            return false;
        };
        line.winning_level() < level && line.winner() != Some(self.inner.slot(self.index))
    }
}

/// Encodes the change that a ring reports; never 0.
fn encode_change(standing: Standing, level: u8) -> u64 {
    u64::from(standing.word()) << 8 | u64::from(level) | 1 << 63
}
