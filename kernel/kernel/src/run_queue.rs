//! The run queue of user threads: ready threads by level, and the state of each hart.
//!
//! There is one queue for all harts, because the rule that the most urgent ready threads run holds
//! across harts. The queue consists of 64 FIFO lists and a bitmap; a thread has its own
//! [`QueueSlot`] from its creation to its end, so each operation is O(1) and allocates nothing. The
//! [settings] determine the number of slots.
//!
//! [settings]: crate::settings
//!
//! The level of a hart's *switching coroutine* follows the threads: it is the level of the thread
//! that runs there, or of the most urgent ready thread, whichever is more urgent. A hart that makes
//! a thread ready raises the level here. The hart of the coroutine lowers the level when it finds
//! no more work at that level ([`take`]); so the coroutine may be too urgent for one poll that
//! finds no thread, but is never less urgent than needed. Raising and lowering happen under the
//! lock of the queue, so an older lowering cannot overwrite a raise.

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
use crate::trace::{self, TraceState};
use crate::{MAX_HARTS, global, hart, settings};
pub(crate) use queue_slot::{PendingLevel, QueueSlot};

/// Null link.
const NONE: u16 = u16::MAX;
/// Level of a hart without a thread: less urgent than any level.
const NO_LEVEL: u8 = LEVELS as u8;

#[derive(Clone, Copy)]
struct List {
    head: u16,
    tail: u16,
}

/// An entry of the run queue. Free entries are linked by `next`.
struct Entry {
    thread: Option<Box<Thread>>,
    level: u8,
    next: u16,
    prev: u16,
}

#[derive(Clone, Copy)]
struct HartState {
    /// Level of the hart's switching coroutine.
    level: u8,
    /// Level of the thread that runs on the hart, or [`NO_LEVEL`].
    running: u8,
    /// Number of the thread's process, or 0 if no thread runs.
    process: usize,
    /// Slot of the thread, or [`NONE`].
    slot: u16,
    /// True while the hart waits for an interrupt, or is about to wait.
    is_idle: bool,
}

struct RunQueue {
    lists: [List; LEVELS],
    /// All slots, allocated while booting.
    slots: Vec<Entry>,
    /// First free slot that was used before.
    first_free: u16,
    /// First slot that was never used.
    first_unused: u16,
    harts: [HartState; MAX_HARTS],
}

/// Bit L is set if a thread of level L is ready. Written under the lock of `RUN_QUEUE`.
static READY: AtomicU64 = AtomicU64::new(0);

static RUN_QUEUE: IrqLock<RunQueue> = IrqLock::new(RunQueue {
    lists: [List {
        head: NONE,
        tail: NONE,
    }; LEVELS],
    slots: Vec::new(),
    first_free: NONE,
    first_unused: 0,
    harts: [HartState {
        level: Level::LEAST_URGENT.get(),
        running: NO_LEVEL,
        process: 0,
        slot: NONE,
        is_idle: false,
    }; MAX_HARTS],
});

/// Level of the thread that runs on each hart, or [`NO_LEVEL`]: a copy of `HartState::running` for
/// readers without the lock. Written under the lock.
static RUNNING: [AtomicU8; MAX_HARTS] = [const { AtomicU8::new(NO_LEVEL) }; MAX_HARTS];

/// Returns the level of the thread that runs on a hart. The level is exact while the hart is in
/// user mode (`hart::in_user`), because it is written before the hart enters user mode. Costs a
/// load.
pub(crate) fn running_level(index: usize) -> Option<Level> {
    Level::new(RUNNING[index].load(Acquire)).ok()
}

pub(crate) fn init() {
    let free = || Entry {
        thread: None,
        level: 0,
        next: NONE,
        prev: NONE,
    };
    let slots = core::iter::repeat_with(free).take(settings::threads());
    RUN_QUEUE.lock().slots = slots.collect();
}

fn push(mut thread: Box<Thread>, to_front: bool) {
    let mut queue = RUN_QUEUE.lock();
    if let Some(level) = thread.process.pending_level.take() {
        thread.raised = thread.raised.min(level);
    }
    // The lock is held until the thread is in the queue, so a later loan finds the thread there.
    thread.update_level();
    trace::thread(&thread, TraceState::Ready);
    if thread.process.is_ended() {
        drop(queue);
        drop(thread);
        return;
    }
    let level = thread.level.get();
    queue.link(thread, to_front);
    let interrupted = queue.announce(level);
    drop(queue);
    wake_hart(interrupted);
    global::publish();
}

pub(crate) fn push_back(thread: Box<Thread>) {
    push(thread, false);
}

/// Puts a thread that was interrupted before the end of its quantum at the head of its level.
pub(crate) fn push_front(thread: Box<Thread>) {
    push(thread, true);
}

/// Interrupts the hart that runs the least urgent thread of a process, for an event of level
/// `level`. Returns false if no hart runs such a thread in user mode. If the thread is about to
/// leave its hart for a more urgent thread, it enters the queue with the event's level.
pub(crate) fn interrupt(process: &Process, level: Level) -> bool {
    let hart = raise_running_hart(process, level);
    wake_hart(hart);
    hart.is_some()
}

/// Raises a thread like [`interrupt`], but interrupts no hart, because the program polls for events
/// by itself.
pub(crate) fn raise_running(process: &Process, level: Level) -> bool {
    raise_running_hart(process, level).is_some()
}

/// Returns the hart that runs the least urgent thread of a process in user mode. If there is one,
/// the level is pending until it is [taken](PendingLevel::take).
fn raise_running_hart(process: &Process, level: Level) -> Option<usize> {
    let in_user = hart::in_user();
    if in_user == 0 {
        return None;
    }
    let queue = RUN_QUEUE.lock();
    let runs = |index: &usize| {
        queue.harts[*index].process == process.number() && in_user >> index & 1 != 0
    };
    let hart = (0..MAX_HARTS)
        .filter(runs)
        .max_by_key(|index| queue.harts[*index].running)?;
    process.pending_level.set(level.max(process.ceiling));
    Some(hart)
}

/// Position of the thread that has a slot, unless it is between a hart and the queue.
pub(crate) enum Position {
    /// The thread is in the queue, at this level.
    Ready(u8),
    /// The thread is on a hart, at this level.
    Running(u8),
}

/// Returns the position of the thread of a process that has this slot.
pub(crate) fn position(process: &Process, slot: u16) -> Option<Position> {
    let queue = RUN_QUEUE.lock();
    let entry = &queue.slots[usize::from(slot)];
    let ready = entry.thread.as_ref();
    if ready.is_some_and(|thread| core::ptr::eq(&*thread.process, process)) {
        return Some(Position::Ready(entry.level));
    }
    let has_slot = |hart: &&HartState| hart.slot == slot && hart.process == process.number();
    let hart = queue.harts.iter().find(has_slot);
    hart.map(|hart| Position::Running(hart.running))
}

/// Returns the number of the process whose thread runs on a hart, or 0 if none runs.
pub(crate) fn process_on(index: usize) -> usize {
    RUN_QUEUE.lock().harts[index].process
}

/// Returns whether a hart runs a thread of a process, in user mode or in a call.
pub(crate) fn runs(process: &Process) -> bool {
    let queue = RUN_QUEUE.lock();
    let mut harts = queue.harts.iter();
    harts.any(|hart| hart.process == process.number())
}

/// Raises the most urgent ready thread in these slots to `level` until the thread has handled the
/// event. If no thread is ready, the next thread that becomes ready is raised. The process has no
/// running or parked thread. O(slots).
pub(crate) fn raise(process: &Process, slots: impl Iterator<Item = u16>, level: Level) {
    let mut queue = RUN_QUEUE.lock();
    let level = level.max(process.ceiling);
    let ready = |slot: &u16| {
        let thread = queue.slots[usize::from(*slot)].thread.as_ref();
        thread.is_some_and(|thread| core::ptr::eq(&*thread.process, process))
    };
    let most_urgent = slots
        .filter(ready)
        .min_by_key(|slot| queue.slots[usize::from(*slot)].level);
    let interrupted = match most_urgent {
        Some(slot) if queue.slots[usize::from(slot)].level > level.get() => {
            queue.unlink(slot).and_then(|mut thread| {
                thread.raised = level;
                thread.update_level();
                let level = thread.level.get();
                queue.link(thread, false);
                queue.announce(level)
            })
        }
        Some(_) => None,
        None => {
            process.pending_level.set(level);
            None
        }
    };
    drop(queue);
    wake_hart(interrupted);
}

fn wake_hart(index: Option<usize>) {
    if let Some(index) = index {
        if index == hart_index() && !hart::this().in_interrupt.load(Relaxed) {
            // This hart is in the kernel, and checks the queue before it returns to user mode.
            return;
        }
        hart::clear_in_user(index);
        hart::interrupt(index);
    }
}

/// Returns the levels with ready threads. Costs a load.
pub(crate) fn ready_levels() -> u64 {
    READY.load(Acquire)
}

pub(crate) fn remove(process: &Process, slot: u16) -> Option<Box<Thread>> {
    let mut queue = RUN_QUEUE.lock();
    let ready = queue.slots[usize::from(slot)].thread.as_ref();
    let thread = if ready.is_some_and(|thread| core::ptr::eq(&*thread.process, process)) {
        queue.unlink(slot)
    } else {
        None
    };
    drop(queue);
    thread
}

pub(crate) enum Next {
    /// Run this thread, and then call [`clear_running`].
    Run(Box<Thread>),
    /// The switching coroutine has become less urgent, so yield to other kernel coroutines.
    Yield,
    /// Wait for an interrupt, with interrupts masked until then.
    Idle,
}

/// Returns the next step of hart `index`, the calling hart. Interrupts are masked.
pub(crate) fn take(index: usize) -> Next {
    let mut queue = RUN_QUEUE.lock();
    queue.harts[index].is_idle = false;
    let level = queue.most_urgent();
    if level > queue.harts[index].level {
        let new_level = level.min(Level::LEAST_URGENT.get());
        if queue.harts[index].level != new_level {
            queue.set_level(index, new_level);
            return Next::Yield;
        }
    }
    let head = queue
        .lists
        .get(usize::from(level))
        .map_or(NONE, |list| list.head);
    if head == NONE {
        queue.harts[index].is_idle = true;
        hart::at(index).times.set(IDLE);
        return Next::Idle;
    }
    let Some(thread) = queue.unlink(head) else {
        return Next::Yield;
    };
    queue.set_running(index, level);
    hart::at(index).times.set(level);
    queue.harts[index].process = thread.process.number();
    queue.harts[index].slot = thread.queue_slot.index();
    Next::Run(thread)
}

/// Records that hart `index` no longer runs a thread.
pub(crate) fn clear_running(index: usize) {
    let mut queue = RUN_QUEUE.lock();
    queue.set_running(index, NO_LEVEL);
    queue.harts[index].process = 0;
    queue.harts[index].slot = NONE;
}

/// Applies a change of level of the thread that runs on hart `index`.
pub(crate) fn update_running_level(index: usize, thread: &mut Thread) {
    let mut queue = RUN_QUEUE.lock();
    // The lock is held, so a later loan finds the thread on this hart.
    thread.update_level();
    let level = thread.level.get();
    queue.set_running(index, level);
    hart::at(index).times.set(level);
    let level = level.min(queue.most_urgent());
    queue.set_level(index, level);
}

/// Applies a change of level to the thread that has this slot (`process/lending.rs`). A ready
/// thread moves to the list of its new level. A running thread is raised to `level` on its hart; if
/// it may have become less urgent, its hart is interrupted instead. A thread that is neither ready
/// nor running is about to enter the queue, where its level is updated.
pub(crate) fn requeue(
    process: &Process,
    slot: u16,
    update: impl FnOnce(&mut Thread) -> bool,
    level: u8,
) {
    let mut queue = RUN_QUEUE.lock();
    let ready = queue.slots[usize::from(slot)].thread.as_mut();
    let ready = ready.filter(|thread| core::ptr::eq(&*thread.process, process));
    let interrupted = if let Some(thread) = ready {
        if update(thread) {
            queue.unlink(slot).and_then(|thread| {
                let level = thread.level.get();
                queue.link(thread, false);
                queue.announce(level)
            })
        } else {
            None
        }
    } else {
        let number = process.number();
        let has_slot = |hart: &HartState| hart.slot == slot && hart.process == number;
        queue.harts.iter().position(has_slot).filter(|&index| {
            let may_be_less_urgent = queue.harts[index].running <= level;
            if !may_be_less_urgent {
                queue.set_running(index, level);
                let level = level.min(queue.harts[index].level);
                queue.set_level(index, level);
            }
            may_be_less_urgent
        })
    };
    drop(queue);
    wake_hart(interrupted);
    global::publish();
}

/// Returns whether a ready thread is more urgent than `level`; with `equal`, whether a ready thread
/// is at least as urgent.
pub(crate) fn is_overtaken(level: Level, equal: bool) -> bool {
    ready_levels() & (level.more_urgent_bits() | if equal { level.bit() } else { 0 }) != 0
}
