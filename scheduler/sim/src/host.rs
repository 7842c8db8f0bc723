//! Implements the core's host (its operating system) for a simulation. Whenever the unmodified core
//! calls the host, the calling vCPU may stand still while others continue.
//!
//! A thread-local holds the [`World`] (the state of the simulation), so that the host and the
//! futures need not contain it and are `Send`. An OS thread runs one whole simulation at a time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use upshift_core::preempt::WaitingWork;
use upshift_core::{Change, Host, ServedVcpu};

use crate::world::World;

thread_local! {
    static WORLD: RefCell<Option<Rc<World>>> = const { RefCell::new(None) };
}

/// Marks a world as that of the calling thread, until this value is dropped.
pub(crate) struct CurrentWorld;

impl CurrentWorld {
    pub(crate) fn begin(world: &Rc<World>) -> CurrentWorld {
        WORLD.set(Some(world.clone()));
        CurrentWorld
    }
}

impl Drop for CurrentWorld {
    fn drop(&mut self) {
        drop(WORLD.take());
    }
}

/// Returns the world of this thread, if it simulates one now.
pub(crate) fn try_world() -> Option<Rc<World>> {
    WORLD.with_borrow(Option::clone)
}

/// Returns the world of this thread. Called by coroutines, which run only inside a simulation.
pub(crate) fn world() -> Rc<World> {
    try_world().expect("coroutines run inside a simulation")
}

/// The clock of the CPUs, which may be set back.
#[derive(Default)]
pub(crate) struct Clock {
    /// Time that is added to later readings, so that they do not go back after the clock was set
    /// back.
    ahead: Cell<u64>,
}

impl Clock {
    /// Reading at time 0. It is larger than the time by which a clock is set back, so that readings
    /// do not underflow.
    const ZERO: u64 = 1 << 41;

    fn now(&self, set_back: Option<(u64, u64)>, time: u64) -> u64 {
        let back = set_back
            .filter(|(at, _)| time >= *at)
            .map_or(0, |(_, by)| by);
        Clock::ZERO + time - back + self.ahead.get()
    }
}

/// The host; its state is in the thread's [`World`].
pub(crate) struct SimHost;

/// Marks a point at which the interleaving of the case may let other strands run.
fn step() {
    if let Some(world) = try_world() {
        world.step();
    }
}

// SAFETY: `current` returns a vCPU only to a strand that serves it, and one strand runs at a time
// (`strand.rs`).
unsafe impl Host for SimHost {
    #[inline]
    fn waker_table() -> &'static core::task::RawWakerVTable {
        upshift_core::waker_table!(SimHost)
    }

    fn is_tracing(&self) -> bool {
        true
    }

    fn now(&self) -> u64 {
        let Some(world) = try_world() else { return 0 };
        world.step();
        world.clock.now(world.machine.set_back, world.now())
    }

    fn now_after(&self, before: u64) -> u64 {
        let Some(world) = try_world() else {
            return before;
        };
        let now = world.clock.now(world.machine.set_back, world.now());
        // As in the runtime, but without a limit on the difference between two readings.
        let behind = before.saturating_sub(now);
        world.clock.ahead.set(world.clock.ahead.get() + behind);
        now + behind
    }

    fn current(&self) -> Option<ServedVcpu> {
        try_world()?.current().map(ServedVcpu::from)
    }

    fn kick(&self, index: usize) {
        step();
        if let Some(world) = try_world() {
            world.end_wait(index, world.machine.wake);
        }
    }

    fn relax(&self, _: u32) {
        world().stand_still(20);
    }

    fn has_heavy_barrier(&self) -> bool {
        true
    }

    fn heavy_barrier(&self) {
        step();
    }

    fn enter_critical() {
        step();
    }

    fn leave_critical() {
        step();
    }

    fn notify_arrival(&self, index: usize) {
        step();
        if let Some(world) = try_world() {
            world.supervise(index);
        }
    }

    fn notify_local_arrival(&self, waits: WaitingWork) {
        if waits != WaitingWork::Nothing
            && let Some(world) = try_world()
            && let Some(vcpu) = world.serving_vcpu()
        {
            world.supervise(vcpu);
        }
    }

    fn on_step(&self, change: &Change) {
        if let Some(world) = try_world() {
            world.record_step(change);
        }
        step();
    }
}
