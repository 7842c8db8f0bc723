//! The preemption policy of `upshift_core::preempt`, unmodified, over random loads: polls, arrivals and a watcher that wakes late, against an
//! ideal that knows how long each poll takes.
//!
//! It is a model of its own, beside the simulated core: only the decision counts here, and millions of polls pass in seconds. A
//! vCPU polls the most urgent that it has, in order within a level. Suspending takes *C*, all of it before the next poll; going on is free: so the wait that
//! interrupting costs is never less than on a real machine. Where other programs have a part of the CPU, polls take longer, and have run for less than they last. An idle vCPU takes what has not begun elsewhere. The watcher looks when something arrives, and when the
//! policy says, so much too late; and within a turn of the beginning of a poll, if something waits by then.

mod load;
mod theorems;
mod vcpu;

pub use load::{Arrival, Load, Outcome, Wait};
pub use theorems::{Levels, Service, Shape, check, search_loads, shapes};
use upshift_core::Place;
use upshift_core::preempt::{Decision, Looks, Policy, Ran, Rule, Sight, TURN, Waits};

use vcpu::{Doing, NEVER, Poll, Vcpu};

/// Runs a load to its end.
#[must_use]
pub fn contend(load: &Load) -> Outcome {
    let rule = Rule::new(load.cost, load.quantum);
    let mut machine = Machine {
        rule,
        load,
        vcpus: (0..load.vcpus)
            .map(|_| Vcpu::new(rule.quantum, load.slow))
            .collect(),
        random: load.arrivals.len() as u64,
        now: 0,
        outcome: Outcome {
            suspended: vec![Vec::new(); load.vcpus],
            looked: vec![0; load.vcpus],
            ..Outcome::default()
        },
    };
    let mut next = 0;
    loop {
        let arrives = load.arrivals.get(next).map_or(NEVER, |it| it.at);
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
            machine.arrives(next);
            next += 1;
        } else {
            machine.now = event;
            machine.happens(index);
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
    /// How much too late the watcher wakes this time.
    fn late(&mut self) -> u64 {
        self.random = random(self.random);
        self.random % (self.load.late + 1)
    }

    fn look_in(&mut self, index: usize, time: u64) {
        let at = self.now + time + self.late();
        let vcpu = &mut self.vcpus[index];
        vcpu.look_at = vcpu.look_at.min(at);
    }

    fn prices(&self) -> Looks {
        Looks {
            event: self.load.look,
            timer: self.load.look,
        }
    }

    /// The watcher looks because something has come, or when it hears again.
    fn hears(&mut self, index: usize) {
        let (now, looks) = (self.now, self.prices());
        let vcpu = &mut self.vcpus[index];
        let deaf = match vcpu.policy.hears_freely() {
            true => 0,
            false => vcpu.policy.is_deaf_for(&looks, now),
        };
        vcpu.policy.hears();
        if deaf != 0 {
            vcpu.open.iter_mut().for_each(|it| it.2.unheard = true);
        }
        self.look_in(index, deaf);
    }

    /// The watcher looks by the clock, after `time` if it may.
    fn looks_later(&mut self, index: usize, time: u64) {
        let (now, looks) = (self.now, self.prices());
        let vcpu = &mut self.vcpus[index];
        let wait = vcpu.policy.timers_wait(&looks, now);
        if wait > time {
            vcpu.open.iter_mut().for_each(|it| it.2.unheard = true);
        }
        self.look_in(index, time.max(wait));
    }

    fn arrives(&mut self, n: usize) {
        let it = self.load.arrivals[n];
        let index = n % self.vcpus.len();
        let (now, vcpu) = (self.now, &mut self.vcpus[index]);
        let poll = Poll {
            n,
            level: it.level,
            left: it.service,
            in_all: 0,
            sleeps: it.sleeps.map(|time| (it.service / 2, time)),
            suspended: false,
            lingers: false,
            off_since: now,
            among: 0,
        };
        if let Doing::Polls { poll, since, .. } = &vcpu.doing
            && poll.level > it.level
            && poll.sleeps.is_none()
        {
            let stretch = (now - since) / self.load.slow;
            let wait = Wait {
                ran: poll.in_all + stretch,
                needed: poll.left - stretch,
                waited: 0,
                excused: false,
                unheard: false,
            };
            vcpu.open.push((n, now, wait));
        }
        vcpu.push(poll, Place::Tail);
        match &mut vcpu.doing {
            Doing::Idles => self.picks(index),
            Doing::Switches { .. } => {}
            Doing::Polls { .. } => self.hears(index),
            Doing::Sleeps { waited_since, .. } => {
                waited_since.get_or_insert(now);
                self.hears(index);
            }
        }
        let idle = |vcpu: &Vcpu| matches!(vcpu.doing, Doing::Idles);
        if let Some(idle) = self.vcpus.iter().position(idle) {
            self.picks(idle);
        }
    }

    /// The next event of a vCPU, which is due.
    fn happens(&mut self, index: usize) {
        let now = self.now;
        let vcpu = &mut self.vcpus[index];
        if let Some(place) = vcpu.aside.iter().position(|it| it.0 <= now) {
            let mut poll = vcpu.aside.swap_remove(place).1;
            (poll.suspended, poll.lingers, poll.off_since) = (true, false, now);
            vcpu.push(poll, Place::Head);
            return match vcpu.doing {
                Doing::Idles => self.picks(index),
                Doing::Switches { .. } => {}
                _ => self.hears(index),
            };
        }
        match std::mem::replace(&mut vcpu.doing, Doing::Idles) {
            Doing::Idles => vcpu.look_at = NEVER,
            Doing::Switches { until } if until <= now => self.picks(index),
            Doing::Sleeps {
                poll,
                until,
                waited_since,
                ..
            } if until <= now => {
                self.was_in_the_way(waited_since);
                self.goes_on(index, poll, 0);
            }
            Doing::Polls {
                mut poll, since, ..
            } if since + poll.until_it_stops() * self.load.slow <= now => {
                poll.runs_for((now - since) / self.load.slow);
                vcpu.close_waits(now, &mut self.outcome);
                match poll.sleeps.take() {
                    None => {
                        vcpu.lengths.note(poll.in_all, || poll.in_all);
                        self.outcome
                            .times
                            .push((poll.n, now - self.load.arrivals[poll.n].at));
                        self.picks(index);
                    }
                    Some((_, time)) => {
                        let waits = vcpu.waiting != 0;
                        vcpu.doing = Doing::Sleeps {
                            poll,
                            since,
                            until: now + time,
                            waited_since: waits.then_some(now),
                        };
                    }
                }
            }
            doing => {
                vcpu.doing = doing;
                self.looks(index);
            }
        }
    }

    fn was_in_the_way(&mut self, since: Option<u64>) {
        let time = since.map_or(0, |since| self.now - since);
        let longest = &mut self.outcome.slept_in_the_way;
        *longest = time.max(*longest);
    }

    fn picks(&mut self, index: usize) {
        let now = self.now;
        let vcpu = &mut self.vcpus[index];
        vcpu.doing = Doing::Idles;
        vcpu.look_at = NEVER;
        if std::mem::take(&mut vcpu.turn)
            && let Some(poll) = vcpu.take_kept(now)
        {
            return self.goes_on(index, poll, TURN);
        }
        if let Some(poll) = vcpu.pop(now) {
            return self.goes_on(index, poll, 0);
        }
        // The most urgent that has not begun elsewhere.
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
            let theirs = &mut self.vcpus[other];
            theirs.forget_empty(level);
            let n = poll.as_ref().map(|poll| poll.n);
            // What goes elsewhere waits no more.
            let outcome = &mut self.outcome;
            theirs.open.retain_mut(|(waiting, since, wait)| {
                wait.waited = now - *since;
                let stays = Some(*waiting) != n;
                if !stays {
                    outcome.waits.push(*wait);
                }
                stays
            });
            if let Doing::Sleeps { waited_since, .. } = &mut theirs.doing
                && theirs.waiting == 0
            {
                *waited_since = None;
            }
            self.goes_on(index, poll.expect("found there"), 0);
        }
    }

    fn goes_on(&mut self, index: usize, mut poll: Poll, turn: u64) {
        let now = self.now;
        if poll.suspended && turn != 0 {
            // With the one that goes on.
            let among = poll.among.max(1 + self.vcpus[index].suspended());
            let off = (now - poll.off_since) / among as u64;
            self.outcome.kept_off = self.outcome.kept_off.max(off);
        }
        (poll.suspended, poll.lingers) = (false, false);
        let vcpu = &mut self.vcpus[index];
        vcpu.policy.goes_on(match poll.in_all {
            0 => 0,
            _ => now + 1,
        });
        vcpu.doing = Doing::Polls {
            poll,
            since: now,
            turn,
        };
        vcpu.look_at = NEVER;
        if vcpu.waiting != 0 {
            self.looks_later(index, TURN);
        }
    }

    fn looks(&mut self, index: usize) {
        let (now, rule) = (self.now, self.rule);
        let blocked = !self.vcpus[index].aside.is_empty();
        let vcpu = &mut self.vcpus[index];
        vcpu.look_at = NEVER;
        let (poll, since, turn, asleep) = match &vcpu.doing {
            Doing::Polls { poll, since, turn } => (poll, *since, *turn, false),
            Doing::Sleeps { poll, since, .. } => (poll, *since, 0, true),
            Doing::Idles | Doing::Switches { .. } => return,
        };
        let lasted = now - since;
        let stretch = lasted / self.load.slow;
        let ran = Ran {
            in_all: poll.in_all + stretch,
            stretch,
            lasted: poll.in_all + lasted,
        };
        let depended_on = Policy::is_depended_on(blocked, ran);
        if let Some(kept) = vcpu.policy.turn_is_due(depended_on, now) {
            let before = now.saturating_sub(kept);
            let mut suspended = vcpu.queues.iter().flatten();
            if suspended.any(|poll| poll.suspended && poll.off_since <= before) {
                vcpu.policy.gives_turn(now);
                vcpu.turn = true;
                if depended_on && !asleep {
                    vcpu.open.iter_mut().for_each(|it| it.2.excused = true);
                    self.outcome.turns += 1;
                    return self.suspends(index, rule.place(ran));
                }
            }
        }
        let sight = Sight {
            level: poll.level,
            ran,
            turn,
            waiting: vcpu.waiting,
            lingering: vcpu.queues[usize::from(poll.level)]
                .iter()
                .all(|it| it.lingers),
            beside_idle: false,
        };
        let decision = match vcpu
            .policy
            .decide(&rule, &vcpu.lengths, &sight, || asleep, now)
        {
            // Whether it sleeps is found out when it is stopped.
            Decision::Suspend(_) if asleep => Decision::SetAside,
            decision => decision,
        };
        if matches!(decision, Decision::Rest | Decision::Later(..)) {
            vcpu.policy.looked_in_vain(self.load.look, now);
            self.outcome.looked[index] += 1;
        }
        match decision {
            Decision::Rest => {}
            Decision::Later(time, waits) => {
                if rule.left(waits, ran).is_some_and(|left| left < time) {
                    vcpu.open.iter_mut().for_each(|it| it.2.excused = true);
                }
                let price = self.load.look;
                match waits != Waits::Nothing && vcpu.policy.looks_freely(&ran, price, now) {
                    true => self.look_in(index, time),
                    false => self.looks_later(index, time),
                }
            }
            Decision::Suspend(place) => {
                vcpu.policy.has_suspended(&rule, now);
                let more_urgent = (1 << poll.level) - 1;
                let for_lingering = sight.lingering && vcpu.waiting & more_urgent == 0;
                self.outcome.for_lingering += u64::from(for_lingering);
                self.outcome.suspended[index].push(now);
                self.suspends(index, place);
            }
            Decision::SetAside => {
                let doing = std::mem::replace(&mut vcpu.doing, Doing::Idles);
                let Doing::Sleeps {
                    poll,
                    until,
                    waited_since,
                    ..
                } = doing
                else {
                    unreachable!("only what sleeps is set aside")
                };
                vcpu.aside.push((until, poll));
                vcpu.doing = Doing::Switches {
                    until: now + rule.cost,
                };
                self.outcome.set_aside += 1;
                self.was_in_the_way(waited_since);
            }
        }
        // As the runtime's watcher does while anything is stopped.
        if self.vcpus[index].suspended() != 0 {
            let time = self.vcpus[index].policy.next_turn_in(now);
            self.look_in(index, time);
        }
    }

    fn suspends(&mut self, index: usize, place: Place) {
        let (now, until) = (self.now, self.now + self.rule.cost);
        let vcpu = &mut self.vcpus[index];
        let doing = std::mem::replace(&mut vcpu.doing, Doing::Switches { until });
        let Doing::Polls {
            mut poll, since, ..
        } = doing
        else {
            unreachable!("only what runs is suspended")
        };
        poll.runs_for((now - since) / self.load.slow);
        (poll.suspended, poll.off_since) = (true, now);
        poll.lingers = place == Place::Tail;
        poll.among = 1 + vcpu.suspended();
        vcpu.look_at = NEVER;
        vcpu.close_waits(until, &mut self.outcome);
        vcpu.push(poll, place);
    }
}

/// SplitMix64.
pub(crate) fn random(n: u64) -> u64 {
    let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
