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

use upshift_core::{Change, CoroutineId, Level, Step};

use crate::machine::Machine;
use crate::timeline::{Entry, Timeline};
use crate::workload::Workload;
use crate::world::World;

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
    /// The vCPU it is pinned to.
    home: Option<usize>,
    /// It waits for a timer or for data, until then.
    due: Option<u64>,
    /// The strand that makes it ready has not come back from it yet.
    unsettled: Option<usize>,
    settled: Stamp,
    /// When a vCPU last took it out of a queue, and which one.
    taken: (Stamp, usize),
    /// On a machine with one vCPU: how many picks had begun when it became ready, and when it was settled.
    ready_pick: u64,
    settled_pick: u64,
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
            home: None,
            due: None,
            unsettled: None,
            settled: 0,
            taken: (0, 0),
            ready_pick: 0,
            settled_pick: 0,
            first: None,
            beside_idle: 0,
            behind: 0,
        }
    }

    fn is_settled(&self) -> bool {
        self.phase == Phase::Ready && self.unsettled.is_none()
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
            behind: if workload.blocks() {
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
            // Until the thief's pick is over it is in nobody's queue.
            Step::Stolen { .. } => {
                it.unsettled = Some(strand);
                it.taken = (stamp, change.vcpu);
            }
            Step::Ready | Step::Yielded => {
                it.phase = Phase::Ready;
                it.due = None;
                it.unsettled = Some(strand);
                it.ready_pick = self.picks[0].count;
                it.behind = 0;
            }
            Step::Polled | Step::Resumed => {
                it.phase = Phase::Running;
                it.first.get_or_insert(now);
                it.taken = (stamp, change.vcpu);
                it.due = None;
                it.unsettled = None;
                (it.beside_idle, it.behind) = (0, 0);
                self.picks[change.vcpu].chosen = Some((k, change.level.get()));
            }
            Step::Blocked => it.phase = Phase::Blocked,
            Step::Suspended => it.phase = Phase::Suspended,
            Step::Exited => it.phase = Phase::Exited,
        }
        if self.enabled {
            let entry = Entry::Changed(k, change.level, change.step);
            self.timeline.add(now, change.by, entry);
        }
    }

    /// What a strand has made ready is there for everybody.
    pub(crate) fn settle(&mut self, strand: usize) {
        let stamp = self.stamp();
        let pick = self.picks[0].count;
        for it in &mut self.all {
            if it.unsettled == Some(strand) {
                it.unsettled = None;
                (it.settled, it.settled_pick) = (stamp, pick);
            }
        }
    }

    /// A vCPU begins a pick.
    pub(crate) fn picks(&mut self, vcpu: usize) {
        let stamp = self.stamp();
        let pick = &mut self.picks[vcpu];
        pick.began = stamp;
        pick.count += 1;
        pick.chosen = None;
    }

    pub(crate) fn doing(&mut self, now: u64, vcpu: usize, doing: Doing) {
        let before = std::mem::replace(&mut self.doing[vcpu], doing);
        if self.enabled && (before == Doing::Idles) != (doing == Doing::Idles) {
            let entry = Entry::Idles(doing == Doing::Idles);
            self.timeline.add(now, Some(vcpu), entry);
        }
    }

    // What the oracle says.

    /// A vCPU begins or resumes the poll that its last pick has come to.
    pub(crate) fn begins(
        &mut self,
        world: &World,
        vcpu: usize,
        resumed: bool,
    ) -> Result<(), Violation> {
        let pick = self.picks[vcpu];
        let Some((k, level)) = pick.chosen else {
            return Ok(());
        };
        self.doing(world.now(), vcpu, Doing::Polls(k));
        if !self.enabled {
            return Ok(());
        }
        let alone = self.picks.len() == 1 && !resumed;
        let overtaken = self.all.iter().enumerate().find(|(other, it)| {
            let waited = *other != k && it.is_settled() && it.may_run_on(vcpu);
            let first = it.level < level && it.settled < pick.began;
            let fifo = alone && it.level == level && it.settled_pick < self.all[k].ready_pick;
            waited && (first || fifo)
        });
        let Some((other, it)) = overtaken else {
            return Ok(());
        };
        let what = format!(
            "vCPU {vcpu} polls #{k} of level {level} while #{other} of level {} is ready",
            it.level
        );
        Err(self.violation(world, Law::Order, what))
    }

    /// Looks at the time until the next event, in which nothing changes.
    pub(crate) fn between(&mut self, world: &World, until: u64) -> Result<(), Violation> {
        if !self.enabled {
            return Ok(());
        }
        self.read_levels(world);
        if world.is_quiescent() {
            self.truth(world)?;
        }
        let (from, bound) = (std::mem::replace(&mut self.time, until), self.bound);
        if from == until {
            return Ok(());
        }
        let mut broken = None;
        for k in 0..self.all.len() {
            let it = &self.all[k];
            let Some(since) = it.waits_since(from).filter(|since| *since < until) else {
                continue;
            };
            let (mut idle, mut less_urgent) = (false, false);
            for (vcpu, doing) in self.doing.iter().enumerate() {
                if it.may_run_on(vcpu) {
                    idle |= *doing == Doing::Idles;
                    less_urgent |=
                        matches!(doing, Doing::Polls(x) if self.all[*x].level > it.level);
                }
            }
            let time = until - since;
            let it = &mut self.all[k];
            it.beside_idle = if idle { it.beside_idle + time } else { 0 };
            it.behind += if idle || less_urgent { time } else { 0 };
            let longest = &mut self.longest;
            longest.beside_idle = longest.beside_idle.max(it.beside_idle);
            longest.behind_less_urgent = longest.behind_less_urgent.max(it.behind);
            if it.beside_idle > bound {
                broken = broken.or(Some((Law::Conservation, k)));
            } else if it.behind > self.behind {
                broken = broken.or(Some((Law::Progress, k)));
            }
        }
        match broken {
            None => Ok(()),
            Some((law, k)) => Err(self.waited_too_long(world, law, k)),
        }
    }

    /// Nothing will happen any more: is anything left that waits?
    pub(crate) fn at_the_end(&mut self, world: &World) -> Result<(), Violation> {
        let waits = |it: &Tracked| it.waits_since(0).is_some_and(|since| since <= world.now());
        let left = self
            .all
            .iter()
            .position(|it| waits(it) || it.phase == Phase::Suspended);
        match left {
            Some(k) if self.enabled => {
                let what = format!("#{k} is {:?} and waits for ever", self.all[k].phase);
                Err(self.violation(world, Law::Conservation, what))
            }
            _ => Ok(()),
        }
    }

    /// The simulation does not end.
    pub(crate) fn spins(&self, world: &World) -> Violation {
        self.violation(
            world,
            Law::Progress,
            "the vCPUs spin and get nowhere".into(),
        )
    }

    /// Lending and `reprio` change levels without a change of state.
    fn read_levels(&mut self, world: &World) {
        let stamp = self.stamp();
        for it in &mut self.all {
            if !matches!(it.phase, Phase::Ready | Phase::Running | Phase::Blocked) {
                continue;
            }
            if let Some(level) = it.id.and_then(|id| world.domain.level(id).ok())
                && level.get() != it.level
            {
                it.level = level.get();
                it.settled = stamp;
                // As if it had become ready now: another poll may be under way that is less urgent.
                it.behind = 0;
                it.settled_pick = self.picks[0].count;
                it.ready_pick = self.picks[0].count;
            }
        }
    }

    fn truth(&self, world: &World) -> Result<(), Violation> {
        let bitmap = world.domain.bitmap();
        let hidden = |it: &Tracked| it.is_settled() && bitmap & (1 << it.level) == 0;
        if let Some(k) = self.all.iter().position(hidden) {
            let what = format!(
                "#{k} of level {} is ready and not in the bitmap {bitmap:#x}",
                self.all[k].level
            );
            return Err(self.violation(world, Law::Truth, what));
        }
        let mut idle = 0;
        for (vcpu, (cpu, doing)) in world.cpus.iter().zip(&self.doing).enumerate() {
            let executor = &cpu.executor;
            idle += usize::from(executor.is_parked());
            let Doing::Polls(k) = *doing else { continue };
            let level = self.all[k].level;
            let shown = executor.running_level().map(Level::get);
            if shown.is_none_or(|shown| shown < level) {
                let what = format!("vCPU {vcpu} polls level {level} and shows {shown:?}");
                return Err(self.violation(world, Law::Truth, what));
            }
            let more_urgent = (1_u64 << level) - 1;
            if executor.bitmap() & more_urgent != 0 && !executor.need_preempt() {
                let what = format!(
                    "vCPU {vcpu} polls level {level}, has {:#x} ready, and is not asked to give way",
                    executor.bitmap()
                );
                return Err(self.violation(world, Law::Truth, what));
            }
        }
        if idle != world.domain.idle_vcpus() {
            let what = format!(
                "{idle} are parked, {} are counted",
                world.domain.idle_vcpus()
            );
            return Err(self.violation(world, Law::Truth, what));
        }
        Ok(())
    }

    fn waited_too_long(&self, world: &World, law: Law, k: usize) -> Violation {
        let it = &self.all[k];
        let (time, bound, beside) = match law {
            Law::Conservation => (it.beside_idle, self.bound, "beside an idle vCPU"),
            _ => (it.behind, self.behind, "while something less urgent ran"),
        };
        let micros = |time: u64| time as f64 / 1e3;
        let what = format!(
            "#{k} of level {}, {:?}, has waited {:.3} µs {beside}; the bound is {:.3} µs",
            it.level,
            it.phase,
            micros(time),
            micros(bound)
        );
        self.violation(world, law, what)
    }

    fn violation(&self, world: &World, law: Law, what: String) -> Violation {
        Violation {
            law,
            at: self.time.max(world.now()),
            what,
            timeline: self.timeline.clone(),
        }
    }
}
