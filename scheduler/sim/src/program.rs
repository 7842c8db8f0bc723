//! Implements a simulated coroutine, which is a future that carries out the steps of a
//! [`Program`](crate::Program).

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use upshift_core::Priority;

use crate::host::{try_world, world};
use crate::laws::level;
use crate::locks::{LockFuture, MutexGuard};
use crate::strand::Pause;
use crate::workload::Op;
use crate::world::{CHANNELS, Event, World};

/// Carries out the program of coroutine `k`.
async fn carry_out(k: usize) {
    let op = |n: usize| world().workload.programs[k].ops.get(n).copied();
    let mut n = 0;
    let mut guards: Vec<MutexGuard> = Vec::new();
    while let Some(op) = op(n) {
        n += 1;
        match op {
            Op::Compute(time) => world().pause(Pause::Compute(time)),
            Op::Spawn(other) => world().spawn_child(other),
            Op::Signal(channel) => world().signal(channel),
            Op::Wait(channel) => EventWait::new(k, Source::Channel(channel)).await,
            Op::Later(channel, delay) => {
                let world = world();
                world.add_event(world.now() + delay, Event::Signal(channel));
            }
            Op::Sleep(time) => EventWait::new(k, Source::Timer(time)).await,
            Op::Receive(delay) => EventWait::new(k, Source::Ring(delay)).await,
            Op::Yield => yield_now().await,
            Op::GiveWay => give_way(k).await,
            Op::Join(other) => {
                let handle = world().take_handle(other);
                if let Some(handle) = handle {
                    let _awaits = AwaitRecord::begin(k, other);
                    let _ = handle.await;
                }
            }
            Op::JoinFor(other, time) => {
                let handle = world().take_handle(other);
                if let Some(mut handle) = handle {
                    let awaits = AwaitRecord::begin(k, other);
                    let mut limit = EventWait::new(k, Source::Timer(time));
                    poll_fn(|cx| match Pin::new(&mut handle).poll(cx) {
                        Poll::Ready(_) => Poll::Ready(()),
                        Poll::Pending => Pin::new(&mut limit).poll(cx),
                    })
                    .await;
                    drop(awaits);
                    if !handle.is_finished() {
                        world().keep_handle(other, handle);
                    }
                }
            }
            Op::Reprio(other, level) => world().reprio(other, level),
            Op::Lock(m) if guards.iter().any(|guard| guard.guards(m)) => {}
            Op::Lock(m) => guards.push(LockFuture::new(k, m).await),
            Op::Unlock(m) => guards.retain(|guard| !guard.guards(m)),
            Op::Cancel(other) => world().cancel(other),
            Op::Block(other) => world().block(other),
        }
    }
}

/// Yields: the coroutine goes to the tail of the queue of its level.
fn yield_now() -> impl Future<Output = ()> + Send {
    let mut has_yielded = false;
    poll_fn(move |cx| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
}

/// Yields, but the coroutine keeps its place: it goes to the front of the queue of its level.
fn give_way(k: usize) -> impl Future<Output = ()> + Send {
    let mut has_yielded = false;
    poll_fn(move |cx| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        let world = world();
        let vcpu = world.serving_vcpu().expect("polls happen on vCPUs");
        world.cpus[vcpu].executor.keep_place();
        world.laws.borrow_mut().record_kept_place(vcpu, k);
        Poll::Pending
    })
}

#[derive(Clone, Copy)]
enum Source {
    Channel(usize),
    Timer(u64),
    Ring(u64),
}

struct EventWait {
    k: usize,
    source: Source,
    /// Flag that is set at the end of the wait; `None` until the first poll, which registers it.
    done: Option<AssertSend<Rc<Cell<bool>>>>,
    deadline: u64,
}

/// Records, until it is dropped, that coroutine `k` awaits another one.
struct AwaitRecord(usize);

impl AwaitRecord {
    fn begin(k: usize, other: usize) -> AwaitRecord {
        let world = world();
        let other = other % world.workload.programs.len();
        world.laws.borrow_mut().record_await(k, Some(other));
        AwaitRecord(k)
    }
}

impl Drop for AwaitRecord {
    fn drop(&mut self) {
        if let Some(world) = try_world() {
            world.laws.borrow_mut().record_await(self.0, None);
        }
    }
}

/// A wrapper that makes a value `Send`. The value never leaves the thread of its simulation.
pub(crate) struct AssertSend<T>(pub(crate) T);

// SAFETY: no value is used by another thread, since a simulation, and every future in it, stays on
// the OS thread that began the simulation.
unsafe impl<T> Send for AssertSend<T> {}

impl EventWait {
    fn new(k: usize, source: Source) -> EventWait {
        EventWait {
            k,
            source,
            done: None,
            deadline: 0,
        }
    }

    fn register(&mut self, world: &World, cx: &Context<'_>) {
        let done = Rc::new(Cell::new(false));
        self.done = Some(AssertSend(done.clone()));
        let waker = cx.waker().clone();
        let vcpu = world.serving_vcpu().expect("polls happen on vCPUs");
        match self.source {
            Source::Channel(channel) => {
                let channel = &mut world.channels.borrow_mut()[channel % CHANNELS];
                if channel.tokens != 0 {
                    channel.tokens -= 1;
                    return done.set(true);
                }
                channel.waiting.push_back((done, waker));
            }
            Source::Timer(time) => {
                self.deadline = world.now() + time;
                let mut timers = world.cpus[vcpu].timers.borrow_mut();
                let place = timers.len() as u64;
                let mut key = (self.deadline, place);
                while timers.contains_key(&key) {
                    key.1 += 1;
                }
                timers.insert(key, (done, waker));
                drop(timers);
                world.supervise(vcpu);
            }
            Source::Ring(delay) => {
                let mut operations = world.operations.borrow_mut();
                let operation = operations.len();
                operations.push((done, waker));
                self.deadline = world.now() + delay;
                world.add_event(self.deadline, Event::Arrival { vcpu, operation });
            }
        }
    }
}

impl Future for EventWait {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let world = world();
        if self.done.is_none() {
            self.register(&world, cx);
        }
        // The vCPU of a timer sets the flag between two polls, so the flag is checked instead of
        // the clock.
        if self.done.as_ref().is_some_and(|done| done.0.get()) {
            return Poll::Ready(());
        }
        if !matches!(self.source, Source::Channel(_)) {
            world
                .laws
                .borrow_mut()
                .record_deadline(self.k, self.deadline);
        }
        Poll::Pending
    }
}

impl World {
    pub(crate) fn spawn(&self, k: usize) {
        let program = &self.workload.programs[k];
        let home = self.serving_vcpu().filter(|_| program.pinned);
        if self.is_draining() || !self.laws.borrow_mut().record_spawn(k, home) {
            return;
        }
        let level = Priority::At(level(program.level));
        self.set_spawning(Some(k));
        let spawned = match self.serving_vcpu() {
            // SAFETY: the future and its output, `()`, are `Send`.
            Some(vcpu) if program.pinned => unsafe {
                self.cpus[vcpu].executor.spawn_pinned(carry_out(k), level)
            },
            _ => self.domain.spawn(carry_out(k), level),
        };
        self.set_spawning(None);
        self.settle();
        if let Ok(handle) = spawned {
            self.handles.borrow_mut()[k] = Some(handle);
        }
    }

    fn spawn_child(&self, k: usize) {
        self.spawn(k % self.workload.programs.len());
    }

    /// Puts a token into a channel, or ends the wait of the first coroutine that waits there.
    pub(crate) fn signal(&self, channel: usize) {
        let first = {
            let channel = &mut self.channels.borrow_mut()[channel % CHANNELS];
            let first = channel.waiting.pop_front();
            channel.tokens += u64::from(first.is_none());
            first
        };
        if let Some((done, waker)) = first {
            done.set(true);
            waker.wake();
            self.settle();
        }
    }

    fn take_handle(&self, k: usize) -> Option<upshift_core::JoinHandle<(), crate::host::SimHost>> {
        let mut handles = self.handles.borrow_mut();
        let k = k % handles.len();
        handles[k].take()
    }

    fn keep_handle(&self, k: usize, handle: upshift_core::JoinHandle<(), crate::host::SimHost>) {
        let mut handles = self.handles.borrow_mut();
        let k = k % handles.len();
        handles[k] = Some(handle);
    }

    fn reprio(&self, k: usize, new_level: u8) {
        let k = k % self.workload.programs.len();
        let id = self.laws.borrow().id(k);
        if let Some(id) = id {
            self.laws
                .borrow_mut()
                .record_reprio(k, level(new_level).get());
            let _ = self.domain.reprio(id, level(new_level));
            self.settle();
        }
    }

    fn cancel(&self, k: usize) {
        let k = k % self.workload.programs.len();
        let id = self.laws.borrow().id(k);
        if let Some(id) = id {
            let _ = self.domain.cancel(id);
            self.settle();
        }
    }

    /// Pauses in the middle of a poll until coroutine `k` has exited.
    fn block(&self, k: usize) {
        let k = k % self.workload.programs.len();
        while !self.is_draining() && !self.laws.borrow().has_exited(k) {
            let own_strand = self.serving_vcpu().map(|vcpu| self.cpus[vcpu].owner.get());
            self.blocked.borrow_mut().extend(own_strand);
            self.pause(Pause::Wait);
        }
    }
}
