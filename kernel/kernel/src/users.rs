//! Assignment of user threads to harts: ready threads by level, and the state of each hart.
//!
//! One queue for all harts, because the rule is about all harts: the most urgent ready threads
//! run. 64 FIFO lists and a bitmap; a thread has a [`QueueSlot`] of its own from its birth to
//! its end, so each operation is O(1) and nothing allocates. The [settings] fix the number of
//! places.
//!
//! [settings]: crate::settings
//!
//! The level of a hart's *switching coroutine* follows: it is the level of the thread that runs
//! there, or of the most urgent ready thread, whichever is more urgent. A hart that makes a thread
//! ready raises it here. The hart itself lowers it when it finds nothing more at its level
//! ([`take`]); so the coroutine may be too urgent for one empty poll, but never too lax. Both
//! happen under the lock of the queue, so a raise cannot be overwritten by an older lowering.

mod lists;
mod queue_slot;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use core::sync::atomic::{AtomicU8, AtomicU64};

use upshift_core::{LEVELS, Level};

use crate::arch::hart_index;
use crate::arch::lock::IrqLock;
use crate::process::{Process, Thread};
use crate::times::IDLE;
use crate::trace::{self, Entered};
use crate::{MAX_HARTS, global, hart, settings};
pub(crate) use queue_slot::{PendingLevel, QueueSlot};

/// Null link: no place.
const NONE: u16 = u16::MAX;
/// Level of a hart without a thread: less urgent than any level.
const NOTHING: u8 = LEVELS as u8;

#[derive(Clone, Copy)]
struct List {
    head: u16,
    tail: u16,
}

/// Contents of a place; a free place is in a list by `next`.
struct Entry {
    thread: Option<Box<Thread>>,
    level: u8,
    next: u16,
    prev: u16,
}

/// Activity of a hart.
#[derive(Clone, Copy)]
struct Doing {
    /// The level of its switching coroutine.
    level: u8,
    /// The level of the thread that runs there, or [`NOTHING`].
    running: u8,
    /// The number of its process; 0: none.
    process: usize,
    /// The place of the thread, if one runs.
    place: u16,
    /// True while the hart waits for an interrupt, or is about to.
    idle: bool,
}

struct Users {
    lists: [List; LEVELS],
    /// All places, made at boot.
    places: Vec<Entry>,
    /// The first free place that was in use before.
    free: u16,
    /// Places from here on were never in use.
    fresh: u16,
    harts: [Doing; MAX_HARTS],
}

/// Bit L: a thread of level L is ready. Written under the lock of `USERS`.
static READY: AtomicU64 = AtomicU64::new(0);

static USERS: IrqLock<Users> = IrqLock::new(Users {
    lists: [List {
        head: NONE,
        tail: NONE,
    }; LEVELS],
    places: Vec::new(),
    free: NONE,
    fresh: 0,
    harts: [Doing {
        level: Level::LEAST_URGENT.get(),
        running: NOTHING,
        process: 0,
        place: NONE,
        idle: false,
    }; MAX_HARTS],
});

/// The level of the thread that runs on each hart, or [`NOTHING`]: `Doing::running`, for
/// those that look without the lock, under which it is written.
static RUNNING: [AtomicU8; MAX_HARTS] = [const { AtomicU8::new(NOTHING) }; MAX_HARTS];

/// Returns the level of the thread that runs on a hart. Costs a load; exact while the hart is in
/// user mode (`hart::in_user`), for the level is written before.
pub(crate) fn running_level(index: usize) -> Option<Level> {
    Level::new(RUNNING[index].load(Acquire)).ok()
}

/// Makes the places, while booting.
pub(crate) fn init() {
    let free = || Entry {
        thread: None,
        level: 0,
        next: NONE,
        prev: NONE,
    };
    let places = core::iter::repeat_with(free).take(settings::threads());
    USERS.lock().places = places.collect();
}

fn push(mut thread: Box<Thread>, front: bool) {
    let mut users = USERS.lock();
    if let Some(level) = thread.process.pending_level.take() {
        thread.raised = thread.raised.min(level);
    }
    // Under the lock: a later loan finds it in the queue.
    thread.settle();
    trace::thread(&thread, Entered::Ready);
    if thread.process.is_ended() {
        drop(users);
        drop(thread);
        return;
    }
    let level = thread.level.get();
    users.link(thread, front);
    let interrupted = users.announce(level);
    drop(users);
    wake_hart(interrupted);
    global::publish();
}

/// Appends a ready thread to the queue of its level.
pub(crate) fn push_back(thread: Box<Thread>) {
    push(thread, false);
}

/// Puts a thread that was interrupted before the end of its quantum in front of its level.
pub(crate) fn push_front(thread: Box<Thread>) {
    push(thread, true);
}

/// Interrupts the hart that runs the least urgent thread of a process, for an event of this level.
/// Returns false if no hart runs one in user mode. The thread may be about to leave its hart for
/// something more urgent than itself: then it enters the queue with the event's level.
pub(crate) fn interrupt(process: &Process, level: Level) -> bool {
    let least = tell_running(process, level);
    wake_hart(least);
    least.is_some()
}

/// Raises a thread like [`interrupt`], for a program that looks for events by itself: no hart is
/// interrupted.
pub(crate) fn is_told(process: &Process, level: Level) -> bool {
    tell_running(process, level).is_some()
}

/// Returns the hart that runs the least urgent thread of a process in user mode. Then the level is
/// pending, until it is [taken](PendingLevel::take).
fn tell_running(process: &Process, level: Level) -> Option<usize> {
    let in_user = hart::in_user();
    if in_user == 0 {
        return None;
    }
    let users = USERS.lock();
    let runs = |index: &usize| {
        users.harts[*index].process == process.number() && in_user >> index & 1 != 0
    };
    let least = (0..MAX_HARTS)
        .filter(runs)
        .max_by_key(|index| users.harts[*index].running)?;
    process.pending_level.set(level.max(process.ceiling));
    Some(least)
}

/// Position of the thread of a process that has a place, unless the thread is on its way.
pub(crate) enum Found {
    /// The thread is in the queue, at this level.
    Ready(u8),
    /// The thread is on a hart, at this level.
    Running(u8),
}

/// Looks for the thread of a process that has this place.
pub(crate) fn find(process: &Process, place: u16) -> Option<Found> {
    let users = USERS.lock();
    let entry = &users.places[usize::from(place)];
    let ready = entry.thread.as_ref();
    if ready.is_some_and(|thread| core::ptr::eq(&*thread.process, process)) {
        return Some(Found::Ready(entry.level));
    }
    let here = |hart: &&Doing| hart.place == place && hart.process == process.number();
    let hart = users.harts.iter().find(here);
    hart.map(|hart| Found::Running(hart.running))
}

/// The number of the process whose thread runs on a hart; 0: none.
pub(crate) fn process_on(index: usize) -> usize {
    USERS.lock().harts[index].process
}

/// Returns whether a hart runs a thread of a process, or a call for it.
pub(crate) fn runs(process: &Process) -> bool {
    let users = USERS.lock();
    let mut harts = users.harts.iter();
    harts.any(|hart| hart.process == process.number())
}

/// Raises a ready thread, in one of these places, to this level, until it has handled the event;
/// for a process none of whose threads runs or is parked. Without a ready thread, the next that
/// becomes ready is raised. O(places).
pub(crate) fn raise(process: &Process, places: impl Iterator<Item = u16>, level: Level) {
    let mut users = USERS.lock();
    let level = level.max(process.ceiling);
    let ready = |place: &u16| {
        let thread = users.places[usize::from(*place)].thread.as_ref();
        thread.is_some_and(|thread| core::ptr::eq(&*thread.process, process))
    };
    let most_urgent = places
        .filter(ready)
        .min_by_key(|place| users.places[usize::from(*place)].level);
    let interrupted = match most_urgent {
        Some(place) if users.places[usize::from(place)].level > level.get() => {
            users.unlink(place).and_then(|mut thread| {
                thread.raised = level;
                thread.settle();
                let level = thread.level.get();
                users.link(thread, false);
                users.announce(level)
            })
        }
        Some(_) => None,
        None => {
            process.pending_level.set(level);
            None
        }
    };
    drop(users);
    wake_hart(interrupted);
}

fn wake_hart(index: Option<usize>) {
    if let Some(index) = index {
        if index == hart_index() && !hart::this().in_interrupt.load(Relaxed) {
            // This hart is in the kernel, and looks before it goes anywhere.
            return;
        }
        hart::takes_from_user(index);
        hart::interrupt(index);
    }
}

/// Returns the levels that have a ready thread. Costs a load.
pub(crate) fn ready() -> u64 {
    READY.load(Acquire)
}

/// Takes a ready thread of a process out of its place.
pub(crate) fn remove(process: &Process, place: u16) -> Option<Box<Thread>> {
    let mut users = USERS.lock();
    let here = users.places[usize::from(place)].thread.as_ref();
    let thread = if here.is_some_and(|thread| core::ptr::eq(&*thread.process, process)) {
        users.unlink(place)
    } else {
        None
    };
    drop(users);
    thread
}

/// Next step of a hart's switching coroutine.
pub(crate) enum Next {
    /// Run this thread, and then call [`stopped`].
    Run(Box<Thread>),
    /// The switching coroutine has become less urgent: give way to the kernel's other coroutines.
    GiveWay,
    /// Wait for an interrupt, with interrupts masked until then.
    Idle,
}

/// Returns the next step of hart `index`, the calling hart. Interrupts are masked.
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
        hart::at(index).times.set(IDLE);
        return Next::Idle;
    }
    let Some(thread) = users.unlink(head) else {
        return Next::GiveWay;
    };
    users.set_running(index, level);
    hart::at(index).times.set(level);
    users.harts[index].process = thread.process.number();
    users.harts[index].place = thread.place.index();
    Next::Run(thread)
}

/// Notes that the thread of hart `index` does not run any more.
pub(crate) fn stopped(index: usize) {
    let mut users = USERS.lock();
    users.set_running(index, NOTHING);
    users.harts[index].process = 0;
    users.harts[index].place = NONE;
}

/// Applies a change of level of the thread that runs on hart `index`.
pub(crate) fn changed_level(index: usize, thread: &mut Thread) {
    let mut users = USERS.lock();
    // Under the lock: a later loan finds it here.
    thread.settle();
    let level = thread.level.get();
    users.set_running(index, level);
    hart::at(index).times.set(level);
    let level = level.min(users.most_urgent());
    users.set_level(index, level);
}

/// Applies a change of level of the thread that has this place, on behalf of `settle`
/// (`process/lending.rs`): moves the thread in the queue, or raises it on its hart to `level`; a
/// thread that may have become less urgent there is interrupted. Otherwise the thread is on its way
/// to the queue, and is settled there.
pub(crate) fn resettle(
    process: &Process,
    place: u16,
    settle: impl FnOnce(&mut Thread) -> bool,
    level: u8,
) {
    let mut users = USERS.lock();
    let ready = users.places[usize::from(place)].thread.as_mut();
    let ready = ready.filter(|thread| core::ptr::eq(&*thread.process, process));
    let interrupted = if let Some(thread) = ready {
        if settle(thread) {
            users.unlink(place).and_then(|thread| {
                let level = thread.level.get();
                users.link(thread, false);
                users.announce(level)
            })
        } else {
            None
        }
    } else {
        let number = process.number();
        let here = |hart: &Doing| hart.place == place && hart.process == number;
        users.harts.iter().position(here).filter(|&index| {
            let less_urgent = users.harts[index].running <= level;
            if !less_urgent {
                users.set_running(index, level);
                let level = level.min(users.harts[index].level);
                users.set_level(index, level);
            }
            less_urgent
        })
    };
    drop(users);
    wake_hart(interrupted);
    global::publish();
}

/// Returns whether a ready thread is more urgent than `level`, or, with `equal`, as urgent.
pub(crate) fn is_overtaken(level: Level, equal: bool) -> bool {
    ready() & (level.more_urgent_bits() | if equal { level.bit() } else { 0 }) != 0
}
