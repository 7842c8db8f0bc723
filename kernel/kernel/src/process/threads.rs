//! The threads of a process: which there are, and where those are that wait.
//!
//! ```text
//!        create                take                  synchronous call
//!  free ────────► Out: queue ───────► Out: hart ───────────────────► InCall
//!   ▲              ▲  ▲                 │  │ │ park                     │
//!   │              │  └── preempted ────┘  │ └──────► Parked            │ the call's
//!   │ join         │                       │            │ completion,   │ coroutine ends
//!   │              └───────────────────────┼────────────┴─ unpark ──────┘
//!   └──────────── Ended ◄── thread_exit ───┘
//! ```
//!
//! A thread has a *line*, its index here and in the page of `os_abi::thread`, and
//! a number: the line plus a generation, so that a number is never used again. An
//! ended thread keeps its line until it is joined, so lines bound both.
//!
//! Everything is O(1) but joining, which is O(threads that wait to join).

use alloc::boxed::Box;

use os_abi::Error;
use os_abi::thread::{CRITICAL, HOLDER, MAX_THREADS};
use upshift_core::{CoroutineId, Level};

use super::Thread;
use super::lending::Waits;
use crate::memory::space::AddressSpace;
use crate::trace::{self, Entered};
use crate::waiters::{Awaited, Waiters};

/// State of the thread of a line.
enum State {
    Free,
    /// Ready or running.
    Out,
    /// The thread waits for the end of a synchronous call, which this coroutine carries out.
    InCall(Box<Thread>, CoroutineId),
    /// The thread waits for a completion or an `unpark`.
    Parked(Box<Thread>),
    /// The thread may not go to user mode for the moment.
    Held(Box<Thread>),
    /// The thread has ended with this result, for the thread that joins it.
    Ended(isize),
}

struct Slot {
    /// The number of its thread, or of its last one; 0: none yet.
    number: usize,
    state: State,
    /// Place in the queue of ready threads.
    place: u16,
    /// `unpark` came before `park`, with this level.
    token: Option<Level>,
}

/// See the module.
pub(crate) struct Threads {
    slots: [Slot; MAX_THREADS],
    /// Bit n: line n is parked.
    parked: u64,
    /// The line that was unparked for a completion last.
    unparked: usize,
    /// Threads that have not ended.
    alive: usize,
    waiters: Waiters,
    /// Calls that wait for threads.
    pub(super) waits: Waits,
}

impl Awaited for Threads {
    fn waiters(&mut self) -> &mut Waiters {
        &mut self.waiters
    }
}

/// Consequences of the end of a thread.
pub(super) struct Left {
    /// True if the thread was the last one.
    pub(super) last: bool,
    /// Waiters to be woken after the lock is released.
    pub(super) waiters: Waiters,
}

/// State of a thread that is lent a level.
pub(super) enum Out<'a> {
    /// The thread has this place in the queue, runs, or is on its way from one to the other.
    InQueue(u16),
    /// The thread waits for the call of this coroutine.
    InCall(&'a mut Thread, CoroutineId),
}

/// State of a thread.
pub(super) enum Whereabouts {
    /// The thread is in this place of the queue, on a hart, or on its way.
    Out(u16),
    /// The thread waits, at this level.
    Waits(Level),
}

impl Threads {
    pub(super) const fn new() -> Threads {
        Threads {
            slots: [const {
                Slot {
                    number: 0,
                    state: State::Free,
                    place: 0,
                    token: None,
                }
            }; MAX_THREADS],
            parked: 0,
            unparked: 0,
            alive: 0,
            waiters: Waiters::new(),
            waits: Waits::new(),
        }
    }

    /// Returns a line for a new thread, and its number; or the wanted number, with its line.
    ///
    /// # Errors
    /// [`Error::TooMany`].
    pub(super) fn add(&mut self, number: Option<usize>) -> Result<(usize, usize), Error> {
        let free = |slot: &Slot| matches!(slot.state, State::Free);
        let found = match number {
            Some(number) => Some(number % MAX_THREADS).filter(|line| free(&self.slots[*line])),
            None => self.slots.iter().position(free),
        };
        let line = found.ok_or(Error::TooMany)?;
        self.waits.forget(line);
        let slot = &mut self.slots[line];
        slot.number = number.unwrap_or(slot.number.max(line) + MAX_THREADS);
        slot.state = State::Out;
        slot.token = None;
        self.alive += 1;
        Ok((line, slot.number))
    }

    /// Notes the place of a thread that was added.
    pub(super) fn set_place(&mut self, line: usize, place: u16) {
        self.slots[line].place = place;
    }

    /// Returns the places of threads that may be in the queue of ready threads.
    pub(super) fn places(&self) -> impl Iterator<Item = u16> {
        let out = |slot: &&Slot| matches!(slot.state, State::Out);
        self.slots.iter().filter(out).map(|slot| slot.place)
    }

    /// Returns the places of those threads that may be taking completions out: the one that was
    /// unparked for that last, and those that claim a critical section.
    pub(super) fn may_be_draining(&self, space: &AddressSpace) -> impl Iterator<Item = u16> {
        let may_be = |(line, slot): &(usize, &Slot)| {
            matches!(slot.state, State::Out)
                && (self.unparked == *line || space.line(*line, CRITICAL) != 0)
        };
        let slots = self.slots.iter().enumerate();
        slots.filter(may_be).map(|(_, slot)| slot.place)
    }

    /// Takes the place of a thread that was out when the process ended.
    pub(super) fn take_place(&mut self) -> Option<u16> {
        let out = |slot: &&mut Slot| matches!(slot.state, State::Out);
        let slot = self.slots.iter_mut().find(out)?;
        slot.state = State::Free;
        Some(slot.place)
    }

    /// The number of the thread of a line.
    pub(super) fn number(&self, line: usize) -> usize {
        self.slots[line].number
    }

    /// The line of the thread of a number that has not ended.
    pub(super) fn line_of(&self, number: usize) -> Option<usize> {
        let line = number % MAX_THREADS;
        let slot = &self.slots[line];
        let lives = !matches!(slot.state, State::Free | State::Ended(_));
        (lives && slot.number == number).then_some(line)
    }

    /// The line of the thread whose number has these lowest bits.
    pub(super) fn line_of_holder(&self, holder: u32) -> Option<usize> {
        let number = self.slots[holder as usize % MAX_THREADS].number;
        (number as u32 & HOLDER == holder)
            .then(|| self.line_of(number))
            .flatten()
    }

    /// Returns the state of a thread, if a lent level changes anything there.
    pub(super) fn out(&mut self, line: usize) -> Option<Out<'_>> {
        let slot = &mut self.slots[line];
        match &mut slot.state {
            State::Out => Some(Out::InQueue(slot.place)),
            State::InCall(thread, call) => Some(Out::InCall(thread, *call)),
            _ => None,
        }
    }

    /// Parks a thread that waits for the end of the call of a coroutine.
    pub(super) fn wait_in_call(&mut self, thread: Box<Thread>, call: CoroutineId) {
        trace::thread(&thread, Entered::Blocked);
        let line = thread.line;
        self.slots[line].state = State::InCall(thread, call);
    }

    /// Takes out a thread whose call is over.
    pub(super) fn end_call(&mut self, line: usize) -> Option<Box<Thread>> {
        self.take(line, |state| matches!(state, State::InCall(..)))
    }

    /// Parks a thread until it is unparked. `Some`: that has happened already.
    pub(super) fn park(&mut self, mut thread: Box<Thread>) -> Option<Box<Thread>> {
        let line = thread.line;
        if let Some(level) = self.slots[line].token.take() {
            thread.become_urgent(level);
            return Some(thread);
        }
        trace::thread(&thread, Entered::Blocked);
        self.slots[line].state = State::Parked(thread);
        self.parked |= 1 << line;
        None
    }

    /// Ends the wait of a parked thread, or its next one.
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

    /// Ends the wait of some parked thread.
    pub(super) fn unpark_any(&mut self, level: Level) -> Option<Box<Thread>> {
        match self.parked {
            0 => None,
            parked => {
                self.unparked = parked.trailing_zeros() as usize;
                self.take_parked(self.unparked, level)
            }
        }
    }

    /// Returns whether any thread is parked.
    pub(super) fn has_parked(&self) -> bool {
        self.parked != 0
    }

    fn take_parked(&mut self, line: usize, level: Level) -> Option<Box<Thread>> {
        self.parked &= !(1 << line);
        let mut thread = self.take(line, |state| matches!(state, State::Parked(_)))?;
        thread.become_urgent(level);
        Some(thread)
    }

    /// Holds a thread back for the moment.
    pub(super) fn hold(&mut self, thread: Box<Thread>) {
        let line = thread.line;
        self.slots[line].state = State::Held(thread);
    }

    /// Takes a thread that was held.
    pub(super) fn take_held(&mut self) -> Option<Box<Thread>> {
        let held = |slot: &Slot| matches!(slot.state, State::Held(_));
        let line = self.slots.iter().position(held)?;
        self.take(line, |_| true)
    }

    /// Says of each thread that has not ended where it is.
    pub(super) fn whereabouts(&self) -> impl Iterator<Item = Whereabouts> {
        self.slots.iter().filter_map(|slot| match &slot.state {
            State::Free | State::Ended(_) => None,
            State::Out => Some(Whereabouts::Out(slot.place)),
            State::InCall(thread, _) | State::Parked(thread) | State::Held(thread) => {
                Some(Whereabouts::Waits(thread.level))
            }
        })
    }

    /// Returns the lines of threads that have not ended.
    pub(super) fn lines(&self) -> impl Iterator<Item = usize> {
        let lives =
            |(_, slot): &(usize, &Slot)| !matches!(slot.state, State::Free | State::Ended(_));
        self.slots
            .iter()
            .enumerate()
            .filter(lives)
            .map(|(line, _)| line)
    }

    /// Takes out any thread that waits in the kernel: the process ends.
    pub(super) fn take_any(&mut self) -> Option<Box<Thread>> {
        self.parked = 0;
        let here =
            |state: &State| matches!(state, State::InCall(..) | State::Parked(_) | State::Held(_));
        let line = self.slots.iter().position(|slot| here(&slot.state))?;
        self.take(line, here)
    }

    fn take(&mut self, line: usize, wanted: fn(&State) -> bool) -> Option<Box<Thread>> {
        let state = &mut self.slots[line].state;
        if !wanted(state) {
            return None;
        }
        match core::mem::replace(state, State::Out) {
            State::InCall(thread, _) | State::Parked(thread) | State::Held(thread) => Some(thread),
            other => {
                *state = other;
                None
            }
        }
    }

    /// Ends a thread with a result.
    pub(super) fn end(&mut self, line: usize, result: isize) -> Left {
        self.slots[line].state = State::Ended(result);
        self.alive -= 1;
        Left {
            last: self.alive == 0,
            waiters: self.waiters.take(),
        }
    }

    /// Takes the result of a thread, once it has ended: its number is dead then.
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
