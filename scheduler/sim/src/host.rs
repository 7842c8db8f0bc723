//! The host of a simulation: at each upcall of the unmodified core the vCPU may stand still while
//! others continue.
//!
//! The world is found through a thread-local, so that the host itself and the futures are `Send`
//! without a promise: one OS thread runs one whole simulation at a time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use upshift_core::preempt::Waits;
use upshift_core::{Change, Host, Served};

use crate::world::World;

thread_local! {
    static WORLD: RefCell<Option<Rc<World>>> = const { RefCell::new(None) };
}

/// The right of a world to be the one that this thread simulates; it ends with the drop.
pub(crate) struct Inhabited;

impl Inhabited {
    pub(crate) fn begin(world: &Rc<World>) -> Inhabited {
        WORLD.set(Some(world.clone()));
        Inhabited
    }
}

impl Drop for Inhabited {
    fn drop(&mut self) {
        drop(WORLD.take());
    }
}

/// Returns the world of this thread, if it simulates one now.
pub(crate) fn inhabited() -> Option<Rc<World>> {
    WORLD.with_borrow(Option::clone)
}

/// Returns the world of this thread. For coroutines, which run in no other.
pub(crate) fn world() -> Rc<World> {
    inhabited().expect("coroutines run inside a simulation")
}

/// The clock of the CPUs, which may be set back.
#[derive(Default)]
pub(crate) struct Clock {
    /// Offset since the clock was set back.
    ahead: Cell<u64>,
}

impl Clock {
    /// Returns the reading at a time. A clock that is set back by less shows no time before its
    /// zero.
    const ZERO: u64 = 1 << 41;

    fn now(&self, set_back: Option<(u64, u64)>, time: u64) -> u64 {
        let back = set_back
            .filter(|(at, _)| time >= *at)
            .map_or(0, |(_, by)| by);
        Clock::ZERO + time - back + self.ahead.get()
    }
}

/// The host.
pub(crate) struct SimHost;

/// A point at which another strand may come in between.
fn step() {
    if let Some(world) = inhabited() {
        world.step();
    }
}

// SAFETY: only strands that serve a vCPU run with it as the current one, one at a time:
// `strand.rs`.
unsafe impl Host for SimHost {
    #[inline]
    fn waker_table() -> &'static core::task::RawWakerVTable {
        upshift_core::waker_table!(SimHost)
    }

    fn is_tracing(&self) -> bool {
        true
    }

    fn now(&self) -> u64 {
        let Some(world) = inhabited() else { return 0 };
        world.step();
        world.clock.now(world.machine.set_back, world.now())
    }

    fn now_after(&self, before: u64) -> u64 {
        let Some(world) = inhabited() else {
            return before;
        };
        let now = world.clock.now(world.machine.set_back, world.now());
        // As the runtime does, but without a limit on the distance of readings: these have none.
        let behind = before.saturating_sub(now);
        world.clock.ahead.set(world.clock.ahead.get() + behind);
        now + behind
    }

    fn current(&self) -> Option<Served> {
        inhabited()?.current().map(Served::from)
    }

    fn kick(&self, index: usize) {
        step();
        if let Some(world) = inhabited() {
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

    fn enter() {
        step();
    }

    fn leave() {
        step();
    }

    fn notify_arrival(&self, index: usize) {
        step();
        if let Some(world) = inhabited() {
            world.supervise(index);
        }
    }

    fn notify_local_arrival(&self, waits: Waits) {
        if waits != Waits::Nothing
            && let Some(world) = inhabited()
            && let Some(vcpu) = world.serving()
        {
            world.supervise(vcpu);
        }
    }

    fn changed(&self, change: &Change) {
        if let Some(world) = inhabited() {
            world.changed(change);
        }
        step();
    }
}
