//! Searches the other vCPUs for work that waits behind a long poll, so that an idle vCPU can take
//! it.
//!
//! In the middle of a poll, a vCPU cannot notify others that work waits for the end of that poll.
//! So parked vCPUs *look*, that is, they examine the polls of the others. This ensures *work
//! conservation*: while a vCPU of a domain is parked, no coroutine that may run there waits for
//! long.
//!
//! A poll is **long** when it has run for
//! [`Config::long_poll_after`](crate::Config::long_poll_after) ticks, the cost of moving work to
//! another CPU. By the ski-rental argument, work behind a poll is left alone until then and moved
//! afterwards. A look ([`Vcpu::look`]) marks long polls. From then on, idle vCPUs take the work
//! behind the poll, and work that the poll makes ready is announced to a parked vCPU at once. The
//! look also passes the vCPU of the long poll to the host, which can serve the timers and the I/O
//! of that vCPU. So one look suffices for a long poll.
//!
//! # Work that an idle vCPU takes
//!
//! * Work that is more urgent than the poll for whose end it waits, at once.
//! * Work behind a long poll, or on a vCPU that is not served.
//! * *Surplus*: work that would take its own vCPU at least
//!   [`Config::notify_above`](crate::Config::notify_above), or work that was there at two looks and
//!   all the time between.
//!
//! All other work is left to its own vCPU, which polls it sooner than it could be moved, and at a
//! lower cost. If, for example, a child is taken before its parent has yielded, both CPUs miss in
//! their caches. If there is a reason to take work, the idle vCPU takes the most urgent work of all
//! vCPUs.
//!
//! # Which vCPU looks, and when
//!
//! A parked vCPU *watches* or *sleeps*. [`Vcpu::sleep_limit`] decides:
//!
//! * It sleeps if a look would find nothing (all others are parked, or in polls known to be long),
//!   or if a vCPU with a lower index watches.
//! * Otherwise it watches, and its next look comes after `long_poll_after`, or when its budget
//!   allows a look.
//!
//! If all parked vCPUs sleep, a vCPU that begins a poll wakes one ([`Vcpu::pick`]). A vCPU that
//! watched and has found work does the same. The two sides are ordered as in `park`. The sleeping
//! vCPU adds itself to the count, then reads the words of the polling vCPU; the polling vCPU
//! changes its words, then reads the count. A vCPU becomes worth watching when it returns from its
//! wait, begins the poll after a long poll, or reads its clock after a period without a reading;
//! each of these steps is followed by a fence. Other picks need no fence.
//!
//! A poll is marked as long under the lock of its vCPU. So the look sees work that the poll made
//! ready earlier, and a thread that makes work ready later sees the mark.
//!
//! # Budget
//!
//! Looks that find no work are limited by a [`TokenBucket`] of time. Each wait that ends without
//! work is charged a *period* of `SHARE · long_poll_after`. The bucket holds `SHARE` periods, and a
//! vCPU in debt looks once a period. So fruitless looks come at most once a period on average, at
//! any load. A coroutine behind a long poll waits for at most 2 · `long_poll_after` plus the cost
//! of a wake-up, and for a period more if fruitless looks at many short polls have used up the
//! budget.
//!
//! A vCPU that is not parked also looks, once a period ([`Vcpu::is_look_due`]), because work that
//! is more urgent than its own may wait behind a long poll of another vCPU while no vCPU is parked.
//!
//! Cost: one load per pick while a vCPU is parked. A look is O(vCPUs).

use super::{NONE_RUNNING, Vcpu};
use crate::base::host::Host;
use crate::base::level::Level;
use crate::base::token_bucket::TokenBucket;
use crate::sync::Ordering::{Acquire, Relaxed, Release, SeqCst};
use crate::sync::{AtomicU8, fence};

/// Reciprocal of the share of its time that a parked vCPU spends on fruitless looks: a period is
/// `SHARE` times `long_poll_after`. A full budget allows `SHARE` fruitless looks at once.
pub(super) const SHARE: u64 = 20;

/// Largest effective [`Config::long_poll_after`](crate::Config::long_poll_after). With it, periods
/// and a budget of `SHARE` periods fit in 64 bits.
pub(crate) const MAX_LONG_POLL_AFTER: u64 = u64::MAX / (SHARE * SHARE);

/// Value of `surplus`: idle vCPUs leave the work alone.
pub(super) const NO_SURPLUS: u8 = 0;
/// Value of `surplus`: work was there at the last look, and all the time since.
const SURPLUS_SEEN: u8 = 1;
/// Value of `surplus`: idle vCPUs may take work, until none is left.
pub(super) const SURPLUS: u8 = 2;

pub(super) fn budget(long_poll_after: u64) -> TokenBucket {
    TokenBucket::new(1, SHARE * SHARE * long_poll_after, 0)
}

/// The wait of a vCPU. Only the thread that serves the vCPU makes the steps.
///
/// ```text
///            sleep_limit                 unpark            pick
///   Over ──┬────────────► Watches ──┬──────────► Ended ──────────► Over
///          ├────────────► Sleeps  ──┘
///          └────────────► Saves   ─────────────► Saved (until the next `sleep_limit`)
/// ```
///
/// With [`Config::long_poll_after`](crate::Config::long_poll_after), picks make no step, so a wait
/// stays `Ended` or `Saved` until the next `sleep_limit`. Without it, no vCPU looks and
/// `sleep_limit` makes no step; `unpark` leads from `Over` to `Ended`, and a pick leads back to
/// `Over`.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Wait {
    /// The vCPU has not waited yet, or has picked since its last wait.
    Over,
    /// The vCPU looks when the limit of its wait is over.
    Watches,
    /// The vCPU does not look, and is counted in `Shared::asleep`.
    Sleeps,
    /// The vCPU waits only until its budget of looks is no longer in debt.
    Saves,
    /// The wait has ended since the last pick.
    Ended,
    /// The wait has ended, and its purpose was to pay off the budget.
    Saved,
}

pub(super) struct WaitWord(AtomicU8);

impl WaitWord {
    pub(super) fn new() -> WaitWord {
        WaitWord(AtomicU8::new(Wait::Over as u8))
    }

    fn get(&self) -> Wait {
        let all = [
            Wait::Over,
            Wait::Watches,
            Wait::Sleeps,
            Wait::Saves,
            Wait::Ended,
            Wait::Saved,
        ];
        let word = self.0.load(Relaxed);
        (all.into_iter().find(|wait| *wait as u8 == word)).unwrap_or(Wait::Over)
    }

    fn is(&self, wait: Wait) -> bool {
        self.0.load(Relaxed) == wait as u8
    }

    fn set(&self, wait: Wait) {
        self.0.store(wait as u8, Relaxed);
    }

    /// Returns true if the wait has ended since the last pick.
    pub(super) fn begin_pick(&self) -> bool {
        let ended = self.is(Wait::Ended) || self.is(Wait::Saved);
        if ended {
            self.set(Wait::Over);
        }
        ended
    }
}

/// The polls of the other vCPUs, as a parked vCPU sees them.
enum Snapshot {
    /// All others are parked, or in polls known to be long.
    Nothing,
    /// Polls that may become long. `before` is the number of parked vCPUs that look before this
    /// one.
    Polls { before: u64 },
}

impl<H: Host> Vcpu<H> {
    /// Returns true if this vCPU, which is idle, should take work from another vCPU.
    pub(super) fn may_help(&self, now: u64) -> bool {
        self.shared()
            .vcpus()
            .any(|vcpu| vcpu.index != self.index && vcpu.offers_work(now))
    }

    fn offers_work(&self, now: u64) -> bool {
        let movable = self.movable_levels();
        if movable == 0 {
            return false;
        }
        let running = self.published.running.load(Relaxed);
        self.published.surplus.load(Relaxed) == SURPLUS
            || self.is_overdue(now)
            || (running != NONE_RUNNING && movable.trailing_zeros() < u32::from(running))
    }

    /// Returns true if the vCPU has not picked for so long that another vCPU should take its work.
    fn is_overdue(&self, now: u64) -> bool {
        let long_poll_after = self.shared().config.long_poll_after;
        long_poll_after == 0
            || self.is_long()
            || now.saturating_sub(self.clock()) >= long_poll_after
    }

    /// Returns true if work of this level that arrived here at tick `now` should be announced to an
    /// idle vCPU.
    pub(super) fn should_announce(&self, level: Level, now: u64) -> bool {
        let running = self.published.running.load(Relaxed);
        (running != NONE_RUNNING && level.get() < running) || self.is_overdue(now)
    }

    fn others(&self) -> impl Iterator<Item = &Vcpu<H>> {
        let own_index = self.index;
        self.shared()
            .vcpus()
            .filter(move |vcpu| vcpu.index != own_index && !vcpu.is_retired())
    }

    /// Returns true if a look has found the poll under way here to be long. Costs one load.
    #[inline]
    #[must_use]
    pub fn is_long(&self) -> bool {
        self.published.long.load(Relaxed)
    }

    /// Marks the poll under way here as long. The caller sees work that the poll has made ready so
    /// far; the poll announces later work, because it queues work under the lock and reads the mark
    /// afterwards.
    fn mark_long(&self) {
        // Acquire: pairs with the release of another thread that set the mark.
        if !self.published.long.load(Acquire) {
            let _locked = self.lock();
            self.published.long.store(true, Release);
        }
    }

    /// Returns the time in ticks for which the vCPU, which is parked, may wait before it
    /// [looks](Vcpu::look) again, or `None` if it may wait without limit, until a kick. Always
    /// `None` without [`Config::long_poll_after`](crate::Config::long_poll_after).
    pub fn sleep_limit(&self) -> Option<u64> {
        let domain = self.shared();
        let long_poll_after = domain.config.long_poll_after;
        if long_poll_after == 0 || domain.active.load(Relaxed) < 2 {
            return None;
        }
        let now = self.host_now();
        let budget = self.lock().guarded().looks.wait(0, now);
        let wait = &self.published.wait;
        wait.set(Wait::Watches);
        match self.snapshot(now) {
            Snapshot::Polls { before: 0 } => return Some(long_poll_after.max(budget)),
            Snapshot::Nothing if budget != 0 => {
                wait.set(Wait::Saves);
                return Some(budget);
            }
            Snapshot::Polls { .. } | Snapshot::Nothing => {}
        }
        wait.set(Wait::Sleeps);
        domain.asleep.fetch_add(1, SeqCst);
        fence(SeqCst);
        if !matches!(self.snapshot(now), Snapshot::Polls { before: 0 }) {
            return None;
        }
        wait.set(Wait::Watches);
        domain.asleep.fetch_sub(1, SeqCst);
        Some(long_poll_after.max(budget))
    }

    fn snapshot(&self, now: u64) -> Snapshot {
        let (mut before, mut has_polls) = (0, false);
        for vcpu in self.others() {
            if vcpu.is_parked() {
                let watches = !vcpu.published.wait.is(Wait::Sleeps);
                before += u64::from(vcpu.index < self.index && watches);
            } else if !vcpu.is_long() {
                has_polls |= vcpu.is_polling() || !vcpu.seems_unserved(now);
            }
        }
        if has_polls {
            Snapshot::Polls { before }
        } else {
            Snapshot::Nothing
        }
    }

    /// Returns true if the vCPU has not picked for a period. Unless the vCPU is polling, no thread
    /// seems to serve it. Always false without
    /// [`Config::long_poll_after`](crate::Config::long_poll_after).
    #[inline]
    pub(super) fn seems_unserved(&self, now: u64) -> bool {
        let period = SHARE * self.shared().config.long_poll_after;
        period != 0 && now.saturating_sub(self.clock()) >= period
    }

    pub(super) fn end_wait(&self) {
        let wait = &self.published.wait;
        let before = wait.get();
        wait.set(match before {
            Wait::Saves | Wait::Saved => Wait::Saved,
            _ => Wait::Ended,
        });
        if before == Wait::Sleeps {
            self.shared().asleep.fetch_sub(1, SeqCst);
        }
    }

    /// Returns true if vCPUs are parked and none of them watches. Then a vCPU that begins a poll
    /// should wake one of them.
    #[inline]
    pub(super) fn is_unwatched(&self) -> bool {
        let domain = self.shared();
        let idle = domain.idle.load(Relaxed);
        idle != 0 && domain.asleep.load(Relaxed) >= idle
    }

    /// Wakes a sleeping vCPU if none watches any more. Called just after [`Vcpu::unpark`] by a vCPU
    /// that leaves its domain.
    pub(crate) fn leave_watch(&self) {
        if self.is_unwatched() {
            self.shared().notify_idle(self);
        }
    }

    /// Returns true if this vCPU has not looked for a period, judged by its last reading of the
    /// clock. For a vCPU that is not parked. Costs a few loads.
    #[inline]
    #[must_use]
    pub fn is_look_due(&self) -> bool {
        let domain = self.shared();
        let period = || SHARE * domain.config.long_poll_after;
        domain.active.load(Relaxed) > 1
            && self.clock().saturating_sub(self.looked_at.load(Relaxed)) >= period()
            && period() != 0
    }

    /// Charges a wait that ended without work to the budget of looks. A wait whose purpose was to
    /// pay off the budget is not charged, because otherwise an idle vCPU would wake for ever.
    pub fn charge_fruitless_wait(&self) {
        if matches!(self.published.wait.get(), Wait::Saves | Wait::Saved) {
            return;
        }
        let period = SHARE * self.shared().config.long_poll_after;
        let now = self.host_now();
        self.lock().guarded().looks.spend(period, now);
    }

    /// Looks at the other vCPUs: marks polls that are long, and calls `on_long` with the vCPU of
    /// each long poll, again at every look. Returns true if there is work to
    /// [`pick`](crate::Executor::pick), or `on_long` returned true.
    ///
    /// Called by the thread that serves this vCPU. O(vCPUs) loads, and a lock for each poll that is
    /// marked.
    pub fn look(&self, mut on_long: impl FnMut(&Vcpu<H>) -> bool) -> bool {
        let domain = self.shared();
        let long_poll_after = domain.config.long_poll_after;
        if long_poll_after == 0 {
            return false;
        }
        let now = self.host_now();
        self.looked_at.store(now, Relaxed);
        let mut has_work = false;
        for vcpu in self.others() {
            if vcpu.is_parked() {
                continue;
            }
            if now.saturating_sub(vcpu.clock()) < long_poll_after {
                has_work |= vcpu.movable_levels() != 0 && vcpu.is_surplus_at_look();
                continue;
            }
            if vcpu.is_polling() {
                vcpu.mark_long();
                has_work |= on_long(vcpu);
            }
            has_work |= vcpu.movable_levels() != 0;
        }
        has_work
    }

    /// Records that a look has found work here. Returns true if work was also here at the last look
    /// and all the time since.
    fn is_surplus_at_look(&self) -> bool {
        let before = self.published.surplus.load(Relaxed);
        let surplus = if before == NO_SURPLUS {
            SURPLUS_SEEN
        } else {
            SURPLUS
        };
        self.published.surplus.store(surplus, Relaxed);
        surplus == SURPLUS
    }
}
