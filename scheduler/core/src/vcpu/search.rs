//! Looking around: an idle vCPU finds what waits behind a long poll of another one.
//!
//! A vCPU that polls cannot tell others what waits for the end of the poll. So vCPUs that are parked look, and the law
//! that follows is *conservation*: while a vCPU of a domain is parked, nothing that may run there waits for long.
//!
//! A poll is **long** when it has run for [`Config::look_after`](crate::Config::look_after) ticks, which is what moving
//! work to another CPU costs: by the ski-rental argument what waits behind it is left alone until then and moved after.
//! A look ([`Vcpu::look`]) marks long polls. What waits behind one is taken; what becomes ready during one is announced to a
//! parked vCPU at once; and the host is told of it, which knows its timers and its I/O. So a long poll is found once, and
//! costs no further looks.
//!
//! # What an idle vCPU takes
//!
//! What is more urgent than the poll it waits for, at once; what waits behind a long poll, or with a vCPU that is not served; and
//! what is *surplus*: worth more than [`Config::notify_above`](crate::Config::notify_above) to its own vCPU, or more than none at
//! two looks and all the time between. All else its own vCPU polls sooner than a move would take, and better: a child that
//! is taken before its parent has yielded costs both CPUs their caches. If there is a reason to take something, it takes
//! the most urgent that there is.
//!
//! # Which vCPU looks, and when
//!
//! A parked vCPU *watches* or *sleeps*. [`Vcpu::sleep_limit`] decides:
//!
//! * nothing to find out (all others are parked, or in polls known to be long), or one of a lower index watches: it sleeps;
//! * else it watches: it looks next after `look_after`, or when its budget allows it.
//!
//! A vCPU that begins a poll while all that are parked sleep wakes one ([`Vcpu::pick`]), and so does the
//! one that watched, when it has found work. The two sides are ordered as in `park`: one counts itself in and looks at the other's words, the other changes its word and looks at the count. What
//! makes a vCPU worth watching is that it comes back from its wait, begins the poll after a long one, or reads its clock
//! after a period without; each is followed by a fence. Picks between pay for none.
//!
//! A poll is marked as long under the lock of its vCPU: what it has made ready before is seen by the look, what it makes
//! ready later sees the mark.
//!
//! # Budget
//!
//! Each wait that ends and brings nothing is charged a *period* of `SHARE · look_after` to a
//! [`TokenBucket`] of time, which holds `SHARE` periods; a vCPU that owes looks once a period. So
//! looks for nothing come at most once a period on average, at any load. A stranded
//! coroutine waits for at most 2 · `look_after` + the cost of a wake-up where long polls are found
//! or rare, and for a period more where many short ones have used the budget up.
//!
//! A vCPU that serves looks, too, once a period ([`Vcpu::is_look_due`]): what is more urgent than its own work may be behind
//! a long poll elsewhere, with no vCPU parked.
//!
//! Cost: one load per pick while a vCPU is parked. A look is O(vCPUs).

use super::{NOBODY, Vcpu};
use crate::base::host::Host;
use crate::base::level::Level;
use crate::base::token_bucket::TokenBucket;
use crate::sync::Ordering::{Acquire, Relaxed, Release, SeqCst};
use crate::sync::{AtomicU8, fence};

/// The reciprocal of the share of its time that a parked vCPU spends on looks that bring nothing, and how many of them it may
/// have in advance.
pub(super) const SHARE: u64 = 20;

/// What is more is as good as this: so periods, and an account of them, fit.
pub(crate) const MOST_LOOK_AFTER: u64 = u64::MAX / (SHARE * SHARE);

/// `surplus`: nothing to say.
pub(super) const NO_SURPLUS: u8 = 0;
/// There was something to give at a look, and has been since.
const SEEN: u8 = 1;
/// Idle vCPUs may take what there is, until nothing is left.
pub(super) const SURPLUS: u8 = 2;

/// The budget of looks of a vCPU; see the module.
pub(super) fn budget(look_after: u64) -> TokenBucket {
    TokenBucket::new(1, SHARE * SHARE * look_after, 0)
}

/// The wait of a vCPU. The thread that serves it makes all steps.
///
/// ```text
///            sleep_limit                 unpark            pick
///   Over ──┬────────────► Watches ──┬──────────► Ended ──────────► Over
///          ├────────────► Sleeps  ──┘
///          └────────────► Saves   ─────────────► Saved (until the next `sleep_limit`)
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Wait {
    /// The vCPU has picked since.
    Over,
    /// Looks around when the limit of its wait is over.
    Watches,
    /// Does not look around: counted in `Shared::asleep`.
    Sleeps,
    /// Waits until its budget is paid off, and for nothing else.
    Saves,
    /// Ended since the last pick.
    Ended,
    /// Ended, and was there to pay off the budget.
    Saved,
}

/// A [`Wait`] that other vCPUs read.
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

    /// The vCPU picks: has a wait of it ended since it did so last?
    pub(super) fn picks_after(&self) -> bool {
        let ended = self.is(Wait::Ended) || self.is(Wait::Saved);
        if ended {
            self.set(Wait::Over);
        }
        ended
    }
}

/// What there is to see for a vCPU that is parked.
enum Sight {
    /// Nothing that a look could find.
    Nothing,
    /// Polls that may become long. So many parked vCPUs look before this one.
    Polls { before: u64 },
}

impl<H: Host> Vcpu<H> {
    /// Is there something that this vCPU, which is idle, is to take from another one at tick `now`?
    pub(super) fn may_help(&self, now: u64) -> bool {
        self.shared()
            .vcpus()
            .any(|vcpu| vcpu.index != self.index && vcpu.leaves_some(now))
    }

    /// Is there something here that an idle vCPU is to take?
    fn leaves_some(&self, now: u64) -> bool {
        let give = self.may_give();
        if give == 0 {
            return false;
        }
        let running = self.published.running.load(Relaxed);
        self.published.surplus.load(Relaxed) == SURPLUS
            || self.is_overdue(now)
            || (running != NOBODY && give.trailing_zeros() < u32::from(running))
    }

    /// Has it not picked for so long that what waits here is better off elsewhere?
    fn is_overdue(&self, now: u64) -> bool {
        let after = self.shared().config.look_after;
        after == 0 || self.is_long() || now.saturating_sub(self.clock()) >= after
    }

    /// Is what has come to this vCPU, at this level and tick, to be told to an idle one?
    pub(super) fn keeps_waiting(&self, level: Level, now: u64) -> bool {
        let running = self.published.running.load(Relaxed);
        (running != NOBODY && level.get() < running) || self.is_overdue(now)
    }

    fn others(&self) -> impl Iterator<Item = &Vcpu<H>> {
        let own = self.index;
        self.shared()
            .vcpus()
            .filter(move |vcpu| vcpu.index != own && !vcpu.is_retired())
    }

    /// Has the poll under way here been found to be long? One load.
    #[inline]
    #[must_use]
    pub fn is_long(&self) -> bool {
        self.published.long.load(Relaxed)
    }

    /// The poll under way here is long. What it has made ready so far is seen by the caller, what it makes ready from now
    /// on it announces: it is queued under the lock, and the mark is looked at afterwards.
    fn mark_long(&self) {
        // Acquire: what another one saw when it set the mark.
        if !self.published.long.load(Acquire) {
            let _locked = self.locked();
            self.published.long.store(true, Release);
        }
    }

    /// For how long the vCPU, which is parked, may wait before it [looks](Vcpu::look) again, ticks; `None`: until
    /// something ends its wait. Always `None` without [`Config::look_after`](crate::Config::look_after).
    pub fn sleep_limit(&self) -> Option<u64> {
        let domain = self.shared();
        let after = domain.config.look_after;
        if after == 0 || domain.active.load(Relaxed) < 2 {
            return None;
        }
        let now = self.host_now();
        let budget = self.locked().guarded().looks.wait(0, now);
        let wait = &self.published.wait;
        wait.set(Wait::Watches);
        match self.sight(now) {
            Sight::Polls { before: 0 } => return Some(after.max(budget)),
            Sight::Nothing if budget != 0 => {
                wait.set(Wait::Saves);
                return Some(budget);
            }
            Sight::Polls { .. } | Sight::Nothing => {}
        }
        wait.set(Wait::Sleeps);
        domain.asleep.fetch_add(1, SeqCst);
        fence(SeqCst);
        if !matches!(self.sight(now), Sight::Polls { before: 0 }) {
            return None;
        }
        wait.set(Wait::Watches);
        domain.asleep.fetch_sub(1, SeqCst);
        Some(after.max(budget))
    }

    fn sight(&self, now: u64) -> Sight {
        let (mut before, mut polls) = (0, false);
        for vcpu in self.others() {
            if vcpu.is_parked() {
                let watches = !vcpu.published.wait.is(Wait::Sleeps);
                before += u64::from(vcpu.index < self.index && watches);
            } else if !vcpu.is_long() {
                polls |= vcpu.is_polling() || !vcpu.seems_unserved(now);
            }
        }
        match polls {
            true => Sight::Polls { before },
            false => Sight::Nothing,
        }
    }

    /// Has it not picked for a period? Then, unless it polls, it is not served at all. Never without
    /// [`Config::look_after`](crate::Config::look_after).
    #[inline]
    pub(super) fn seems_unserved(&self, now: u64) -> bool {
        let period = SHARE * self.shared().config.look_after;
        period != 0 && now.saturating_sub(self.clock()) >= period
    }

    /// The vCPU does not wait any more.
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

    /// Does none of the parked vCPUs watch? Then one that begins a poll is to wake one of them.
    #[inline]
    pub(super) fn is_unwatched(&self) -> bool {
        let domain = self.shared();
        let idle = domain.idle.load(Relaxed);
        idle != 0 && domain.asleep.load(Relaxed) >= idle
    }

    /// A vCPU that leaves its domain, just after [`Vcpu::unpark`]: one that sleeps is to find out what there is to watch.
    pub(crate) fn leave_watch(&self) {
        if self.is_unwatched() {
            self.shared().notify_idle(self);
        }
    }

    /// Has this vCPU not looked for a period, judged by its last reading of the clock? For one that serves; two loads.
    #[inline]
    #[must_use]
    pub fn is_look_due(&self) -> bool {
        let domain = self.shared();
        let period = || SHARE * domain.config.look_after;
        domain.active.load(Relaxed) > 1
            && self.clock().saturating_sub(self.looked_at.load(Relaxed)) >= period()
            && period() != 0
    }

    /// A wait has ended and brought nothing: it is charged to the budget of looks, unless it was there to pay it off: then an idle vCPU would never come
    /// to rest.
    pub fn waited_for_nothing(&self) {
        if matches!(self.published.wait.get(), Wait::Saves | Wait::Saved) {
            return;
        }
        let period = SHARE * self.shared().config.look_after;
        let now = self.host_now();
        self.locked().guarded().looks.spend(period, now);
    }

    /// Looks at the other vCPUs: marks polls that are long, and calls `long` with their vCPUs, again at every look. True: there is
    /// something to [`pick`](crate::Executor::pick) behind one of them, or `long` has said so.
    ///
    /// Only for the thread that serves this vCPU. O(vCPUs), loads but for what is marked.
    pub fn look(&self, mut long: impl FnMut(&Vcpu<H>) -> bool) -> bool {
        let domain = self.shared();
        let after = domain.config.look_after;
        if after == 0 {
            return false;
        }
        let now = self.host_now();
        self.looked_at.store(now, Relaxed);
        let mut found = false;
        for vcpu in self.others() {
            if vcpu.is_parked() {
                continue;
            }
            if now.saturating_sub(vcpu.clock()) < after {
                found |= vcpu.may_give() != 0 && vcpu.is_surplus_at_look();
                continue;
            }
            if vcpu.is_polling() {
                vcpu.mark_long();
                found |= long(vcpu);
            }
            found |= vcpu.may_give() != 0;
        }
        found
    }

    /// There is something to give. Was there at the last look, and since?
    fn is_surplus_at_look(&self) -> bool {
        let before = self.published.surplus.load(Relaxed);
        let now = if before == NO_SURPLUS { SEEN } else { SURPLUS };
        self.published.surplus.store(now, Relaxed);
        now == SURPLUS
    }
}
