//! Models a vCPU with its run queues, its current activity, and its watcher, the thread that
//! decides when a poll is suspended.
//!
//! A waiting poll is *expired* if it was suspended after its quantum, and *fresh* otherwise. A
//! sleeping poll is *set aside* when the vCPU continues with other polls.

use std::collections::VecDeque;
use upshift_core::QueueEnd;
use upshift_core::preempt::{LookCosts, MAX_SUSPENSION, Policy, RunTime, WaitingWork};

use super::load::{Outcome, Wait, WatcherState};

#[derive(Clone, Debug)]
pub(super) struct Poll {
    /// Index of the poll in the load.
    pub(super) n: usize,
    pub(super) level: u8,
    /// CPU time that the poll still needs.
    pub(super) left: u64,
    /// CPU time that the poll has used.
    pub(super) total: u64,
    /// Time since the poll began, except the time for which it was suspended.
    pub(super) elapsed: u64,
    /// Value of `left` at which the poll begins to sleep, and the length of the sleep.
    pub(super) sleeps: Option<(u64, u64)>,
    pub(super) suspended: bool,
    pub(super) was_suspended: bool,
    pub(super) expired: bool,
    /// Time at which the poll was last on the CPU, or became ready.
    pub(super) off_since: u64,
    /// Number of polls suspended on the vCPU at `off_since`, this one included.
    pub(super) suspended_count: usize,
}

pub(super) enum Activity {
    Idle,
    Polling {
        poll: Poll,
        stretch: Stretch,
        since: u64,
    },
    Sleeping {
        poll: Poll,
        stretch: Stretch,
        until: u64,
        /// Time since which other polls have waited for the end of the sleep, if any wait.
        waited_since: Option<u64>,
    },
    Switching {
        until: u64,
    },
}

/// The part of a poll since its start or last resumption. A *turn* is a short time in which a
/// suspended poll runs on.
#[derive(Clone, Copy)]
pub(super) struct Stretch {
    /// Guaranteed length of the stretch: a turn, or 0.
    pub(super) turn: u64,
    pub(super) began: u64,
    /// CPU time of the stretch before the poll last slept.
    pub(super) ran: u64,
}

/// The watcher's timer, as in the runtime (`preempt/alarm.rs`).
pub(super) struct Alarm {
    /// Time at which the timer expires, or `NEVER`.
    at: u64,
    /// Delay of the watcher's wake-up after the timer has expired.
    wake_delay: u64,
    /// Expiry time set by the last poll that began while the watcher rested (did not examine
    /// polls).
    watchdog: u64,
}

impl Alarm {
    fn arm(&mut self, at: u64, wake_delay: u64) {
        if at < self.at {
            (self.at, self.wake_delay) = (at, wake_delay);
        }
    }

    /// Postpones the watchdog to 2 · MAX_SUSPENSION from now. Does nothing if the timer is already
    /// due, or has at least MAX_SUSPENSION left. A timer that was set for something other than the
    /// watchdog keeps its earlier time.
    fn push(&mut self, now: u64, wake_delay: u64) {
        if self.at != NEVER && (self.at <= now || self.at >= now + MAX_SUSPENSION) {
            return;
        }
        let last_watchdog = std::mem::replace(&mut self.watchdog, now + 2 * MAX_SUSPENSION);
        if self.at == last_watchdog {
            self.at = NEVER;
        }
        self.arm(self.watchdog, wake_delay);
    }

    fn look_at(&self) -> u64 {
        self.at.saturating_add(self.wake_delay)
    }
}

pub(super) struct Vcpu {
    /// Factor by which a poll takes longer than its CPU time.
    slowdown: u64,
    pub(super) queues: Vec<VecDeque<Poll>>,
    pub(super) waiting: u64,
    pub(super) activity: Activity,
    pub(super) policy: Policy,
    pub(super) alarm: Alarm,
    /// Set while arrivals of polls wake the watcher.
    pub(super) listens: bool,
    /// Time at which the watcher last examined the poll under way (a *look*), or the start of this
    /// poll if that is later.
    pub(super) seen_at: u64,
    /// Time of the next look because of an arrival, or `NEVER`.
    pub(super) notified_at: u64,
    /// Time at which an expired poll was last picked before a fresh one.
    pub(super) last_expired_pick: u64,
    /// Set if the next pick takes a suspended poll for its turn.
    pub(super) is_turn_next: bool,
    /// Polls that are set aside, each with the end of its sleep.
    pub(super) set_aside_polls: Vec<(u64, Poll)>,
    /// Waits that have not ended, each with the index in the load of the poll that waits, and its
    /// start.
    pub(super) open_waits: Vec<(usize, u64, Wait)>,
}

/// Time of an event that does not happen.
pub(super) const NEVER: u64 = u64::MAX;

impl Vcpu {
    pub(super) fn new(looks: LookCosts, slowdown: u64) -> Vcpu {
        Vcpu {
            slowdown,
            queues: vec![VecDeque::new(); 64],
            waiting: 0,
            activity: Activity::Idle,
            policy: Policy::new(looks, 0),
            alarm: Alarm {
                at: NEVER,
                wake_delay: 0,
                watchdog: NEVER,
            },
            listens: false,
            seen_at: 0,
            notified_at: NEVER,
            last_expired_pick: 0,
            is_turn_next: false,
            set_aside_polls: Vec::new(),
            open_waits: Vec::new(),
        }
    }

    pub(super) fn next_event(&self) -> u64 {
        let activity_end = match &self.activity {
            Activity::Idle => NEVER,
            Activity::Polling { poll, since, .. } => since + poll.time_until_stop() * self.slowdown,
            Activity::Sleeping { until, .. } | Activity::Switching { until } => *until,
        };
        let sleep_ends = self.set_aside_polls.iter().map(|(until, _)| *until);
        let first_sleep_end = sleep_ends.min().unwrap_or(NEVER);
        activity_end
            .min(first_sleep_end)
            .min(self.alarm.look_at())
            .min(self.notified_at)
    }

    /// Consumes the event that makes the watcher look now. Returns true if only the timer has
    /// expired.
    pub(super) fn take_watcher_event(&mut self, now: u64) -> bool {
        self.seen_at = now;
        if self.alarm.look_at() <= now {
            self.alarm.at = NEVER;
        }
        let by_timer = self.notified_at > now;
        if !by_timer {
            self.notified_at = NEVER;
        }
        by_timer
    }

    pub(super) fn arm(&mut self, at: u64, wake_delay: u64) {
        self.alarm.arm(at, wake_delay);
    }

    /// Begins to watch a poll that was not suspended, like `watch_over` in the runtime.
    pub(super) fn watch_over(&mut self, level: u8, cost: u64, now: u64, wake_delay: u64) {
        if self.policy.rest_end() > now {
            return self.alarm.push(now, wake_delay);
        }
        self.listens = true;
        if self.waiting != 0 {
            let wait = match WaitingWork::most_urgent(level, self.waiting) {
                WaitingWork::Equal if self.only_expired(level) => MAX_SUSPENSION,
                WaitingWork::Nothing => MAX_SUSPENSION,
                WaitingWork::Equal | WaitingWork::Urgent => cost,
            };
            self.alarm.arm(now + wait, wake_delay);
        }
    }

    pub(super) fn only_expired(&self, level: u8) -> bool {
        self.queues[usize::from(level)]
            .iter()
            .all(|poll| poll.expired)
    }

    /// Returns the poll under way, its times, and whether it sleeps.
    pub(super) fn poll_under_way(&self, now: u64) -> Option<(&Poll, Stretch, RunTime, bool)> {
        let (poll, stretch, runs, asleep) = match &self.activity {
            Activity::Polling {
                poll,
                stretch,
                since,
            } => (poll, *stretch, (now - since) / self.slowdown, false),
            Activity::Sleeping { poll, stretch, .. } => (poll, *stretch, 0, true),
            Activity::Idle | Activity::Switching { .. } => return None,
        };
        let ran = RunTime {
            total: poll.total + runs,
            stretch: stretch.ran + runs,
            elapsed: poll.elapsed + (now - stretch.began),
        };
        Some((poll, stretch, ran, asleep))
    }

    pub(super) fn watcher_state(&self) -> WatcherState {
        if self.listens || self.notified_at != NEVER {
            WatcherState::Listens
        } else if self.policy.rest_end() > self.seen_at {
            WatcherState::Rests
        } else {
            WatcherState::Ignores
        }
    }

    pub(super) fn push(&mut self, poll: Poll, end: QueueEnd) {
        let queue = &mut self.queues[usize::from(poll.level)];
        self.waiting |= 1 << poll.level;
        match end {
            QueueEnd::Head => queue.push_front(poll),
            QueueEnd::Tail => queue.push_back(poll),
        }
    }

    pub(super) fn clear_if_empty(&mut self, level: usize) {
        if self.queues[level].is_empty() {
            self.waiting &= !(1 << level);
        }
    }

    /// Picks in the order of the queues of `upshift_core`. Expired polls come after fresh ones, but
    /// once per MAX_SUSPENSION an expired poll that is overdue comes first.
    pub(super) fn pop(&mut self, now: u64) -> Option<Poll> {
        let level = self.waiting.trailing_zeros() as usize;
        let queue = self.queues.get_mut(level)?;
        let fresh = queue.iter().position(|poll| !poll.expired);
        let expired = queue.iter().position(|poll| poll.expired);
        let place = match (fresh, expired) {
            (Some(fresh), Some(expired)) => {
                let was_overdue =
                    queue[expired].off_since + MAX_SUSPENSION < queue[fresh].off_since;
                if queue[fresh].suspended
                    || !was_overdue
                    || now < self.last_expired_pick + MAX_SUSPENSION
                {
                    fresh
                } else {
                    self.last_expired_pick = now;
                    expired
                }
            }
            (fresh, expired) => fresh.or(expired)?,
        };
        let poll = queue.remove(place);
        self.clear_if_empty(level);
        poll
    }

    /// Takes the suspended poll that has been off the CPU for longest, if it was last on the CPU at
    /// `before` or earlier.
    pub(super) fn take_longest_off(&mut self, before: u64) -> Option<Poll> {
        let all = self.queues.iter().enumerate().flat_map(|(level, queue)| {
            let places = queue.iter().enumerate();
            places.map(move |(place, poll)| (poll, level, place))
        });
        let suspended = all.filter(|(poll, ..)| poll.suspended && poll.off_since <= before);
        let (_, level, place) = suspended.min_by_key(|(poll, ..)| poll.off_since)?;
        let poll = self.queues[level].remove(place);
        self.clear_if_empty(level);
        poll
    }

    /// Lets the next pick give a turn to a suspended poll, if a turn is due.
    /// `others_may_depend` is true if other work on the vCPU may depend on a suspended poll.
    pub(super) fn give_turn(&mut self, others_may_depend: bool, now: u64) -> bool {
        let Some(min_suspension) = self.policy.min_suspension_for_turn(others_may_depend, now)
        else {
            return false;
        };
        let before = now.saturating_sub(min_suspension);
        let mut suspended = self.queues.iter().flatten();
        if !suspended.any(|poll| poll.suspended && poll.off_since <= before) {
            return false;
        }
        self.policy.record_turn(now);
        self.is_turn_next = true;
        true
    }

    pub(super) fn count_suspended(&self) -> usize {
        let all = self.queues.iter().flatten();
        all.filter(|poll| poll.suspended).count()
    }

    /// Ends the waits for the poll under way.
    pub(super) fn end_waits(&mut self, at: u64, outcome: &mut Outcome) {
        for (_, since, mut wait) in self.open_waits.drain(..) {
            wait.waited = at - since;
            outcome.waits.push(wait);
        }
    }
}

impl Poll {
    pub(super) fn time_until_stop(&self) -> u64 {
        match self.sleeps {
            Some((at, _)) => self.left.saturating_sub(at),
            None => self.left,
        }
    }

    pub(super) fn advance(&mut self, time: u64) {
        self.left -= time;
        self.total += time;
    }
}
