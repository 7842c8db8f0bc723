//! One vCPU of a registered process, as the scheduler of its CPU knows it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use std::time::{Duration, Instant};

use upshift_board::os::Mapping;
use upshift_board::{Claim, LocalPage, NOTHING};

use crate::bounds::quota::Bill;
use upshift_core::TokenBucket;

use crate::bounds::ns;
use crate::cpu::placing::Charge;
use crate::ranking::rank::Entrant;

/// What joins a CPU.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Of the registration; for messages.
    pub(crate) pid: i32,
    /// As the kernel has it, and the user that answers for it.
    pub(crate) uid: u32,
    pub(crate) user: u32,
    /// Whether its user is elevated above programs of its own, too.
    pub(crate) trusted: bool,
    /// Its directory in `/proc`, which says of which user it is now.
    pub(crate) process: Arc<OwnedFd>,
    /// The quotas its threads are charged to.
    pub(crate) bill: Bill,
    /// Line of the local page.
    pub(crate) index: usize,
    /// Word of the global page.
    pub(crate) slot: usize,
    pub(crate) ceiling: u8,
    pub(crate) page: Arc<Mapping<LocalPage>>,
    pub(crate) doorbell: OwnedFd,
    pub(crate) charges: Vec<Charge>,
    pub(crate) tally: Arc<Tally>,
    /// Limits its rings.
    pub(crate) rings: TokenBucket,
    /// While its doorbell is not listened to.
    pub(crate) deaf_until: Option<Instant>,
}

/// What the control thread may know of a vCPU at any time.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Band it is in.
    pub(crate) band: AtomicU8,
    /// Whether it is the winner of its CPU.
    pub(crate) winner: AtomicBool,
    /// How often it became the winner.
    pub(crate) wins: AtomicU64,
    /// Rings heard.
    pub(crate) rings: AtomicU64,
    /// How often its doorbell was not listened to for a while, because it rang too often.
    pub(crate) floods: AtomicU64,
    /// How often its dispatchers were moved down, because they used too much.
    pub(crate) overdrafts: AtomicU64,
    /// How often it had to leave the CPU to others for a moment.
    pub(crate) breaths: AtomicU64,
}

impl Entry {
    /// What it says of itself, within its ceiling.
    ///
    /// `forced`: whether the daemon elevates. Then what has no thread has nothing that could run.
    pub(crate) fn read(&self, forced: bool) -> (Entrant, Claim) {
        let line = self.page.vcpu(self.index);
        let claim = line.map_or_else(Claim::default, |line| line.claim().within(self.ceiling));
        let ghost = forced && self.charges.is_empty();
        let level = |level: u8| if ghost { NOTHING } else { level };
        let entrant = Entrant {
            potential: level(claim.potential()),
            runnable: level(claim.runnable()),
            user: self.user,
            trusted: self.trusted,
        };
        (entrant, claim)
    }

    /// Counts a ring; `false` if that was too many, for this doorbell or for `all`, and it is to be left alone for `pause`.
    pub(crate) fn rang(&mut self, now: Instant, pause: Duration, all: &mut TokenBucket) -> bool {
        self.tally.rings.fetch_add(1, Relaxed);
        if self.rings.try_take(1, ns(now)) && all.try_take(1, ns(now)) {
            return true;
        }
        self.tally.floods.fetch_add(1, Relaxed);
        self.deaf_until = Some(now + pause);
        false
    }
}
