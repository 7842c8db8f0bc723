//! Which user thread runs where: ready threads by level, and what each hart is
//! doing about them.
//!
//! One queue for all harts, because the rule is about all harts: the most urgent
//! ready threads run. 64 FIFO lists and a bitmap; a thread has a place of its own
//! (its process's), so everything is O(1) and nothing allocates.
//!
//! The level of a hart's *switching coroutine* follows: it is the level of the
//! thread that runs there, or of the most urgent ready one, whichever is more
//! urgent. It is raised here, by whoever makes a thread ready, and lowered by the
//! hart itself when it finds nothing at its level any more ([`take`]); so it may
//! be too urgent for one empty poll, but never too lax. Both happen under the
//! lock of the queue, so a raise cannot be overwritten by an older lowering.

use alloc::boxed::Box;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};

use upshift_core::{CoroutineId, LEVELS, Level};

use crate::arch::lock::IrqLock;
use crate::process::{MAX_PROCESSES, Process, Thread};
use crate::{MAX_HARTS, executor, global, hart};

/// No place.
const NONE: u8 = u8::MAX;
/// No thread runs: less urgent than any level.
const NOTHING: u8 = LEVELS as u8;

#[derive(Clone, Copy)]
struct List {
    head: u8,
    tail: u8,
}

struct Place {
    thread: Option<Box<Thread>>,
    level: u8,
    next: u8,
    prev: u8,
}

/// What a hart does.
#[derive(Clone, Copy)]
struct Doing {
    /// The level of its switching coroutine.
    level: u8,
    /// The level of the thread that runs there, or [`NOTHING`].
    running: u8,
    /// The number of its process.
    process: usize,
    /// It waits for an interrupt, or is about to.
    idle: bool,
}

struct Users {
    /// Bit L: a thread of level L is ready.
    ready: u64,
    lists: [List; LEVELS],
    places: [Place; MAX_PROCESSES],
    harts: [Doing; MAX_HARTS],
}

static USERS: IrqLock<Users> = IrqLock::new(Users {
    ready: 0,
    lists: [List {
        head: NONE,
        tail: NONE,
    }; LEVELS],
    places: [const {
        Place {
            thread: None,
            level: 0,
            next: NONE,
            prev: NONE,
        }
    }; MAX_PROCESSES],
    harts: [Doing {
        level: Level::LEAST_URGENT.get(),
        running: NOTHING,
        process: 0,
        idle: false,
    }; MAX_HARTS],
});

impl Users {
    fn link(&mut self, thread: Box<Thread>, front: bool) {
        let place = (thread.process.number % MAX_PROCESSES) as u8;
        let level = thread.process.level().get();
        let list = self.lists[usize::from(level)];
        let (prev, next) = if front {
            (NONE, list.head)
        } else {
            (list.tail, NONE)
        };
        self.places[usize::from(place)] = Place {
            thread: Some(thread),
            level,
            next,
            prev,
        };
        self.join(level, prev, place);
        self.join(level, place, next);
        self.ready |= 1 << level;
    }

    /// Makes two places of a list neighbours; `NONE` stands for its ends.
    fn join(&mut self, level: u8, before: u8, after: u8) {
        match before {
            NONE => self.lists[usize::from(level)].head = after,
            place => self.places[usize::from(place)].next = after,
        }
        match after {
            NONE => self.lists[usize::from(level)].tail = before,
            place => self.places[usize::from(place)].prev = before,
        }
    }

    fn unlink(&mut self, place: u8) -> Option<Box<Thread>> {
        let Place {
            thread,
            level,
            next,
            prev,
        } = &mut self.places[usize::from(place)];
        let thread = thread.take()?;
        let (level, next, prev) = (*level, *next, *prev);
        self.join(level, prev, next);
        if self.lists[usize::from(level)].head == NONE {
            self.ready &= !(1 << level);
        }
        Some(thread)
    }

    /// The most urgent level that has a ready thread; 64 without one.
    fn most_urgent(&self) -> u8 {
        self.ready.trailing_zeros() as u8
    }

    /// Sets the level of a hart's switching coroutine. Under the queue's lock;
    /// the scheduler's own locks come after it.
    fn set_level(&mut self, index: usize, level: u8) {
        if core::mem::replace(&mut self.harts[index].level, level) == level {
            return;
        }
        let switching = hart::at(index).switching.load(Relaxed);
        if let Ok(level) = Level::new(level) {
            // It never ends, so it is not dead.
            let _ = executor::domain().reprio(CoroutineId::from_u64(switching), level);
        }
    }

    /// A thread of this level has become ready: raises the harts, and answers
    /// which one is to be interrupted for it, if any: an idle one, else the one
    /// that runs the least urgent thread, if that is less urgent.
    fn announce(&mut self, level: u8) -> Option<usize> {
        let online = hart::online().len();
        for index in 0..online {
            if self.harts[index].level > level {
                self.set_level(index, level);
            }
        }
        if let Some(index) = self.harts[..online].iter().position(|hart| hart.idle) {
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

fn push(thread: Box<Thread>, front: bool) {
    let mut users = USERS.lock();
    if thread.process.is_ended() {
        drop(users);
        drop(thread);
        return;
    }
    let level = thread.process.level().get();
    users.link(thread, front);
    let interrupted = users.announce(level);
    drop(users);
    wake_hart(interrupted);
    global::publish();
}

/// A thread is ready: it becomes the last of its level.
pub(crate) fn push_back(thread: Box<Thread>) {
    push(thread, false);
}

/// A thread was interrupted before its quantum was over: it stays the first of
/// its level.
pub(crate) fn push_front(thread: Box<Thread>) {
    push(thread, true);
}

/// A completion of this level has come for a process that does not wait for it:
/// its thread is interrupted if it runs, and moved to that level if it is ready
/// at a less urgent one. Otherwise it sees the completion when it goes on.
pub(crate) fn notify(process: &Process, level: Level) {
    let mut users = USERS.lock();
    let place = process.number % MAX_PROCESSES;
    // Bit H: hart H is to be interrupted. A hart whose thread has just been parked
    // may still count as running it.
    let mut interrupted = 0;
    if let Some(thread) = &users.places[place].thread {
        let level = level.max(process.ceiling);
        if thread.process.number == process.number && level < process.level() {
            let thread = users.unlink(place as u8);
            if let (Some(thread), Ok(())) = (thread, process.set_level(level)) {
                users.link(thread, false);
                let hart = users.announce(level.get());
                interrupted = hart.map_or(0, |index| 1 << index);
            }
        }
    } else {
        for (index, hart) in users.harts.iter().enumerate() {
            interrupted |= usize::from(hart.process == process.number) << index;
        }
    }
    drop(users);
    for index in (0..MAX_HARTS).filter(|index| interrupted >> index & 1 != 0) {
        wake_hart(Some(index));
    }
}

fn wake_hart(index: Option<usize>) {
    if let Some(index) = index {
        hart::at(index).in_user.store(false, SeqCst);
        hart::interrupt(index);
    }
}

/// The levels that have a ready thread.
pub(crate) fn ready() -> u64 {
    USERS.lock().ready
}

/// Takes the ready thread of a process out, because it has ended.
pub(crate) fn remove(process: usize) {
    let mut users = USERS.lock();
    let place = process % MAX_PROCESSES;
    let here = users.places[place].thread.as_ref();
    let thread = match here.is_some_and(|thread| thread.process.number == process) {
        true => users.unlink(place as u8),
        false => None,
    };
    drop(users);
    drop(thread);
}

/// What a hart's switching coroutine is to do.
pub(crate) enum Next {
    /// Run this thread, and then call [`stopped`].
    Run(Box<Thread>),
    /// It has become less urgent: give way to the kernel's other coroutines.
    GiveWay,
    /// Wait for an interrupt, with interrupts masked until then.
    Idle,
}

/// Asks what hart `index`, the calling one, is to do. Interrupts are masked.
pub(crate) fn take(index: usize) -> Next {
    let mut users = USERS.lock();
    users.harts[index].idle = false;
    let level = users.most_urgent();
    if level > users.harts[index].level {
        let least = level.min(Level::LEAST_URGENT.get());
        if users.harts[index].level != least {
            users.set_level(index, least);
            return Next::GiveWay;
        }
    }
    let head = users
        .lists
        .get(usize::from(level))
        .map_or(NONE, |list| list.head);
    if head == NONE {
        users.harts[index].idle = true;
        return Next::Idle;
    }
    let Some(thread) = users.unlink(head) else {
        return Next::GiveWay;
    };
    users.harts[index].running = level;
    users.harts[index].process = thread.process.number;
    Next::Run(thread)
}

/// The thread of hart `index` does not run any more.
pub(crate) fn stopped(index: usize) {
    let hart = &mut USERS.lock().harts[index];
    hart.running = NOTHING;
    hart.process = 0;
}

/// The thread that runs on hart `index` has another level.
pub(crate) fn changed_level(index: usize, level: Level) {
    let mut users = USERS.lock();
    users.harts[index].running = level.get();
    let level = level.get().min(users.most_urgent());
    users.set_level(index, level);
}

/// Is a ready thread more urgent than `level`, or, with `equal`, as urgent?
pub(crate) fn is_overtaken(level: Level, equal: bool) -> bool {
    let ready = USERS.lock().ready;
    ready & (level.more_urgent_bits() | if equal { level.bit() } else { 0 }) != 0
}
