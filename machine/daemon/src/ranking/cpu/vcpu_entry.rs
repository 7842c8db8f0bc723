//! The state that the scheduler of a CPU keeps for a vCPU of a registered process.

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

#[derive(Debug)]
pub(crate) struct VcpuEntry {
    pub(crate) pid: i32,
    pub(crate) uid: u32,
    /// User to whom the process is accounted, which may be another user than `uid`.
    pub(crate) user: u32,
    /// Set if the vCPU is elevated above programs of its own user as well.
    pub(crate) trusted: bool,
    /// Directory of the process in `/proc`; its owner is the current user of the process.
    pub(crate) process: Arc<OwnedFd>,
    /// Usage of the CPU quotas that limit the process.
    pub(crate) quota_usage: QuotaUsage,
    /// Index of the vCPU's line in the process's local page.
    pub(crate) index: usize,
    /// Index of the vCPU's word in the global page.
    pub(crate) slot: usize,
    pub(crate) ceiling: u8,
    pub(crate) page: Arc<Mapping<LocalPage>>,
    pub(crate) doorbell: OwnedFd,
    pub(crate) threads: Vec<ClientThread>,
    pub(crate) counters: Arc<VcpuCounters>,
    /// Limits the rings of the vCPU's doorbell.
    pub(crate) rings: TokenBucket,
    pub(crate) ignored_until: Option<Instant>,
}

#[derive(Debug, Default)]
pub(crate) struct VcpuCounters {
    pub(crate) band: AtomicU8,
    pub(crate) winner: AtomicBool,
    pub(crate) wins: AtomicU64,
    pub(crate) rings: AtomicU64,
    /// Number of times that the doorbell was ignored for a while, because it rang too often.
    pub(crate) floods: AtomicU64,
    /// Number of times that the dispatchers were demoted, because they had exceeded their budget.
    pub(crate) overdrafts: AtomicU64,
    /// Number of pauses in which a thread of the vCPU was in SCHED_IDLE.
    pub(crate) pauses: AtomicU64,
}

impl VcpuEntry {
    /// Reads the claim of the vCPU, limited by its ceiling. If the daemon elevates threads
    /// (`enforcing`), a vCPU without threads counts as absent, because it cannot run.
    pub(crate) fn read_claim(&self, enforcing: bool) -> (Contender, Claim) {
        let line = self.page.vcpu(self.index);
        let claim = line.map_or_else(Claim::default, |line| line.claim().within(self.ceiling));
        let threadless = enforcing && self.threads.is_empty();
        let level = |level: u8| if threadless { NO_LEVEL } else { level };
        let contender = Contender {
            potential: level(claim.potential()),
            runnable: level(claim.runnable()),
            user: self.user,
            trusted: self.trusted,
        };
        (contender, claim)
    }

    /// Counts a ring. If it exceeds the limit of this doorbell or that of all doorbells (`all`),
    /// marks the doorbell as ignored for `pause` and returns `false`. The caller must then stop
    /// watching the doorbell.
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
