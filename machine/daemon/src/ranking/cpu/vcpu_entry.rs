//! A vCPU of a registered process, as the scheduler of its CPU knows it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use std::time::{Duration, Instant};

use upshift_board::os::Mapping;
use upshift_board::{Claim, LocalPage, NO_LEVEL};

use crate::bounds::quota::QuotaUsage;
use upshift_core::TokenBucket;

use crate::bounds::timestamp_ns;
use crate::cpu::client_thread::ClientThread;
use crate::ranking::rank::Contender;

/// A vCPU that joins a CPU.
#[derive(Debug)]
pub(crate) struct VcpuEntry {
    /// Pid of the registration, for messages.
    pub(crate) pid: i32,
    /// User id by the kernel, and the accountable user.
    pub(crate) uid: u32,
    pub(crate) user: u32,
    /// Whether the vCPU is elevated above programs of its own user, too.
    pub(crate) trusted: bool,
    /// Directory of the process in `/proc`, whose owner is its present user.
    pub(crate) process: Arc<OwnedFd>,
    /// The quotas that its threads are charged to.
    pub(crate) quota_usage: QuotaUsage,
    /// Index of its line of the local page.
    pub(crate) index: usize,
    /// Index of its word of the global page.
    pub(crate) slot: usize,
    pub(crate) ceiling: u8,
    pub(crate) page: Arc<Mapping<LocalPage>>,
    pub(crate) doorbell: OwnedFd,
    pub(crate) threads: Vec<ClientThread>,
    pub(crate) counters: Arc<VcpuCounters>,
    /// Limits its rings.
    pub(crate) rings: TokenBucket,
    /// Time until which its doorbell is ignored.
    pub(crate) ignored_until: Option<Instant>,
}

/// Counters of a vCPU that the control thread may read at any time.
#[derive(Debug, Default)]
pub(crate) struct VcpuCounters {
    /// Its band.
    pub(crate) band: AtomicU8,
    /// Whether it is the winner of its CPU.
    pub(crate) winner: AtomicBool,
    /// Number of times that it became the winner.
    pub(crate) wins: AtomicU64,
    /// Rings that were answered.
    pub(crate) rings: AtomicU64,
    /// Number of times that its doorbell was ignored for a while, because it rang too often.
    pub(crate) floods: AtomicU64,
    /// Number of times that its dispatchers were lowered, because they used too much.
    pub(crate) overdrafts: AtomicU64,
    /// Number of pauses of its threads.
    pub(crate) pauses: AtomicU64,
}

impl VcpuEntry {
    /// Reads its claim, within its ceiling. `forced`: whether the daemon elevates; a vCPU without
    /// threads then has nothing that could run.
    pub(crate) fn read_claim(&self, forced: bool) -> (Contender, Claim) {
        let line = self.page.vcpu(self.index);
        let claim = line.map_or_else(Claim::default, |line| line.claim().within(self.ceiling));
        let threadless = forced && self.threads.is_empty();
        let level = |level: u8| if threadless { NO_LEVEL } else { level };
        let contender = Contender {
            potential: level(claim.potential()),
            runnable: level(claim.runnable()),
            user: self.user,
            trusted: self.trusted,
        };
        (contender, claim)
    }

    /// Counts a ring. Returns `false` if that exceeds the limit of this doorbell or of `all`: the
    /// doorbell is then ignored for `pause`.
    pub(crate) fn count_ring(
        &mut self,
        now: Instant,
        pause: Duration,
        all: &mut TokenBucket,
    ) -> bool {
        self.counters.rings.fetch_add(1, Relaxed);
        if self.rings.try_take(1, timestamp_ns(now)) && all.try_take(1, timestamp_ns(now)) {
            return true;
        }
        self.counters.floods.fetch_add(1, Relaxed);
        self.ignored_until = Some(now + pause);
        false
    }
}
