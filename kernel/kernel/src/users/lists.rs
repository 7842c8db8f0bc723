//! Lists of ready threads, and the known state of each hart: under the lock of the queue.

use alloc::boxed::Box;
use core::sync::atomic::Ordering::{Relaxed, Release};

use upshift_core::{CoroutineId, Level};

use super::{Entry, NONE, NOTHING, READY, RUNNING, Users, ready};
use crate::process::Thread;
use crate::{chaos, executor, hart};

impl Users {
    pub(super) fn link(&mut self, thread: Box<Thread>, front: bool) {
        let place = thread.place.index();
        let level = thread.level.get();
        let list = self.lists[usize::from(level)];
        let (prev, next) = if front {
            (NONE, list.head)
        } else {
            (list.tail, NONE)
        };
        self.places[usize::from(place)] = Entry {
            thread: Some(thread),
            level,
            next,
            prev,
        };
        self.join(level, prev, place);
        self.join(level, place, next);
        READY.store(ready() | 1 << level, Release);
    }

    /// Makes two places of a list neighbours; `NONE` stands for its ends.
    pub(super) fn join(&mut self, level: u8, before: u16, after: u16) {
        match before {
            NONE => self.lists[usize::from(level)].head = after,
            place => self.places[usize::from(place)].next = after,
        }
        match after {
            NONE => self.lists[usize::from(level)].tail = before,
            place => self.places[usize::from(place)].prev = before,
        }
    }

    pub(super) fn unlink(&mut self, place: u16) -> Option<Box<Thread>> {
        let Entry {
            thread,
            level,
            next,
            prev,
        } = &mut self.places[usize::from(place)];
        let thread = thread.take()?;
        let (level, next, prev) = (*level, *next, *prev);
        self.join(level, prev, next);
        if self.lists[usize::from(level)].head == NONE {
            READY.store(ready() & !(1 << level), Release);
        }
        Some(thread)
    }

    /// The most urgent level that has a ready thread; 64 without one.
    pub(super) fn most_urgent(&self) -> u8 {
        ready().trailing_zeros() as u8
    }

    /// Notes that a thread of this level runs on a hart, or [`NOTHING`].
    pub(super) fn set_running(&mut self, index: usize, level: u8) {
        self.harts[index].running = level;
        RUNNING[index].store(level, Release);
    }

    /// Sets the level of a hart's switching coroutine. Under the queue's lock;
    /// the scheduler's own locks come after it.
    pub(super) fn set_level(&mut self, index: usize, level: u8) {
        if core::mem::replace(&mut self.harts[index].level, level) == level {
            return;
        }
        let switching = hart::at(index).switching.load(Relaxed);
        if let Ok(level) = Level::new(level) {
            // The switching coroutine never ends, so it is not dead.
            let _ = executor::domain().reprio(CoroutineId::from_u64(switching), level);
        }
    }

    /// Announces that a thread of this level has become ready: raises the harts, and returns the
    /// one to be interrupted for it, if any: an idle one, else the one that runs the least urgent
    /// thread, if that is less urgent.
    pub(super) fn announce(&mut self, level: u8) -> Option<usize> {
        let online = hart::online().len();
        for index in 0..online {
            if self.harts[index].level > level {
                self.set_level(index, level);
            }
        }
        // The nearest one, or whichever chaos wants.
        let first = chaos::below(online);
        let mut idle = (0..online).map(|n| (n + first) % online);
        if let Some(index) = idle.find(|index| self.harts[*index].idle) {
            self.harts[index].idle = false;
            return Some(index);
        }
        let runs = |index: &usize| match self.harts[*index].running {
            NOTHING => 0,
            running => running,
        };
        (0..online)
            .max_by_key(runs)
            .filter(|index| runs(index) > level)
    }
}
