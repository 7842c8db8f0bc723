//! Checks a simulation against the laws, which the documentation of the crate lists.
//!
//! [`Laws`] is an oracle. It tracks the state of an ideal scheduler with one global queue, which
//! learns at once of spawned and woken coroutines, timers that are due, and data that has arrived.
//! The oracle does not schedule. Between any two events it detects states that the ideal scheduler
//! would have prevented. The core has many queues, and each of its steps takes time, so it may be
//! in such a state for a bounded time.
//!
//! A *strand* is a thread of the simulated machine (`strand.rs`). Three times are recorded for a
//! coroutine that waits to be polled:
//!
//! * the time of the event that it waited for (a wake, a deadline, an arrival of data), from which
//!   [`Law::Conservation`] and [`Law::Progress`] measure the wait;
//! * the time when the coroutine became ready, which is later for a timer or for data;
//!   [`Law::Progress`] measures again from zero then;
//! * the time when the coroutine was *settled*, that is, when the step that made it ready had
//!   returned. [`Law::Order`] and [`Law::Truth`] hold from then on, since no other vCPU could see
//!   the coroutine earlier.

use std::collections::HashMap;

use upshift_core::{Change, CoroutineId, Step};

use crate::machine::Machine;
use crate::timeline::{Entry, Timeline};
use crate::workload::Workload;

mod floor;
mod lending;
mod verdict;

use floor::FloorLaw;
pub(crate) use lending::level;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    Idle,
    BetweenPolls,
    Polling(usize),
}

/// A law of the simulation. Each variant describes the state that breaks the law.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Law {
    /// A less urgent poll began while a more urgent coroutine was ready.
    Order,
    /// A coroutine waited for longer than *B* ([`Machine::conservation_bound`]) while a vCPU was
    /// idle.
    Conservation,
    /// A coroutine waited while less urgent work ran, for longer than *P* + *B*, where *P* is the
    /// longest poll.
    Progress,
    /// The levels to which the floor guarantees a share of the time got less than this share, or
    /// ran ahead of more urgent work for longer than the share allows.
    Floor,
    /// The published state of a vCPU hid urgent work.
    Truth,
}

/// A broken law, the time at which it broke, and the events until then.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The law.
    pub law: Law,
    /// Virtual time in nanoseconds.
    pub at: u64,
    /// Description of the violation.
    pub description: String,
    /// Events of all vCPUs.
    pub timeline: Timeline,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let at = self.at as f64 / 1e3;
        writeln!(f, "{:?}, at {at:.3} µs: {}", self.law, self.description)?;
        write!(f, "{}", self.timeline)
    }
}

/// Longest waits, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LongestWaits {
    /// Longest wait during which some vCPU idled all the time.
    pub while_idle: u64,
    /// Longest wait while less urgent work ran, or a vCPU idled.
    pub behind_less_urgent: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    New,
    Blocked,
    Ready,
    Running,
    Suspended,
    Exited,
}

/// Position in the order of events, which also orders events of the same instant.
type Stamp = u64;

struct Tracked {
    id: Option<CoroutineId>,
    phase: Phase,
    level: u8,
    base: u8,
    /// Coroutine that this one awaits.
    awaits: Option<usize>,
    /// Coroutines that this one has awaited since it was last blocked. Its poll may still lend its
    /// level to them.
    awaited: Vec<usize>,
    home: Option<usize>,
    /// Time until which the coroutine waits for a timer or for data.
    due: Option<u64>,
    /// Strand that is making the coroutine ready, and has not returned from this step yet.
    unsettled: Option<usize>,
    /// True if the coroutine has yielded, and enters a queue only at the next pick of its vCPU.
    awaits_requeue: bool,
    /// Position at which the coroutine was last settled.
    settled: Stamp,
    /// Last removal of the coroutine from a queue, and the vCPU that removed it.
    last_removal: (Stamp, usize),
    /// Numbers of picks that vCPU 0 had begun when the coroutine became ready, and when it was
    /// settled. Used only on a machine with one vCPU, to check the order within a level.
    ready_pick: u64,
    settled_pick: u64,
    /// Level at which the coroutine was picked, if it keeps its place in the queue when it yields.
    kept_level: Option<u8>,
    /// Time of the first poll.
    first_poll: Option<u64>,
    /// Time for which the coroutine has waited while a vCPU idled without a break.
    while_idle: u64,
    /// Time for which the coroutine has waited while less urgent work ran, or a vCPU idled.
    behind_less_urgent: u64,
}

impl Tracked {
    fn new(level: u8) -> Tracked {
        Tracked {
            id: None,
            phase: Phase::New,
            level,
            base: level,
            awaits: None,
            awaited: Vec::new(),
            home: None,
            due: None,
            unsettled: None,
            awaits_requeue: false,
            settled: 0,
            last_removal: (0, 0),
            ready_pick: 0,
            settled_pick: 0,
            kept_level: None,
            first_poll: None,
            while_idle: 0,
            behind_less_urgent: 0,
        }
    }

    fn is_settled(&self) -> bool {
        self.phase == Phase::Ready && self.unsettled.is_none()
    }

    fn is_queued(&self) -> bool {
        matches!(self.phase, Phase::Ready | Phase::Suspended)
    }

    fn may_run_on(&self, vcpu: usize) -> bool {
        self.home.is_none_or(|home| home == vcpu)
    }

    /// Returns the time, at or after `from`, since which the coroutine waits.
    fn waits_since(&self, from: u64) -> Option<u64> {
        match self.phase {
            Phase::Ready => Some(from),
            Phase::Blocked => self.due.map(|due| due.max(from)),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Pick {
    began: Stamp,
    count: u64,
    chosen: Option<(usize, u8)>,
}

pub(crate) struct Laws {
    all: Vec<Tracked>,
    ids: HashMap<CoroutineId, usize>,
    activity: Vec<Activity>,
    picks: Vec<Pick>,
    stamps: Stamp,
    time: u64,
    /// The bound *B* of the law of conservation.
    conservation_bound: u64,
    /// The bound of the law of progress: the longest time for which a coroutine may wait while less
    /// urgent work runs.
    progress_bound: u64,
    /// True if polls are not interrupted.
    is_inline: bool,
    floor: Option<FloorLaw>,
    pub(crate) longest: LongestWaits,
    timeline: Timeline,
    enabled: bool,
}

impl Laws {
    /// Creates the oracle. Unless `enabled`, it tracks the coroutines but checks no law.
    pub(crate) fn new(machine: &Machine, workload: &Workload, enabled: bool) -> Laws {
        let bound = machine.conservation_bound();
        let longest = workload.longest_poll();
        let poll = match machine.preemption {
            Some(preemption) if machine.vcpus == 1 => 3 * preemption.suspension,
            Some(preemption) => longest + 3 * preemption.suspension,
            None => longest,
        };
        let levels = workload.programs.iter().map(|program| program.level & 63);
        Laws {
            all: levels.map(Tracked::new).collect(),
            ids: HashMap::new(),
            activity: vec![Activity::BetweenPolls; machine.vcpus],
            picks: vec![Pick::default(); machine.vcpus],
            stamps: 0,
            time: 0,
            conservation_bound: bound,
            is_inline: machine.preemption.is_none(),
            floor: FloorLaw::new(machine, workload),
            // There is no bound if a poll may take any time, or if a floor lets less urgent work go
            // ahead for its share of the time.
            progress_bound: if workload.may_block() || machine.floor.is_some() {
                u64::MAX
            } else {
                poll + bound
            },
            longest: LongestWaits::default(),
            timeline: Timeline::new(machine.vcpus),
            enabled,
        }
    }

    fn stamp(&mut self) -> Stamp {
        self.stamps += 1;
        self.stamps
    }

    // Events that the world reports.

    /// Records that coroutine `k` is about to be spawned, pinned to `home` if given. Returns false
    /// if it has been spawned before.
    pub(crate) fn record_spawn(&mut self, k: usize, home: Option<usize>) -> bool {
        let tracked = &mut self.all[k];
        if tracked.phase != Phase::New {
            return false;
        }
        tracked.phase = Phase::Blocked;
        tracked.home = home;
        true
    }

    pub(crate) fn id(&self, k: usize) -> Option<CoroutineId> {
        self.all[k].id
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled
    }

    pub(crate) fn first_polled(&self, k: usize) -> Option<u64> {
        self.all[k].first_poll
    }

    pub(crate) fn has_exited(&self, k: usize) -> bool {
        self.all[k].phase == Phase::Exited
    }

    /// Records that coroutine `k` waits for a timer or for data, until `deadline`.
    pub(crate) fn record_deadline(&mut self, k: usize, deadline: u64) {
        self.all[k].due = Some(deadline);
    }

    /// Records a step that `strand` has made. `spawning` is the coroutine that the strand is about
    /// to spawn, if any.
    pub(crate) fn record_step(
        &mut self,
        now: u64,
        change: &Change,
        strand: usize,
        spawning: Option<usize>,
    ) {
        if change.step == Step::Spawned
            && let Some(k) = spawning
        {
            self.ids.insert(change.id, k);
            self.all[k].id = Some(change.id);
        }
        let Some(&k) = self.ids.get(&change.id) else {
            return;
        };
        let stamp = self.stamp();
        let tracked = &mut self.all[k];
        tracked.level = change.level.get();
        match change.step {
            Step::Spawned => {}
            // The coroutine is in no queue until the thief's pick has returned.
            Step::Stolen { .. } => {
                tracked.unsettled = Some(strand);
                tracked.last_removal = (stamp, change.vcpu);
            }
            Step::Ready | Step::Yielded => {
                tracked.phase = Phase::Ready;
                tracked.due = None;
                tracked.unsettled = Some(strand);
                tracked.awaits_requeue = false;
                tracked.kept_level = tracked.kept_level.filter(|level| *level == tracked.level);
                if tracked.kept_level.is_none() {
                    tracked.ready_pick = self.picks[0].count;
                }
                tracked.behind_less_urgent = 0;
            }
            Step::Polled | Step::Resumed => {
                tracked.phase = Phase::Running;
                tracked.first_poll.get_or_insert(now);
                tracked.last_removal = (stamp, change.vcpu);
                tracked.due = None;
                tracked.unsettled = None;
                tracked.kept_level = None;
                (tracked.while_idle, tracked.behind_less_urgent) = (0, 0);
                self.picks[change.vcpu].chosen = Some((k, change.level.get()));
            }
            Step::Blocked => {
                tracked.phase = Phase::Blocked;
                tracked.awaited.clear();
            }
            Step::Suspended => tracked.phase = Phase::Suspended,
            Step::Exited => {
                tracked.phase = Phase::Exited;
                tracked.awaited.clear();
            }
        }
        if self.enabled {
            let entry = Entry::Step(k, change.level, change.step);
            self.timeline.add(now, change.by, entry);
        }
    }

    /// Records that the coroutines that a strand has made ready are visible to all vCPUs from now
    /// on. After a pick (`picked`), this includes the coroutine that had yielded.
    pub(crate) fn settle(&mut self, strand: usize, picked: bool) {
        let stamp = self.stamp();
        let pick = self.picks[0].count;
        for tracked in &mut self.all {
            if tracked.unsettled == Some(strand) && (picked || !tracked.awaits_requeue) {
                tracked.unsettled = None;
                tracked.settled = stamp;
                if tracked.kept_level.take().is_none() {
                    tracked.settled_pick = pick;
                }
            }
        }
    }

    /// Records that the poll of `k` on a vCPU yields and keeps the place that `k` had when it was
    /// picked.
    pub(crate) fn record_kept_place(&mut self, vcpu: usize, k: usize) {
        let picked = self.picks[vcpu].chosen.map(|(_, level)| level);
        self.all[k].kept_level = picked;
    }

    /// Records that the coroutine that a vCPU polled last has yielded, and enters a queue only at
    /// the vCPU's next pick.
    pub(crate) fn record_awaits_requeue(&mut self, vcpu: usize) {
        if let Some((k, _)) = self.picks[vcpu].chosen {
            self.all[k].awaits_requeue = true;
        }
    }

    pub(crate) fn record_pick(&mut self, vcpu: usize) {
        let stamp = self.stamp();
        let pick = &mut self.picks[vcpu];
        pick.began = stamp;
        pick.count += 1;
        pick.chosen = None;
        if let Some(floor) = &mut self.floor {
            floor.record_pick(vcpu);
        }
    }

    pub(crate) fn set_activity(&mut self, now: u64, vcpu: usize, activity: Activity) {
        let before = std::mem::replace(&mut self.activity[vcpu], activity);
        if self.enabled && (before == Activity::Idle) != (activity == Activity::Idle) {
            let entry = Entry::Idle(activity == Activity::Idle);
            self.timeline.add(now, Some(vcpu), entry);
        }
    }
}
