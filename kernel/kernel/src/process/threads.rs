//! The threads of a process, and their states.
//!
//! ```text
//!        create               dispatch             synchronous call
//!  Free ────────► Runnable: queue ──► Runnable: hart ─────────────────► InCall
//!   ▲              ▲  ▲                 │  │ │ park                     │
//!   │              │  └── preempted ────┘  │ └──────► Parked            │ the call's
//!   │ join         │                       │            │ completion,   │ coroutine ends
//!   │              └───────────────────────┼────────────┴─ unpark ──────┘
//!   └──────────── Ended ◄── thread_exit ───┘
//! ```
//!
//! A thread has a *line*, its index here and in the page of `os_abi::thread`, and a number: the
//! line plus a generation, so that no number is used twice. An ended thread keeps its line until it
//! is joined, so the number of lines limits running and ended threads together.
//!
//! All operations are O(1), with a constant number of lines, except that the end of a thread wakes
//! all waiters for ends of threads.

use alloc::boxed::Box;

use os_abi::Error;
use os_abi::thread::{CRITICAL, HOLDER, MAX_THREADS};
use upshift_core::{CoroutineId, Level};

use super::Thread;
use super::lending::WaitList;
use crate::memory::space::AddressSpace;
use crate::trace::{self, TraceState};
use crate::waiters::{Awaited, Waiters};

enum State {
    Free,
    /// Ready or running.
    Runnable,
    /// The thread waits for a synchronous call, which this coroutine executes.
    InCall(Box<Thread>, CoroutineId),
    /// The thread waits for a completion or an `unpark`.
    Parked(Box<Thread>),
    /// The thread is kept from running in user mode, while its process is copied.
    Held(Box<Thread>),
    Ended(isize),
}

struct Slot {
    /// Number of the current or the last thread; 0 if there was none.
    number: usize,
    state: State,
    queue_slot: u16,
    /// Level of an `unpark` that preceded `park`.
    token: Option<Level>,
}

pub(crate) struct Threads {
    slots: [Slot; MAX_THREADS],
    /// Bit n is set if line n is parked.
    parked: u64,
    /// The line that was last unparked for a completion.
    last_unparked: usize,
    /// Number of threads that have not ended.
    alive: usize,
    waiters: Waiters,
    pub(super) wait_list: WaitList,
}

impl Awaited for Threads {
    fn waiters(&mut self) -> &mut Waiters {
        &mut self.waiters
    }
}

/// Consequences of the end of a thread.
pub(super) struct ThreadExit {
    pub(super) is_last: bool,
    /// Waiters that the caller wakes after it has released the lock.
    pub(super) waiters: Waiters,
}

/// A thread to which a level is lent, by its state.
pub(super) enum Borrower<'a> {
    /// The thread has this queue slot: it is ready, runs, or is between the two.
    Queued(u16),
    /// The thread waits for the call with this coroutine.
    InCall(&'a mut Thread, CoroutineId),
}

pub(super) enum ThreadState {
    /// The thread has this queue slot: it is ready, runs, or is between the two.
    Runnable(u16),
    /// The thread waits, at this level.
    Waiting(Level),
}

impl Threads {
    pub(super) const fn new() -> Threads {
        Threads {
            slots: [const {
                Slot {
                    number: 0,
                    state: State::Free,
                    queue_slot: 0,
                    token: None,
                }
            }; MAX_THREADS],
            parked: 0,
            last_unparked: 0,
            alive: 0,
            waiters: Waiters::new(),
            wait_list: WaitList::new(),
        }
    }

    /// Returns a line for a new thread, and the thread's number; if a number is given, the line is
    /// the one of that number.
    ///
    /// # Errors
    /// [`Error::TooMany`].
    pub(super) fn add(&mut self, number: Option<usize>) -> Result<(usize, usize), Error> {
        let is_free = |slot: &Slot| matches!(slot.state, State::Free);
        let line = match number {
            Some(number) => Some(number % MAX_THREADS).filter(|line| is_free(&self.slots[*line])),
            None => self.slots.iter().position(is_free),
        };
        let line = line.ok_or(Error::TooMany)?;
        self.wait_list.end_loans_to(line);
        let slot = &mut self.slots[line];
        slot.number = number.unwrap_or(slot.number.max(line) + MAX_THREADS);
        slot.state = State::Runnable;
        slot.token = None;
        self.alive += 1;
        Ok((line, slot.number))
    }

    pub(super) fn set_queue_slot(&mut self, line: usize, queue_slot: u16) {
        self.slots[line].queue_slot = queue_slot;
    }

    /// Returns the queue slots of threads that may be ready.
    pub(super) fn queue_slots(&self) -> impl Iterator<Item = u16> {
        let is_runnable = |slot: &&Slot| matches!(slot.state, State::Runnable);
        self.slots
            .iter()
            .filter(is_runnable)
            .map(|slot| slot.queue_slot)
    }

    /// Returns the queue slots of the threads that may be draining the ring: the thread that was
    /// last unparked for this, and threads that claim to be in a critical section.
    pub(super) fn may_be_draining(&self, space: &AddressSpace) -> impl Iterator<Item = u16> {
        let may_be = |(line, slot): &(usize, &Slot)| {
            matches!(slot.state, State::Runnable)
                && (self.last_unparked == *line || space.line(*line, CRITICAL) != 0)
        };
        let slots = self.slots.iter().enumerate();
        slots.filter(may_be).map(|(_, slot)| slot.queue_slot)
    }

    /// Takes the queue slot of a thread that was ready or running when the process ended.
    pub(super) fn take_queue_slot(&mut self) -> Option<u16> {
        let is_runnable = |slot: &&mut Slot| matches!(slot.state, State::Runnable);
        let slot = self.slots.iter_mut().find(is_runnable)?;
        slot.state = State::Free;
        Some(slot.queue_slot)
    }

    pub(super) fn number(&self, line: usize) -> usize {
        self.slots[line].number
    }

    /// Returns the line of the thread with a number, unless the thread has ended.
    pub(super) fn line_of(&self, number: usize) -> Option<usize> {
        let line = number % MAX_THREADS;
        let slot = &self.slots[line];
        let is_alive = !matches!(slot.state, State::Free | State::Ended(_));
        (is_alive && slot.number == number).then_some(line)
    }

    /// Returns the line of the thread whose number has these low-order bits.
    pub(super) fn line_of_holder(&self, holder: u32) -> Option<usize> {
        let number = self.slots[holder as usize % MAX_THREADS].number;
        (number as u32 & HOLDER == holder)
            .then(|| self.line_of(number))
            .flatten()
    }

    /// Returns the thread of a line as a borrower; `None` while a loan has no effect on it.
    pub(super) fn borrower(&mut self, line: usize) -> Option<Borrower<'_>> {
        let slot = &mut self.slots[line];
        match &mut slot.state {
            State::Runnable => Some(Borrower::Queued(slot.queue_slot)),
            State::InCall(thread, call) => Some(Borrower::InCall(thread, *call)),
            _ => None,
        }
    }

    /// Makes a thread wait until the coroutine of its call has ended.
    pub(super) fn wait_in_call(&mut self, thread: Box<Thread>, call: CoroutineId) {
        trace::thread(&thread, TraceState::Blocked);
        let line = thread.line;
        self.slots[line].state = State::InCall(thread, call);
    }

    pub(super) fn end_call(&mut self, line: usize) -> Option<Box<Thread>> {
        self.take(line, |state| matches!(state, State::InCall(..)))
    }

    /// Parks a thread until it is unparked. Returns the thread if `unpark` has already been called.
    pub(super) fn park(&mut self, mut thread: Box<Thread>) -> Option<Box<Thread>> {
        let line = thread.line;
        if let Some(level) = self.slots[line].token.take() {
            thread.wake_at(level);
            return Some(thread);
        }
        trace::thread(&thread, TraceState::Blocked);
        self.slots[line].state = State::Parked(thread);
        self.parked |= 1 << line;
        None
    }

    /// Ends the current wait of a parked thread, or its next wait.
    ///
    /// # Errors
    /// [`Error::NoThread`].
    pub(super) fn unpark(
        &mut self,
        line: usize,
        level: Level,
    ) -> Result<Option<Box<Thread>>, Error> {
        let slot = self.slots.get_mut(line).ok_or(Error::NoThread)?;
        if self.parked >> line & 1 == 0 {
            let level = slot.token.map_or(level, |token| token.min(level));
            slot.token = Some(level);
            return Ok(None);
        }
        Ok(self.take_parked(line, level))
    }

    /// Ends the wait of an arbitrary parked thread.
    pub(super) fn unpark_any(&mut self, level: Level) -> Option<Box<Thread>> {
        match self.parked {
            0 => None,
            parked => {
                self.last_unparked = parked.trailing_zeros() as usize;
                self.take_parked(self.last_unparked, level)
            }
        }
    }

    pub(super) fn has_parked(&self) -> bool {
        self.parked != 0
    }

    fn take_parked(&mut self, line: usize, level: Level) -> Option<Box<Thread>> {
        self.parked &= !(1 << line);
        let mut thread = self.take(line, |state| matches!(state, State::Parked(_)))?;
        thread.wake_at(level);
        Some(thread)
    }

    pub(super) fn hold(&mut self, thread: Box<Thread>) {
        let line = thread.line;
        self.slots[line].state = State::Held(thread);
    }

    pub(super) fn take_held(&mut self) -> Option<Box<Thread>> {
        let is_held = |slot: &Slot| matches!(slot.state, State::Held(_));
        let line = self.slots.iter().position(is_held)?;
        self.take(line, |_| true)
    }

    pub(super) fn states(&self) -> impl Iterator<Item = ThreadState> {
        self.slots.iter().filter_map(|slot| match &slot.state {
            State::Free | State::Ended(_) => None,
            State::Runnable => Some(ThreadState::Runnable(slot.queue_slot)),
            State::InCall(thread, _) | State::Parked(thread) | State::Held(thread) => {
                Some(ThreadState::Waiting(thread.level))
            }
        })
    }

    pub(super) fn lines(&self) -> impl Iterator<Item = usize> {
        let is_alive =
            |(_, slot): &(usize, &Slot)| !matches!(slot.state, State::Free | State::Ended(_));
        self.slots
            .iter()
            .enumerate()
            .filter(is_alive)
            .map(|(line, _)| line)
    }

    /// Takes out any thread that waits in the kernel, because the process ends.
    pub(super) fn take_waiting_thread(&mut self) -> Option<Box<Thread>> {
        self.parked = 0;
        let is_waiting =
            |state: &State| matches!(state, State::InCall(..) | State::Parked(_) | State::Held(_));
        let line = self.slots.iter().position(|slot| is_waiting(&slot.state))?;
        self.take(line, is_waiting)
    }

    /// Takes the thread of a line out of its state if `is_wanted` accepts the state.
    fn take(&mut self, line: usize, is_wanted: fn(&State) -> bool) -> Option<Box<Thread>> {
        let state = &mut self.slots[line].state;
        if !is_wanted(state) {
            return None;
        }
        match core::mem::replace(state, State::Runnable) {
            State::InCall(thread, _) | State::Parked(thread) | State::Held(thread) => Some(thread),
            other => {
                *state = other;
                None
            }
        }
    }

    pub(super) fn end(&mut self, line: usize, result: isize) -> ThreadExit {
        self.slots[line].state = State::Ended(result);
        self.alive -= 1;
        ThreadExit {
            is_last: self.alive == 0,
            waiters: self.waiters.take(),
        }
    }

    /// Takes the result of a thread, once the thread has ended. The number of the thread is invalid
    /// afterwards.
    pub(super) fn join(&mut self, number: usize) -> Option<Result<isize, Error>> {
        let slot = &mut self.slots[number % MAX_THREADS];
        if slot.number != number {
            return Some(Err(Error::NoThread));
        }
        match slot.state {
            State::Free => Some(Err(Error::NoThread)),
            State::Ended(result) => {
                slot.state = State::Free;
                Some(Ok(result))
            }
            _ => None,
        }
    }
}
