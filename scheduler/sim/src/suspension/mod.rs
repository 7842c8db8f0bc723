//! Models the preemption of long polls. The model runs the unmodified policy of
//! `upshift_core::preempt` over random loads of polls, with a watcher (the thread that decides when
//! a poll is suspended) that wakes late.
//!
//! The model has neither the scheduler core nor threads, so millions of polls take seconds. A vCPU
//! polls its most urgent work, in order within a level. A suspension takes the time *C*, which is
//! all charged before the next poll, and a resumption takes no time. So the wait that a suspension
//! causes is never shorter than on a real machine. If other programs use a part of the CPU, polls
//! last longer than the CPU time that they use. An idle vCPU takes a poll that has not begun from
//! another vCPU.
//!
//! The watcher's timer, its rests (times in which it ignores arrivals) and its watchdog are
//! modelled on those of the runtime (`linux/runtime/src/preempt/{alarm,serve,watcher}.rs`). The
//! watcher wakes late by a random time of at most [`Load::max_wake_delay`].

mod load;
mod theorems;
mod vcpu;

pub use load::{Arrival, Load, Outcome, Wait, WatcherState};
pub use theorems::{Levels, Service, Shape, check, search_loads, shapes};
use upshift_core::QueueEnd;
use upshift_core::preempt::{
    Decision, LookCosts, MAX_SUSPENSION, Policy, Rule, Snapshot, TURN_LENGTH, WaitingWork,
};

use vcpu::{Activity, NEVER, Poll, Stretch, Vcpu};

/// Runs a load to its end.
#[must_use]
pub fn run_load(load: &Load) -> Outcome {
    let rule = Rule::new(load.cost, load.quantum);
    let looks = LookCosts {
        event: load.look_cost / 2,
        timer: load.look_cost,
    };
    let mut machine = Machine {
        rule,
        load,
        vcpus: (0..load.vcpus)
            .map(|_| Vcpu::new(looks, load.slowdown))
            .collect(),
        random: load.arrivals.len() as u64,
        now: 0,
        outcome: Outcome {
            suspension_times: vec![Vec::new(); load.vcpus],
            stale_looks: vec![0; load.vcpus],
            turns: vec![0; load.vcpus],
            set_aside: vec![0; load.vcpus],
            ..Outcome::default()
        },
    };
    let mut next = 0;
    loop {
        let arrives = load.arrivals.get(next).map_or(NEVER, |poll| poll.at);
        let (index, event) = (0..load.vcpus)
            .map(|index| (index, machine.vcpus[index].next_event()))
            .min_by_key(|(_, at)| *at)
            .expect("at least one vCPU");
        if arrives.min(event) == NEVER {
            machine.outcome.end = machine.now;
            return machine.outcome;
        }
        if arrives <= event {
            machine.now = arrives;
            machine.arrive(next);
            next += 1;
        } else {
            machine.now = event;
            machine.handle_event(index);
        }
    }
}

struct Machine<'a> {
    load: &'a Load,
    rule: Rule,
    vcpus: Vec<Vcpu>,
    random: u64,
    now: u64,
    outcome: Outcome,
}

impl Machine<'_> {
    /// Returns a random delay of the watcher's next wake-up.
    fn wake_delay(&mut self) -> u64 {
        self.random = random(self.random);
        self.random % (self.load.max_wake_delay + 1)
    }

    /// Lets the watcher look after `time` nanoseconds.
    fn look_in(&mut self, index: usize, time: u64) {
        let (at, delay) = (self.now.saturating_add(time), self.wake_delay());
        self.vcpus[index].arm(at, delay);
    }

    fn wake_watcher(&mut self, index: usize) {
        let at = self.now + self.wake_delay();
        let vcpu = &mut self.vcpus[index];
        vcpu.listens = false;
        vcpu.notified_at = vcpu.notified_at.min(at);
    }

    /// Wakes the watcher because of an arrival, if it listens.
    fn notify_watcher(&mut self, index: usize) {
        if self.vcpus[index].listens {
            self.wake_watcher(index);
        }
    }

    /// Records the arrival of poll `n`, and notifies the watcher or an idle vCPU.
    fn arrive(&mut self, n: usize) {
        let arrival = self.load.arrivals[n];
        let index = n % self.vcpus.len();
        let (now, vcpu) = (self.now, &mut self.vcpus[index]);
        let poll = Poll {
            n,
            level: arrival.level,
            left: arrival.service,
            total: 0,
            elapsed: 0,
            sleeps: arrival.sleeps.map(|time| (arrival.service / 2, time)),
            suspended: false,
            was_suspended: false,
            expired: false,
            off_since: now,
            suspended_count: 0,
        };
        for (_, _, wait) in &mut vcpu.open_waits {
            wait.was_followed |= wait.is_equal;
        }
        if let Some((under_way, stretch, ran, false)) = vcpu.poll_under_way(now)
            && under_way.level >= arrival.level
            && under_way.sleeps.is_none()
        {
            let wait = Wait {
                ran: ran.total,
                needed: under_way.left - (ran.total - under_way.total),
                waited: 0,
                is_equal: under_way.level == arrival.level,
                watcher: vcpu.watcher_state(),
                lacked_budget: false,
                had_turn: ran.stretch < stretch.turn,
                was_followed: false,
            };
            vcpu.open_waits.push((n, now, wait));
        }
        vcpu.push(poll, QueueEnd::Tail);
        match &mut vcpu.activity {
            Activity::Idle => self.pick(index),
            Activity::Switching { .. } => {}
            Activity::Polling { .. } => self.notify_watcher(index),
            Activity::Sleeping { waited_since, .. } => {
                waited_since.get_or_insert(now);
                self.notify_watcher(index);
            }
        }
        let idle = |vcpu: &Vcpu| matches!(vcpu.activity, Activity::Idle);
        if let Some(idle) = self.vcpus.iter().position(idle) {
            self.pick(idle);
        }
    }

    fn handle_event(&mut self, index: usize) {
        let now = self.now;
        let vcpu = &mut self.vcpus[index];
        if let Some(place) = vcpu
            .set_aside_polls
            .iter()
            .position(|(until, _)| *until <= now)
        {
            let mut poll = vcpu.set_aside_polls.swap_remove(place).1;
            (poll.suspended, poll.expired, poll.off_since) = (true, false, now);
            poll.was_suspended = true;
            poll.suspended_count = 1 + vcpu.count_suspended();
            vcpu.push(poll, QueueEnd::Head);
            return match &mut vcpu.activity {
                Activity::Idle => self.pick(index),
                Activity::Switching { .. } => {}
                Activity::Polling { .. } => self.wake_watcher(index),
                Activity::Sleeping { waited_since, .. } => {
                    waited_since.get_or_insert(now);
                    self.wake_watcher(index);
                }
            };
        }
        match std::mem::replace(&mut vcpu.activity, Activity::Idle) {
            Activity::Switching { until } if until <= now => self.pick(index),
            Activity::Sleeping {
                poll,
                stretch,
                until,
                waited_since,
            } if until <= now => {
                vcpu.activity = Activity::Polling {
                    poll,
                    stretch,
                    since: now,
                };
                self.record_sleep(waited_since);
            }
            Activity::Polling {
                mut poll,
                mut stretch,
                since,
            } if since + poll.time_until_stop() * self.load.slowdown <= now => {
                let time = (now - since) / self.load.slowdown;
                poll.advance(time);
                stretch.ran += time;
                vcpu.end_waits(now, &mut self.outcome);
                match poll.sleeps.take() {
                    None => {
                        self.outcome
                            .times
                            .push((poll.n, now - self.load.arrivals[poll.n].at));
                        self.pick(index);
                    }
                    Some((_, time)) => {
                        let waits = vcpu.waiting != 0;
                        vcpu.activity = Activity::Sleeping {
                            poll,
                            stretch,
                            until: now + time,
                            waited_since: waits.then_some(now),
                        };
                    }
                }
            }
            activity => {
                vcpu.activity = activity;
                self.look(index);
            }
        }
    }

    fn record_sleep(&mut self, since: Option<u64>) {
        let time = since.map_or(0, |since| self.now - since);
        let longest = &mut self.outcome.longest_blocking_sleep;
        *longest = time.max(*longest);
    }

    fn pick(&mut self, index: usize) {
        let now = self.now;
        let vcpu = &mut self.vcpus[index];
        vcpu.activity = Activity::Idle;
        if std::mem::take(&mut vcpu.is_turn_next)
            && let Some(poll) = vcpu.take_longest_off(now)
        {
            return self.start(index, poll, TURN_LENGTH);
        }
        if let Some(poll) = vcpu.pop(now) {
            return self.start(index, poll, 0);
        }
        // Takes the most urgent poll of another vCPU that has not begun.
        let others = self.vcpus.iter().enumerate();
        let fresh = others.flat_map(|(other, vcpu)| {
            let all = vcpu
                .queues
                .iter()
                .flat_map(|queue| queue.iter().enumerate());
            let fresh = all.filter(|(_, poll)| !poll.suspended);
            fresh.map(move |(place, poll)| (poll.level, other, place))
        });
        if let Some((level, other, place)) = fresh.min() {
            let level = usize::from(level);
            let poll = self.vcpus[other].queues[level].remove(place);
            let victim = &mut self.vcpus[other];
            victim.clear_if_empty(level);
            let n = poll.as_ref().map(|poll| poll.n);
            // The wait of a poll ends when it moves to another vCPU.
            let outcome = &mut self.outcome;
            victim.open_waits.retain_mut(|(waiting, since, wait)| {
                wait.waited = now - *since;
                let stays = Some(*waiting) != n;
                if !stays {
                    outcome.waits.push(*wait);
                }
                stays
            });
            if let Activity::Sleeping { waited_since, .. } = &mut victim.activity
                && victim.waiting == 0
            {
                *waited_since = None;
            }
            self.start(index, poll.expect("still queued"), 0);
        }
    }

    fn start(&mut self, index: usize, mut poll: Poll, turn: u64) {
        let (now, delay) = (self.now, self.wake_delay());
        let vcpu = &mut self.vcpus[index];
        if poll.suspended {
            // The number includes the poll that resumes.
            let suspended_count = poll.suspended_count.max(1 + vcpu.count_suspended());
            let off_cpu = (now - poll.off_since) / suspended_count as u64;
            self.outcome.longest_off_cpu = self.outcome.longest_off_cpu.max(off_cpu);
        }
        let resumes = std::mem::take(&mut poll.suspended);
        poll.expired = false;
        vcpu.seen_at = now;
        if !resumes {
            vcpu.watch_over(poll.level, self.rule.cost, now, delay);
        } else if turn != 0 {
            vcpu.listens = false;
            vcpu.arm(now + self.rule.cost + turn, delay);
        } else {
            vcpu.listens = true;
            if vcpu.waiting != 0 {
                vcpu.arm(now + MAX_SUSPENSION, delay);
            }
        }
        vcpu.activity = Activity::Polling {
            poll,
            stretch: Stretch {
                turn,
                began: now,
                ran: 0,
            },
            since: now,
        };
    }

    /// Lets the watcher look, like `look` in the runtime.
    fn look(&mut self, index: usize) {
        let now = self.now;
        let by_timer = self.vcpus[index].take_watcher_event(now);
        let stopped = match self.vcpus[index].activity {
            // The thread that serves the vCPU checks for itself when it picks.
            Activity::Idle => true,
            Activity::Switching { .. } => self.look_between_polls(index, by_timer),
            Activity::Polling { .. } | Activity::Sleeping { .. } => self.decide(index, by_timer),
        };
        let vcpu = &mut self.vcpus[index];
        if !stopped && by_timer {
            self.outcome.clock_looks += 1;
        } else if !stopped {
            vcpu.policy.charge_look(now);
            self.outcome.event_looks += 1;
        }
        // While a poll is stopped, the watcher looks again when the next turn may be due, as in the
        // runtime.
        if vcpu.count_suspended() != 0 || !vcpu.set_aside_polls.is_empty() {
            let time = vcpu.policy.next_turn_in(now);
            self.look_in(index, time);
        }
    }

    fn look_between_polls(&mut self, index: usize, by_timer: bool) -> bool {
        let now = self.now;
        let vcpu = &mut self.vcpus[index];
        if by_timer && vcpu.policy.is_stale_look(0) {
            vcpu.policy.begin_rest(now);
            self.outcome.stale_looks[index] += 1;
        }
        vcpu.give_turn(!vcpu.set_aside_polls.is_empty(), now);
        false
    }

    /// Decides on the poll under way. Returns whether the poll was stopped.
    fn decide(&mut self, index: usize, by_timer: bool) -> bool {
        let (now, rule) = (self.now, self.rule);
        let vcpu = &mut self.vcpus[index];
        let (poll, stretch, ran, asleep) = vcpu.poll_under_way(now).expect("a poll is under way");
        let snapshot = Snapshot {
            poll: 1 + poll.n as u64,
            level: poll.level,
            ran,
            was_suspended: poll.was_suspended,
            turn: stretch.turn,
            waiting: vcpu.waiting,
            only_expired: vcpu.only_expired(poll.level),
            idle_vcpu_could_run: false,
            expects_urgent: self.load.expects_urgent,
            any_suspended: vcpu.count_suspended() != 0,
        };
        let others_may_depend = Policy::may_block_others(!vcpu.set_aside_polls.is_empty(), ran);
        if vcpu.give_turn(others_may_depend, now) && others_may_depend {
            vcpu.open_waits
                .iter_mut()
                .for_each(|(.., wait)| wait.had_turn = true);
            if asleep {
                self.set_aside(index);
            } else {
                vcpu.policy.record_suspension(&rule, now);
                self.outcome.turns[index] += 1;
                self.suspend(index, rule.queue_end(ran));
            }
            return true;
        }
        let last_rest_end = vcpu.policy.rest_end();
        let decision = vcpu
            .policy
            .decide(&rule, &snapshot, by_timer, || asleep, now);
        if vcpu.policy.rest_end() > last_rest_end.max(now) {
            self.outcome.stale_looks[index] += 1;
        }
        match decision {
            Decision::Rest if vcpu.policy.rest_end() > now => {
                self.look_in(index, 2 * MAX_SUSPENSION)
            }
            Decision::Rest => vcpu.listens = true,
            Decision::Later { wait, listens } => {
                vcpu.listens = listens;
                let watcher = vcpu.watcher_state();
                let waits = snapshot.waiting_work();
                let may_stop = rule.time_left(waits, ran) == Some(0);
                for (_, _, wait) in &mut vcpu.open_waits {
                    if watcher == WatcherState::Rests {
                        wait.watcher = watcher;
                    }
                    wait.lacked_budget |= may_stop && ran.stretch >= snapshot.turn;
                }
                self.look_in(index, wait);
            }
            // As in the runtime, the watcher finds out only when it stops the thread whether the
            // poll sleeps.
            Decision::Suspend(_) if asleep => {
                self.set_aside(index);
                return true;
            }
            Decision::Suspend(end) => {
                vcpu.policy.record_suspension(&rule, now);
                let is_urgent = snapshot.waiting_work() == WaitingWork::Urgent;
                let is_old = ran.total >= rule.quantum;
                self.outcome.for_expired +=
                    u64::from(snapshot.waiting_work() == WaitingWork::Nothing);
                self.outcome.before_quantum += u64::from(!is_urgent && !is_old);
                self.outcome.suspension_times[index].push(now);
                self.suspend(index, end);
                return true;
            }
            Decision::SetAside => {
                self.set_aside(index);
                return true;
            }
        }
        false
    }

    fn set_aside(&mut self, index: usize) {
        let now = self.now;
        let vcpu = &mut self.vcpus[index];
        let until = now + self.rule.cost;
        let activity = std::mem::replace(&mut vcpu.activity, Activity::Switching { until });
        let Activity::Sleeping {
            mut poll,
            stretch,
            until,
            waited_since,
        } = activity
        else {
            unreachable!("only a sleeping poll is set aside")
        };
        poll.elapsed += now - stretch.began;
        vcpu.set_aside_polls.push((until, poll));
        vcpu.listens = false;
        self.outcome.set_aside[index] += 1;
        self.record_sleep(waited_since);
    }

    fn suspend(&mut self, index: usize, end: QueueEnd) {
        let (now, until) = (self.now, self.now + self.rule.cost);
        let vcpu = &mut self.vcpus[index];
        let activity = std::mem::replace(&mut vcpu.activity, Activity::Switching { until });
        let Activity::Polling {
            mut poll,
            stretch,
            since,
        } = activity
        else {
            unreachable!("only a running poll is suspended")
        };
        poll.advance((now - since) / self.load.slowdown);
        poll.elapsed += now - stretch.began;
        (poll.suspended, poll.off_since) = (true, now);
        poll.was_suspended = true;
        poll.expired = end == QueueEnd::Tail;
        poll.suspended_count = 1 + vcpu.count_suspended();
        vcpu.listens = false;
        vcpu.end_waits(until, &mut self.outcome);
        vcpu.push(poll, end);
    }
}

/// Returns the next number of SplitMix64.
pub(crate) fn random(n: u64) -> u64 {
    let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
