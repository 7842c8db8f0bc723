//! Lists of ready threads, and recorded states of harts. The lock of the queue guards both.

use alloc::boxed::Box;
use core::sync::atomic::Ordering::{Relaxed, Release};

use upshift_core::{CoroutineId, Level};

use super::{Entry, NO_LEVEL, NONE, READY, RUNNING, RunQueue, ready_levels};
use crate::process::Thread;
use crate::{chaos, executor, hart};

impl RunQueue {
    pub(super) fn link(&mut self, thread: Box<Thread>, to_front: bool) {
        let slot = thread.queue_slot.index();
        let level = thread.level.get();
        let list = self.lists[usize::from(level)];
        let (prev, next) = if to_front {
            (NONE, list.head)
        } else {
            (list.tail, NONE)
        };
        self.slots[usize::from(slot)] = Entry {
            thread: Some(thread),
            level,
            next,
            prev,
        };
        self.link_neighbours(level, prev, slot);
        self.link_neighbours(level, slot, next);
        READY.store(ready_levels() | 1 << level, Release);
    }

    /// Links two slots of a list as neighbours; `NONE` stands for its ends.
    pub(super) fn link_neighbours(&mut self, level: u8, before: u16, after: u16) {
        match before {
            NONE => self.lists[usize::from(level)].head = after,
            slot => self.slots[usize::from(slot)].next = after,
        }
        match after {
            NONE => self.lists[usize::from(level)].tail = before,
            slot => self.slots[usize::from(slot)].prev = before,
        }
    }

    pub(super) fn unlink(&mut self, slot: u16) -> Option<Box<Thread>> {
        let Entry {
            thread,
            level,
            next,
            prev,
        } = &mut self.slots[usize::from(slot)];
        let thread = thread.take()?;
        let (level, next, prev) = (*level, *next, *prev);
        self.link_neighbours(level, prev, next);
        if self.lists[usize::from(level)].head == NONE {
            READY.store(ready_levels() & !(1 << level), Release);
        }
        Some(thread)
    }

    /// Returns the most urgent level that has a ready thread, or 64 if no thread is ready.
    pub(super) fn most_urgent(&self) -> u8 {
        ready_levels().trailing_zeros() as u8
    }

    /// Records the level of the thread that runs on a hart, or [`NO_LEVEL`].
    pub(super) fn set_running(&mut self, index: usize, level: u8) {
        self.harts[index].running = level;
        RUNNING[index].store(level, Release);
    }

    /// Sets the level of a hart's switching coroutine. Called under the lock of the queue, which
    /// precedes the locks of the scheduler.
    pub(super) fn set_level(&mut self, index: usize, level: u8) {
        if core::mem::replace(&mut self.harts[index].level, level) == level {
            return;
        }
        let switching = hart::at(index).switching.load(Relaxed);
        if let Ok(level) = Level::new(level) {
            // The call cannot fail, because the switching coroutine never ends.
            let _ = executor::domain().reprio(CoroutineId::from_u64(switching), level);
        }
    }

    /// Announces that a thread of level `level` has become ready: raises the switching coroutines
    /// of all harts to this level, and returns the hart to interrupt, if any. The caller interrupts
    /// an idle hart, or else the hart that runs the least urgent thread, if that thread is less
    /// urgent than `level`.
    pub(super) fn announce(&mut self, level: u8) -> Option<usize> {
        let online = hart::online().len();
        for index in 0..online {
            if self.harts[index].level > level {
                self.set_level(index, level);
            }
        }
        // The search begins at the first hart, or under chaos (`chaos.rs`) at a random hart.
        let first = chaos::below(online);
        let mut idle = (0..online).map(|n| (n + first) % online);
        if let Some(index) = idle.find(|index| self.harts[*index].is_idle) {
            self.harts[index].is_idle = false;
            return Some(index);
        }
        let running_level = |index: &usize| match self.harts[*index].running {
            NO_LEVEL => 0,
            running => running,
        };
        (0..online)
            .max_by_key(running_level)
            .filter(|index| running_level(index) > level)
    }
}
