//! Implements strands, which are the threads of the simulated machine. Each strand has its own
//! stack, and all strands share one OS thread.
//!
//! A poll is one call into the core. A strand can pause in the middle of a poll, or of any step of
//! the core, and keeps its stack while other vCPUs run. Exactly one strand runs at a time. It runs
//! until it pauses, and only the [event loop](crate::world) resumes it, so that a simulation is
//! deterministic.
//!
//! A strand serves one vCPU for its whole life, or no vCPU (a thread from outside, a watcher). One
//! strand of a vCPU is its *owner*; the others are suspended in the middle of a poll, or spare.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use crate::world::World;

/// Size of a stack in virtual memory; untouched pages use no memory.
const STACK_BYTES: usize = 256 * 1024;

thread_local! {
    /// Stacks of strands that have ended, for reuse.
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// A number of nanoseconds.
    For(u64),
    /// A number of nanoseconds of computing, in a poll that may be suspended meanwhile.
    Compute(u64),
    /// Until a call of [`World::schedule`].
    Wait,
}

type Stack = Coroutine<(), Pause, (), DefaultStack>;

pub(crate) struct Strand {
    stack: Cell<Option<Stack>>,
    yielder: Cell<*const Yielder<(), Pause>>,
    pub(crate) index: usize,
    pub(crate) vcpu: Option<usize>,
    /// Current epoch. Events for an earlier epoch are void.
    pub(crate) epoch: Cell<u32>,
    /// End of the strand's computing; for a suspended strand, the time that is left.
    pub(crate) until: Cell<Option<u64>>,
    pub(crate) spawning: Cell<Option<usize>>,
}

impl Strand {
    /// Creates a strand that runs `body` when it is first resumed. `index` is its index in the
    /// world.
    pub(crate) fn new(
        vcpu: Option<usize>,
        index: usize,
        body: impl FnOnce(&Rc<World>) + 'static,
        world: &Rc<World>,
    ) -> Rc<Strand> {
        let stack = STACKS.with_borrow_mut(Vec::pop).unwrap_or_else(|| {
            DefaultStack::new(STACK_BYTES).expect("address space for one more stack")
        });
        let world = world.clone();
        let stack = Coroutine::with_stack(stack, move |yielder: &Yielder<(), Pause>, ()| {
            world.strand(index).yielder.set(yielder);
            body(&world);
        });
        Rc::new(Strand {
            stack: Cell::new(Some(stack)),
            yielder: Cell::new(std::ptr::null()),
            index,
            vcpu,
            epoch: Cell::new(0),
            until: Cell::new(None),
            spawning: Cell::new(None),
        })
    }

    /// Runs the strand until it pauses. Returns `None` when the strand has ended.
    pub(crate) fn resume(&self) -> Option<Pause> {
        let mut stack = self.stack.take()?;
        match stack.resume(()) {
            CoroutineResult::Yield(pause) => {
                self.stack.set(Some(stack));
                Some(pause)
            }
            CoroutineResult::Return(()) => {
                STACKS.with_borrow_mut(|stacks| stacks.push(stack.into_stack()));
                None
            }
        }
    }

    /// Pauses the strand. Called on the strand itself.
    pub(crate) fn pause(&self, pause: Pause) {
        // SAFETY: the pointer is valid, since the strand set it when it began, and the yielder
        // lives as long as the strand's stack, on which the caller runs.
        unsafe { &*self.yielder.get() }.suspend(pause);
    }
}
