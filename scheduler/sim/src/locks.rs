//! Implements a mutex for simulated coroutines. Its calls to the core, and their order, are those
//! of the Linux runtime (`sync/mutex.rs`), so that the laws check them.
//!
//! A coroutine counts a mutex among its locks from before it holds the mutex until after the
//! release. A waiter lends its level to the holder while it holds the lock of the queue. A holder
//! with waiters takes the same lock before it reports the release. The mutex is handed over to the
//! most urgent waiter.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::host::{try_world, world};
use crate::laws::level;
use crate::lock::{LOCKS, LockWaiter};
use crate::program::AssertSend;
use crate::strand::Pause;
use crate::world::World;

impl World {
    /// Runs `f` while the lock of the queue of mutex `m` is held. The lock stays held when other
    /// strands run in the middle of `f`.
    fn with_queue<R>(&self, m: usize, f: impl FnOnce() -> R) -> R {
        while self.locks.borrow()[m].busy {
            self.pause(Pause::For(20));
        }
        self.locks.borrow_mut()[m].busy = true;
        let result = f();
        self.locks.borrow_mut()[m].busy = false;
        result
    }

    /// Takes mutex `m` for the running coroutine if the mutex is free.
    fn try_lock(&self, k: usize, m: usize) -> bool {
        let Some(id) = self.domain.record_lock() else {
            return false;
        };
        let is_free = {
            let holder = &mut self.locks.borrow_mut()[m].holder;
            let is_free = holder.is_none();
            holder.get_or_insert((k, id));
            is_free
        };
        if !is_free {
            self.domain.record_unlock(id);
        }
        is_free
    }

    /// Hands mutex `m` over to the first of its most urgent waiters, or frees it if nobody waits.
    fn unlock(&self, m: usize) {
        let next = self.with_queue(m, || {
            let next = {
                let waiting = &mut self.locks.borrow_mut()[m].waiting;
                let levels = waiting.iter().map(|waiter| waiter.level);
                let first = levels.enumerate().min_by_key(|entry| entry.1);
                first.and_then(|(place, _)| waiting.remove(place))
            };
            if let Some(next) = &next {
                let _ = self.domain.record_handover(next.id);
                next.granted.set(true);
                let next_level = self.locks.borrow()[m]
                    .waiting
                    .iter()
                    .map(|waiter| waiter.level)
                    .min();
                if let Some(next_level) = next_level {
                    self.domain.lend(next.id, level(next_level));
                }
            }
            let holder = next.as_ref().map(|next| (next.k, next.id));
            let mut locks = self.locks.borrow_mut();
            (
                std::mem::replace(&mut locks[m].holder, holder),
                next.map(|next| next.waker),
            )
        });
        let (before, waker) = next;
        if let Some(waker) = waker {
            waker.wake();
            self.settle();
        }
        if let Some((k, id)) = before {
            self.domain.record_unlock(id);
            self.laws.borrow_mut().requeue(k);
        }
    }
}

/// A guard of mutex `m`, which is released when the guard is dropped.
pub(crate) struct MutexGuard {
    m: usize,
}

impl MutexGuard {
    pub(crate) fn guards(&self, m: usize) -> bool {
        self.m == m % LOCKS
    }
}

impl Drop for MutexGuard {
    fn drop(&mut self) {
        if let Some(world) = try_world() {
            world.unlock(self.m);
        }
    }
}

pub(crate) struct LockFuture {
    k: usize,
    m: usize,
    /// Flag of this waiter's entry in the queue, set when the mutex has been handed over to the
    /// waiter.
    granted: Option<AssertSend<Rc<Cell<bool>>>>,
}

impl LockFuture {
    pub(crate) fn new(k: usize, m: usize) -> LockFuture {
        LockFuture {
            k,
            m: m % LOCKS,
            granted: None,
        }
    }

    fn is_granted(&self) -> bool {
        self.granted.as_ref().is_some_and(|granted| granted.0.get())
    }

    /// Queues for the mutex and lends to its holder, unless the mutex is free. Returns false if it
    /// is free.
    fn wait(&mut self, world: &World, cx: &Context<'_>) -> bool {
        let (k, m) = (self.k, self.m);
        world.with_queue(m, || {
            let current = (world.domain.current_id(), world.domain.level_to_lend());
            let (Some(id), Some(level)) = current else {
                return true;
            };
            let level = level.get();
            let holder = {
                let lock = &mut world.locks.borrow_mut()[m];
                let Some((holder_k, holder)) = lock.holder else {
                    return false;
                };
                match lock.waiting.iter_mut().find(|waiter| waiter.k == k) {
                    Some(waiting) => waiting.level = level,
                    None if self.is_granted() => return true,
                    None => {
                        let granted = Rc::new(Cell::new(false));
                        self.granted = Some(AssertSend(granted.clone()));
                        lock.waiting.push_back(LockWaiter {
                            k,
                            id,
                            level,
                            granted,
                            waker: cx.waker().clone(),
                        });
                    }
                }
                (holder_k, holder)
            };
            world.domain.lend_to_holder(holder.1);
            world.laws.borrow_mut().requeue(holder.0);
            true
        })
    }
}

impl Future for LockFuture {
    type Output = MutexGuard;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<MutexGuard> {
        let world = world();
        loop {
            if self.is_granted() || (self.granted.is_none() && world.try_lock(self.k, self.m)) {
                self.granted = None;
                return Poll::Ready(MutexGuard { m: self.m });
            }
            if self.wait(&world, cx) && !self.is_granted() {
                return Poll::Pending;
            }
        }
    }
}

impl Drop for LockFuture {
    fn drop(&mut self) {
        let Some(granted) = self.granted.take() else {
            return;
        };
        let Some(world) = try_world() else { return };
        let (k, m) = (self.k, self.m);
        world.with_queue(m, || {
            let waiting = &mut world.locks.borrow_mut()[m].waiting;
            waiting.retain(|waiter| waiter.k != k);
        });
        if granted.0.get() {
            world.unlock(m);
        }
    }
}
