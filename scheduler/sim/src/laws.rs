//! The oracle that holds a simulation against the laws.
//!
//! It is an ideal scheduler with one global queue that knows everything at once: what was spawned or woken, which timers
//! are due, whose data has arrived. It does not schedule; it says, between any two events, what an ideal scheduler would
//! not have let happen, and for how long the real one may, since it has many queues and every step has its cost. The
//! table of the laws is in the documentation of the crate.
//!
//! A coroutine that waits has three times:
//!
//! * when the reason became true (the wake, the deadline, the arrival): from then on conservation and progress count;
//! * when it became ready, which for a timer or for data is later: from then on progress counts afresh;
//! * when it was *settled*, that is, when the step that made it ready had returned: from then on order and truth count,
//!   for before that no other vCPU can have known.

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

/// What a vCPU does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// It waits for something to do, or is on its way out of such a wait.
    Idles,
    /// It is between two polls.
    Turns,
    /// It polls this coroutine.
    Polls(usize),
}

/// Which law.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Law {
    /// A less urgent poll began while something more urgent was ready.
    Order,
    /// Something waited beside an idle vCPU for longer than *B*.
    Conservation,
    /// Something waited for what is less urgent for longer than the theorem says.
    Progress,
    /// The levels of the floor got less than their share, or went ahead of urgent work for longer.
    Floor,
    /// What others see of a vCPU hid something urgent.
    Truth,
}

/// A law that was broken, when, and what had happened until then.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Which.
    pub law: Law,
    /// In nanoseconds of virtual time.
    pub at: u64,
    /// By what.
    pub what: String,
    /// What happened on which vCPU.
    pub timeline: Timeline,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let at = self.at as f64 / 1e3;
        writeln!(f, "{:?}, at {at:.3} µs: {}", self.law, self.what)?;
        write!(f, "{}", self.timeline)
    }
}

/// The longest that anything waited, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Longest {
    /// Beside an idle vCPU.
    pub beside_idle: u64,
    /// While something less urgent ran, or a vCPU idled.
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

/// Orders what happens at the same instant.
type Stamp = u64;

struct Tracked {
    id: Option<CoroutineId>,
    phase: Phase,
    level: u8,
    /// The level of its own.
    base: u8,
    /// The coroutine that it awaits.
    awaits: Option<usize>,
    /// The coroutines that it has awaited since it was last blocked: its poll may still lend to
    /// them.
    awaited: Vec<usize>,
    /// The vCPU it is pinned to.
    home: Option<usize>,
    /// It waits for a timer or for data, until then.
    due: Option<u64>,
    /// The strand that makes it ready has not come back from it yet.
    unsettled: Option<usize>,
    /// It has yielded, and is in no queue before the next pick of its vCPU.
    in_hand: bool,
    settled: Stamp,
    /// When a vCPU last took it out of a queue, and which one.
    taken: (Stamp, usize),
    /// On a machine with one vCPU: how many picks had begun when it became ready, and when it was settled.
    ready_pick: u64,
    settled_pick: u64,
    /// Its poll, of this level, gives way in place.
    keeps: Option<u8>,
    /// When it was first polled.
    first: Option<u64>,
    beside_idle: u64,
    behind: u64,
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
            in_hand: false,
            settled: 0,
            taken: (0, 0),
            ready_pick: 0,
            settled_pick: 0,
            keeps: None,
            first: None,
            beside_idle: 0,
            behind: 0,
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

    /// Since when within `from..` it waits.
    fn waits_since(&self, from: u64) -> Option<u64> {
        match self.phase {
            Phase::Ready => Some(from),
            Phase::Blocked => self.due.map(|due| due.max(from)),
            _ => None,
        }
    }
}

/// A pick of a vCPU.
#[derive(Clone, Copy, Default)]
struct Pick {
    began: Stamp,
    count: u64,
    /// What it came to, and of which level that was then.
    chosen: Option<(usize, u8)>,
}

/// The state of the oracle.
pub(crate) struct Laws {
    all: Vec<Tracked>,
    ids: HashMap<CoroutineId, usize>,
    doing: Vec<Doing>,
    picks: Vec<Pick>,
    stamps: Stamp,
    /// Until when everything has been looked at.
    time: u64,
    /// *B*.
    bound: u64,
    /// For how long at most a coroutine waits for what is less urgent.
    behind: u64,
    /// Polls are not interrupted.
    inline: bool,
    floor: Option<FloorLaw>,
    pub(crate) longest: Longest,
    timeline: Timeline,
    enabled: bool,
}

impl Laws {
    /// Not `enabled`: only the coroutines are tracked.
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
            doing: vec![Doing::Turns; machine.vcpus],
            picks: vec![Pick::default(); machine.vcpus],
            stamps: 0,
            time: 0,
            bound,
            inline: machine.preemption.is_none(),
            floor: FloorLaw::new(machine, workload),
            // With a floor less urgent work has turns of its own.
            behind: if workload.blocks() || machine.floor.is_some() {
                u64::MAX
            } else {
                poll + bound
            },
            longest: Longest::default(),
            timeline: Timeline::new(machine.vcpus),
            enabled,
        }
    }

    fn stamp(&mut self) -> Stamp {
        self.stamps += 1;
        self.stamps
    }

    // What the world tells.

    /// Coroutine `k` is about to be spawned, pinned to a vCPU or not. False: it has been before.
    pub(crate) fn spawns(&mut self, k: usize, home: Option<usize>) -> bool {
        let it = &mut self.all[k];
        if it.phase != Phase::New {
            return false;
        }
        it.phase = Phase::Blocked;
        it.home = home;
        true
    }

    pub(crate) fn id(&self, k: usize) -> Option<CoroutineId> {
        self.all[k].id
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// When coroutine `k` was first polled.
    pub(crate) fn first_polled(&self, k: usize) -> Option<u64> {
        self.all[k].first
    }

    pub(crate) fn has_exited(&self, k: usize) -> bool {
        self.all[k].phase == Phase::Exited
    }

    /// Coroutine `k` waits for a timer or for data, until then.
    pub(crate) fn due(&mut self, k: usize, deadline: u64) {
        self.all[k].due = Some(deadline);
    }

    /// A coroutine has taken a step, by a strand that may be about to spawn coroutine `spawning`.
    pub(crate) fn changed(
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
        let it = &mut self.all[k];
        it.level = change.level.get();
        match change.step {
            Step::Spawned => {}
            // Until the thief's pick is over it is in no queue.
            Step::Stolen { .. } => {
                it.unsettled = Some(strand);
                it.taken = (stamp, change.vcpu);
            }
            Step::Ready | Step::Yielded => {
                it.phase = Phase::Ready;
                it.due = None;
                it.unsettled = Some(strand);
                it.in_hand = false;
                it.keeps = it.keeps.filter(|level| *level == it.level);
                if it.keeps.is_none() {
                    it.ready_pick = self.picks[0].count;
                }
                it.behind = 0;
            }
            Step::Polled | Step::Resumed => {
                it.phase = Phase::Running;
                it.first.get_or_insert(now);
                it.taken = (stamp, change.vcpu);
                it.due = None;
                it.unsettled = None;
                it.keeps = None;
                (it.beside_idle, it.behind) = (0, 0);
                self.picks[change.vcpu].chosen = Some((k, change.level.get()));
            }
            Step::Blocked => {
                it.phase = Phase::Blocked;
                it.awaited.clear();
            }
            Step::Suspended => it.phase = Phase::Suspended,
            Step::Exited => {
                it.phase = Phase::Exited;
                it.awaited.clear();
            }
        }
        if self.enabled {
            let entry = Entry::Changed(k, change.level, change.step);
            self.timeline.add(now, change.by, entry);
        }
    }

    /// What a strand has made ready is there for all to see; after a pick also what had yielded.
    pub(crate) fn settle(&mut self, strand: usize, picked: bool) {
        let stamp = self.stamp();
        let pick = self.picks[0].count;
        for it in &mut self.all {
            if it.unsettled == Some(strand) && (picked || !it.in_hand) {
                it.unsettled = None;
                it.settled = stamp;
                if it.keeps.take().is_none() {
                    it.settled_pick = pick;
                }
            }
        }
    }

    /// The poll of `k` on a vCPU gives way and keeps the place that it had when it was picked.
    pub(crate) fn keeps_place(&mut self, vcpu: usize, k: usize) {
        let picked = self.picks[vcpu].chosen.map(|(_, level)| level);
        self.all[k].keeps = picked;
    }

    /// What a vCPU has polled is to go on, and is in no queue before its next pick.
    pub(crate) fn keeps_in_hand(&mut self, vcpu: usize) {
        if let Some((k, _)) = self.picks[vcpu].chosen {
            self.all[k].in_hand = true;
        }
    }

    /// A vCPU begins a pick.
    pub(crate) fn picks(&mut self, vcpu: usize) {
        let stamp = self.stamp();
        let pick = &mut self.picks[vcpu];
        pick.began = stamp;
        pick.count += 1;
        pick.chosen = None;
        if let Some(floor) = &mut self.floor {
            floor.ends(vcpu);
        }
    }

    pub(crate) fn doing(&mut self, now: u64, vcpu: usize, doing: Doing) {
        let before = std::mem::replace(&mut self.doing[vcpu], doing);
        if self.enabled && (before == Doing::Idles) != (doing == Doing::Idles) {
            let entry = Entry::Idles(doing == Doing::Idles);
            self.timeline.add(now, Some(vcpu), entry);
        }
    }
}
