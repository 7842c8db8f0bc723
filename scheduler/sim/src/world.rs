//! Runs a simulation: keeps the virtual time, the pending events, the vCPUs and the simulated
//! threads that serve them, which are called *strands* (`strand.rs`).
//!
//! The event loop takes the earliest event, sets the clock to its time, and lets one strand run
//! until it pauses. Events of the same time run in the order of their creation. Before the clock
//! advances, the [laws](crate::laws) check the state.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::ptr::NonNull;
use std::rc::Rc;
use std::task::Waker;

use upshift_core::{Change, Config, CoroutineId, Domain, Executor, JoinHandle, Step, Vcpu};

use crate::host::{Clock, CurrentWorld, SimHost};
use crate::laws::{Activity, Laws, Violation};
use crate::lock::{LOCKS, Lock};
use crate::machine::Machine;
use crate::strand::{Pause, Strand};
use crate::workload::Workload;

/// Maximum number of events of a case with bounded work. If there are more, the vCPUs spin.
const MAX_EVENTS: u64 = 100_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// A strand continues, unless its epoch has changed meanwhile.
    Continue { strand: usize, epoch: u32 },
    /// A thread that serves no vCPU spawns a coroutine.
    Spawn(usize),
    /// A thread that serves no vCPU puts a token into a channel.
    Signal(usize),
    /// Data for a coroutine arrives on the ring of a vCPU.
    Arrival { vcpu: usize, operation: usize },
    /// The watcher of a vCPU, which decides when a poll is suspended, examines a poll.
    Watch { vcpu: usize, poll: u64 },
}

/// A waiter: the flag that ends its wait, and the waker to call when the flag has been set.
pub(crate) type Waiter = (Rc<Cell<bool>>, Waker);

pub(crate) struct Cpu {
    pub(crate) executor: Rc<Executor<SimHost>>,
    /// Strand that serves the vCPU.
    pub(crate) owner: Cell<usize>,
    /// Strands without a poll, which may serve the vCPU later.
    pub(crate) spares: RefCell<Vec<usize>>,
    /// Strands of suspended polls, by coroutine.
    pub(crate) suspended: RefCell<HashMap<CoroutineId, usize>>,
    /// Timers by deadline and a number that distinguishes timers of the same deadline.
    pub(crate) timers: RefCell<BTreeMap<(u64, u64), Waiter>>,
    /// Operations whose data has arrived, and which have not been reaped.
    pub(crate) ring: RefCell<VecDeque<usize>>,
    /// Set while the owner waits for work in [`crate::serve`].
    pub(crate) is_waiting: Cell<bool>,
    /// Set from the decision to end the wait until the owner continues.
    pub(crate) is_waking: Cell<bool>,
    /// Earliest deadline of the timers of the other vCPUs in long polls, when this vCPU last
    /// examined them.
    pub(crate) neighbours_deadline: Cell<Option<u64>>,
    /// Number of beginnings and ends of polls, which is odd while a poll is under way.
    pub(crate) poll: Cell<u64>,
    /// Time at which the poll under way began or was resumed.
    pub(crate) began: Cell<u64>,
}

#[derive(Default)]
pub(crate) struct Channel {
    pub(crate) tokens: u64,
    pub(crate) waiting: VecDeque<Waiter>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(crate) enum End {
    /// The case has not ended.
    Running,
    /// The case has ended. All coroutines are cancelled, and computing takes no time.
    Draining,
    /// All coroutines have exited, and the strands return.
    Finished,
}

#[derive(Default)]
struct Agenda {
    now: Cell<u64>,
    events: RefCell<BinaryHeap<Reverse<(u64, u64, Event)>>>,
    /// Number of events created so far, which orders events of the same time.
    created: Cell<u64>,
}

pub(crate) struct World {
    pub(crate) machine: Machine,
    pub(crate) workload: Workload,
    agenda: Agenda,
    pub(crate) clock: Clock,
    pub(crate) domain: Domain<SimHost>,
    pub(crate) cpus: Vec<Cpu>,
    strands: RefCell<Vec<Rc<Strand>>>,
    ended: RefCell<Vec<usize>>,
    running: RefCell<Option<Rc<Strand>>>,
    /// Index of the next delay of the interleaving.
    next_delay: Cell<usize>,
    /// Number of strands that stand still in the middle of a step.
    inside: Cell<usize>,
    pub(crate) handles: RefCell<Vec<Option<JoinHandle<(), SimHost>>>>,
    pub(crate) channels: RefCell<Vec<Channel>>,
    pub(crate) locks: RefCell<Vec<Lock>>,
    /// Coroutines that receive; the flag is set when the data has arrived.
    pub(crate) operations: RefCell<Vec<Waiter>>,
    pub(crate) laws: RefCell<Laws>,
    broken: RefCell<Option<Violation>>,
    end: Cell<End>,
    /// Strands whose polls wait for the exit of a coroutine.
    pub(crate) blocked: RefCell<Vec<usize>>,
}

impl World {
    pub(crate) fn new(machine: Machine, workload: Workload, laws: Laws) -> Rc<World> {
        let config = Config {
            floor: machine.floor,
            long_poll_after: machine.long_poll_after,
            suspended_delay: machine.preemption.map_or(0, |p| 10 * p.quantum),
            ..Config::default()
        };
        let domain = Domain::new(SimHost, config);
        let cpus = (0..machine.vcpus)
            .map(|_| Cpu {
                executor: Rc::new(domain.add_vcpu().expect("at most 128 vCPUs")),
                owner: Cell::new(0),
                spares: RefCell::default(),
                suspended: RefCell::default(),
                timers: RefCell::default(),
                ring: RefCell::default(),
                is_waiting: Cell::new(false),
                is_waking: Cell::new(false),
                neighbours_deadline: Cell::new(None),
                poll: Cell::new(0),
                began: Cell::new(0),
            })
            .collect();
        let programs = workload.programs.len();
        let world = Rc::new(World {
            machine,
            agenda: Agenda::default(),
            clock: Clock::default(),
            domain,
            cpus,
            strands: RefCell::default(),
            ended: RefCell::default(),
            running: RefCell::default(),
            next_delay: Cell::new(0),
            inside: Cell::new(0),
            handles: RefCell::new((0..programs).map(|_| None).collect()),
            channels: RefCell::new((0..CHANNELS).map(|_| Channel::default()).collect()),
            locks: RefCell::new((0..LOCKS).map(|_| Lock::default()).collect()),
            operations: RefCell::default(),
            laws: RefCell::new(laws),
            broken: RefCell::default(),
            end: Cell::new(End::Running),
            blocked: RefCell::default(),
            workload,
        });
        for vcpu in 0..machine.vcpus {
            let strand = world.create_strand(Some(vcpu), move |world| world.serve(vcpu));
            world.cpus[vcpu].owner.set(strand);
            world.schedule(strand, 0);
        }
        for (k, program) in world.workload.programs.iter().enumerate() {
            if let Some(start) = program.start {
                world.add_event(start, Event::Spawn(k));
            }
        }
        world
    }

    /// Records a violation that was found while a strand ran. The event loop returns the violation
    /// before the next event.
    pub(crate) fn report(&self, result: Result<(), Violation>) {
        if let Err(violation) = result {
            self.broken.borrow_mut().get_or_insert(violation);
        }
    }

    /// Runs until no event is left, or a law is broken.
    pub(crate) fn run(self: &Rc<World>) -> Result<(), Violation> {
        let _current_world = CurrentWorld::begin(self);
        let result = self.events_until_quiet();
        let result = result.and_then(|()| self.laws.borrow_mut().check_end(self));
        let drained = self.drain();
        result.and(drained)
    }

    fn events_until_quiet(self: &Rc<World>) -> Result<(), Violation> {
        for count in 0.. {
            let next = self.agenda.events.borrow_mut().pop();
            let Some(Reverse((time, _, event))) = next else {
                break;
            };
            if let Event::Continue { strand, epoch } = event
                && self.strand(strand).epoch.get() != epoch
            {
                continue;
            }
            if count > MAX_EVENTS && self.laws.borrow().is_enabled() {
                return Err(self.laws.borrow().endless_violation(self));
            }
            if !self.is_draining() {
                self.laws.borrow_mut().check_until(self, time)?;
            }
            self.agenda.now.set(time);
            self.handle_event(event);
            if let Some(violation) = self.broken.take() {
                return Err(violation);
            }
        }
        Ok(())
    }

    fn handle_event(self: &Rc<World>, event: Event) {
        match event {
            Event::Continue { strand, .. } => self.resume(strand),
            Event::Spawn(k) => self.run_outside(move |world| world.spawn(k)),
            Event::Signal(channel) => self.run_outside(move |world| world.signal(channel)),
            Event::Arrival { vcpu, operation } => self.handle_arrival(vcpu, operation),
            Event::Watch { vcpu, poll } => self.watch(vcpu, poll),
        }
    }

    /// Ends all coroutines, in any state, and all strands. If the vCPUs spin, the world is leaked,
    /// because its stacks cannot be unwound.
    fn drain(self: &Rc<World>) -> Result<(), Violation> {
        self.end.set(End::Draining);
        self.domain.close();
        let ended = self.cancel_everything().and_then(|()| {
            self.end.set(End::Finished);
            for cpu in &self.cpus {
                for strand in cpu.spares.take() {
                    self.schedule(strand, 0);
                }
            }
            for vcpu in 0..self.cpus.len() {
                self.end_wait(vcpu, 0);
            }
            self.events_until_quiet()
        });
        match ended {
            // Dropped to break the reference cycle, since strands refer to this world.
            Ok(()) => drop(self.strands.take()),
            Err(_) => std::mem::forget(self.clone()),
        }
        ended
    }

    fn cancel_everything(self: &Rc<World>) -> Result<(), Violation> {
        for _ in 0..100 {
            for handle in self.handles.borrow_mut().iter_mut() {
                drop(handle.take());
            }
            let living = Rc::new(Cell::new(0));
            let count = living.clone();
            self.run_outside(move |world| count.set(world.domain.cancel_all()));
            for strand in self.blocked.take() {
                self.schedule(strand, 0);
            }
            for vcpu in 0..self.cpus.len() {
                self.end_wait(vcpu, 0);
            }
            self.events_until_quiet()?;
            if living.get() == 0 {
                return Ok(());
            }
        }
        Err(self.laws.borrow().endless_violation(self))
    }

    // Time and events.

    pub(crate) fn is_draining(&self) -> bool {
        self.end.get() >= End::Draining
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.end.get() == End::Finished
    }

    pub(crate) fn now(&self) -> u64 {
        self.agenda.now.get()
    }

    pub(crate) fn add_event(&self, time: u64, event: Event) {
        let number = self.agenda.created.get();
        self.agenda.created.set(number + 1);
        let time = time.max(self.now());
        self.agenda
            .events
            .borrow_mut()
            .push(Reverse((time, number, event)));
    }

    // Strands.

    pub(crate) fn strand(&self, index: usize) -> Rc<Strand> {
        self.strands.borrow()[index].clone()
    }

    /// Creates a strand, which waits for its first [`World::schedule`].
    pub(crate) fn create_strand(
        self: &Rc<World>,
        vcpu: Option<usize>,
        body: impl FnOnce(&Rc<World>) + 'static,
    ) -> usize {
        let reused = self.ended.borrow_mut().pop();
        let index = reused.unwrap_or(self.strands.borrow().len());
        let strand = Strand::new(vcpu, index, body, self);
        let mut strands = self.strands.borrow_mut();
        match reused {
            Some(index) => {
                strand.epoch.set(strands[index].epoch.get() + 1);
                strands[index] = strand;
            }
            None => strands.push(strand),
        }
        index
    }

    /// Runs `body` at the current time on a strand that serves no vCPU.
    pub(crate) fn run_outside(self: &Rc<World>, body: impl FnOnce(&Rc<World>) + 'static) {
        let strand = self.create_strand(None, body);
        self.resume(strand);
    }

    /// Lets a strand continue `delay` nanoseconds from now, and voids earlier events for it.
    pub(crate) fn schedule(&self, index: usize, delay: u64) {
        let strand = self.strand(index);
        let epoch = strand.epoch.get() + 1;
        strand.epoch.set(epoch);
        let event = Event::Continue {
            strand: index,
            epoch,
        };
        self.add_event(self.now() + delay, event);
    }

    fn resume(&self, index: usize) {
        let strand = self.strand(index);
        strand.until.set(None);
        let before = self.running.replace(Some(strand.clone()));
        let pause = strand.resume();
        self.running.replace(before);
        match pause {
            None => self.ended.borrow_mut().push(index),
            Some(Pause::Wait) => {}
            Some(Pause::For(time)) => self.schedule(index, time),
            Some(Pause::Compute(time)) => {
                strand.until.set(Some(self.now() + time));
                self.schedule(index, time);
            }
        }
    }

    pub(crate) fn pause(&self, pause: Pause) {
        let strand = self.running.borrow().clone();
        let strand = strand.expect("only strands pause");
        let pause = match pause {
            Pause::Compute(_) if self.is_draining() => Pause::For(0),
            pause => pause,
        };
        strand.pause(pause);
    }

    /// Marks a point at which the interleaving of the case may let other strands run.
    pub(crate) fn step(&self) {
        if self.running.borrow().is_none() || self.is_draining() {
            return;
        }
        let next = self.next_delay.get();
        let Some(&delay) = self.workload.delays.get(next) else {
            return;
        };
        self.next_delay.set(next + 1);
        if delay != 0 {
            self.stand_still(u64::from(delay));
        }
    }

    pub(crate) fn stand_still(&self, time: u64) {
        self.inside.set(self.inside.get() + 1);
        self.pause(Pause::For(time));
        self.inside.set(self.inside.get() - 1);
    }

    pub(crate) fn is_quiescent(&self) -> bool {
        self.inside.get() == 0
    }

    pub(crate) fn serving_vcpu(&self) -> Option<usize> {
        self.running.borrow().as_ref()?.vcpu
    }

    pub(crate) fn current(&self) -> Option<NonNull<Vcpu<SimHost>>> {
        Some(self.cpus[self.serving_vcpu()?].executor.vcpu())
    }

    /// Records which coroutine the running strand is about to spawn, if any.
    pub(crate) fn set_spawning(&self, k: Option<usize>) {
        let strand = self.running.borrow();
        strand.as_ref().expect("only strands spawn").spawning.set(k);
    }

    pub(crate) fn record_step(&self, change: &Change) {
        if self.is_draining() {
            return;
        }
        let Some(strand) = self.running.borrow().clone() else {
            return;
        };
        let mut laws = self.laws.borrow_mut();
        laws.record_step(self.now(), change, strand.index, strand.spawning.get());
        drop(laws);
        if change.step == Step::Exited {
            for strand in self.blocked.take() {
                self.schedule(strand, 0);
            }
        }
    }

    /// Records that the coroutines that the running strand has made ready are visible to all vCPUs
    /// from now on.
    pub(crate) fn settle(&self) {
        let strand = self.running.borrow().as_ref().map(|strand| strand.index);
        if let Some(strand) = strand {
            self.laws.borrow_mut().settle(strand, false);
        }
    }

    /// Like [`World::settle`], after a pick.
    pub(crate) fn settle_pick(&self) {
        let strand = self.running.borrow().as_ref().map(|strand| strand.index);
        if let Some(strand) = strand {
            self.laws.borrow_mut().settle(strand, true);
        }
    }

    pub(crate) fn set_activity(&self, vcpu: usize, activity: Activity) {
        self.laws
            .borrow_mut()
            .set_activity(self.now(), vcpu, activity);
    }
}

/// Number of channels. Indices of channels are taken modulo this.
pub(crate) const CHANNELS: usize = 4;
