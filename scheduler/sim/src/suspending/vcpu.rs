//! A vCPU of the model: its queues, what it does, and what it picks.

use std::collections::VecDeque;
use upshift_core::Place;
use upshift_core::preempt::{KEPT, Lengths, Policy};

use super::load::{Outcome, Wait};

#[derive(Clone, Debug)]
pub(super) struct Poll {
    /// The number of its arrival.
    pub(super) n: usize,
    pub(super) level: u8,
    pub(super) left: u64,
    pub(super) in_all: u64,
    /// It sleeps for so long when no more than this is left.
    pub(super) sleeps: Option<(u64, u64)>,
    pub(super) suspended: bool,
    /// It was suspended after its quantum.
    pub(super) lingers: bool,
    /// When it was last on the CPU, or became ready.
    pub(super) off_since: u64,
    /// How many were suspended there then, itself included.
    pub(super) among: usize,
}

pub(super) enum Doing {
    Idles,
    /// Since when, and for a turn of so long.
    Polls {
        poll: Poll,
        since: u64,
        turn: u64,
    },
    Sleeps {
        poll: Poll,
        since: u64,
        until: u64,
        waited_since: Option<u64>,
    },
    Switches {
        until: u64,
    },
}

pub(super) struct Vcpu {
    slow: u64,
    pub(super) queues: Vec<VecDeque<Poll>>,
    pub(super) waiting: u64,
    pub(super) doing: Doing,
    pub(super) policy: Policy,
    pub(super) lengths: Lengths,
    pub(super) look_at: u64,
    /// When one that lingered last went before a fresh one.
    pub(super) turned: u64,
    /// The next pick is for the turn of a suspended poll.
    pub(super) turn: bool,
    /// Set aside until then.
    pub(super) aside: Vec<(u64, Poll)>,
    /// Waits that have not ended: of which arrival, and since when.
    pub(super) open: Vec<(usize, u64, Wait)>,
}

pub(super) const NEVER: u64 = u64::MAX;

impl Vcpu {
    pub(super) fn new(quantum: u64, slow: u64) -> Vcpu {
        Vcpu {
            slow,
            queues: vec![VecDeque::new(); 64],
            waiting: 0,
            doing: Doing::Idles,
            policy: Policy::new(0),
            lengths: Lengths::new(quantum, 1_000),
            look_at: NEVER,
            turned: 0,
            turn: false,
            aside: Vec::new(),
            open: Vec::new(),
        }
    }

    pub(super) fn next_event(&self) -> u64 {
        let own = match &self.doing {
            Doing::Idles => NEVER,
            Doing::Polls { poll, since, .. } => since + poll.until_it_stops() * self.slow,
            Doing::Sleeps { until, .. } | Doing::Switches { until } => *until,
        };
        let woken = self.aside.iter().map(|it| it.0).min().unwrap_or(NEVER);
        own.min(woken).min(self.look_at)
    }

    pub(super) fn push(&mut self, poll: Poll, place: Place) {
        let queue = &mut self.queues[usize::from(poll.level)];
        self.waiting |= 1 << poll.level;
        match place {
            Place::Head => queue.push_front(poll),
            Place::Tail => queue.push_back(poll),
        }
    }

    pub(super) fn forget_empty(&mut self, level: usize) {
        if self.queues[level].is_empty() {
            self.waiting &= !(1 << level);
        }
    }

    /// As the queues of the core: those that linger are behind the others, but for one every now and then that has been patient.
    pub(super) fn pop(&mut self, now: u64) -> Option<Poll> {
        let level = self.waiting.trailing_zeros() as usize;
        let queue = self.queues.get_mut(level)?;
        let fresh = queue.iter().position(|poll| !poll.lingers);
        let lingers = queue.iter().position(|poll| poll.lingers);
        let place = match (fresh, lingers) {
            (Some(fresh), Some(lingers)) => {
                let was_patient = queue[lingers].off_since + KEPT < queue[fresh].off_since;
                if queue[fresh].suspended || !was_patient || now < self.turned + KEPT {
                    fresh
                } else {
                    self.turned = now;
                    lingers
                }
            }
            (fresh, lingers) => fresh.or(lingers)?,
        };
        let poll = queue.remove(place);
        self.forget_empty(level);
        poll
    }

    /// The suspended poll that has been off the CPU for longest, if that is so long.
    pub(super) fn take_kept(&mut self, before: u64) -> Option<Poll> {
        let all = self.queues.iter().enumerate().flat_map(|(level, queue)| {
            let places = queue.iter().enumerate();
            places.map(move |(place, poll)| (poll, level, place))
        });
        let suspended = all.filter(|(poll, ..)| poll.suspended && poll.off_since <= before);
        let (_, level, place) = suspended.min_by_key(|(poll, ..)| poll.off_since)?;
        let poll = self.queues[level].remove(place);
        self.forget_empty(level);
        poll
    }

    pub(super) fn suspended(&self) -> usize {
        let all = self.queues.iter().flatten();
        all.filter(|poll| poll.suspended).count()
    }

    /// The poll under way is out of the way of what waits.
    pub(super) fn close_waits(&mut self, at: u64, outcome: &mut Outcome) {
        for (_, since, mut wait) in self.open.drain(..) {
            wait.waited = at - since;
            outcome.waits.push(wait);
        }
    }
}

impl Poll {
    pub(super) fn until_it_stops(&self) -> u64 {
        match self.sleeps {
            Some((at, _)) => self.left.saturating_sub(at),
            None => self.left,
        }
    }

    pub(super) fn runs_for(&mut self, time: u64) {
        self.left -= time;
        self.in_all += time;
    }
}
