//! Methods of [`Process`] for its system calls in flight: they park threads that wait, reserve
//! completions, and choose the thread that a completion notifies.

use alloc::boxed::Box;
use core::sync::atomic::Ordering::SeqCst;

use os_abi::Error;
use os_abi::shared::{DRAINING, ENTRY_WORDS};
use upshift_core::{CoroutineId, Level};

use super::threads::Threads;
use super::{Process, Thread};
use crate::{executor, memory, run_queue};

impl Process {
    /// Makes the thread wait for a call until [`Process::resume`]. Meanwhile the call's coroutine
    /// has the level of the thread. If the process has ended, the thread is dropped.
    pub(crate) fn wait_in_call(&self, thread: Box<Thread>, call: CoroutineId) {
        self.with_thread(thread, |threads, mut thread| {
            // The thread may have been lent a level meanwhile.
            if thread.update_level() {
                self.reprio_call(threads, call, thread.level);
            }
            threads.wait_in_call(thread, call);
        });
    }

    /// Resumes the thread of a line, the index of the thread (`threads.rs`), with the result of its
    /// call.
    pub(crate) fn resume(&self, line: usize, result: isize) {
        let thread = self.threads.lock().end_call(line);
        if let Some(mut thread) = thread {
            thread.context.set_argument(0, result as usize);
            run_queue::push_back(thread);
        }
    }

    /// Allocates a number for a call. An asynchronous call has a token, by which the program names
    /// it, too.
    ///
    /// # Errors
    /// [`Error::TooMany`] calls in flight, [`Error::OutOfMemory`].
    pub(crate) fn add_call(&self, token: Option<u64>) -> Result<usize, Error> {
        if memory::is_short() {
            return Err(Error::OutOfMemory);
        }
        self.calls.lock().add(self.share(), token)
    }

    /// Records the coroutine of a call, so that it ends with the process.
    ///
    /// # Errors
    /// [`Error::NoProcess`] if the process has ended.
    pub(crate) fn begin_call(&self, number: usize, call: CoroutineId) -> Result<(), Error> {
        let mut calls = self.calls.lock();
        // If the process ends after this check, `Process::end` finds the call.
        if self.is_ended() || !calls.set_coroutine(number, call) {
            return Err(Error::NoProcess);
        }
        Ok(())
    }

    /// Frees the number of a call that has ended, or was not made.
    pub(crate) fn end_call(&self, number: usize) {
        self.calls.lock().remove(number);
    }

    /// Changes the level of an asynchronous call.
    ///
    /// # Errors
    /// [`Error::NoCall`] if no call with this number and token is in flight.
    pub(crate) fn reprio_numbered(
        &self,
        number: usize,
        token: u64,
        level: Level,
    ) -> Result<(), Error> {
        let coroutine = self.calls.lock().find(number, token);
        let coroutine = coroutine.ok_or(Error::NoCall)?;
        self.reprio_call(&mut self.threads.lock(), coroutine, level);
        Ok(())
    }

    /// Ends an asynchronous call early.
    ///
    /// # Errors
    /// [`Error::NoCall`] if no call with this number and token is in flight.
    pub(crate) fn cancel_call(&self, number: usize, token: u64) -> Result<(), Error> {
        let coroutine = self.calls.lock().cancel(number, token);
        let coroutine = coroutine.ok_or(Error::NoCall)?;
        // The coroutine may just have ended.
        let _ = executor::domain().wake(coroutine);
        Ok(())
    }

    pub(crate) fn is_cancelled(&self, number: usize) -> bool {
        self.calls.lock().is_cancelled(number)
    }

    /// Reserves a completion for the result of an asynchronous call.
    ///
    /// # Errors
    /// [`Error::TooMany`]; [`Error::NoProcess`] if the process has ended.
    pub(crate) fn reserve_completion(&self) -> Result<(), Error> {
        let space = self.space()?;
        self.ring.lock().reserve(&space)
    }

    /// Releases the completion of an asynchronous call that was not made.
    pub(crate) fn release_completion(&self) {
        self.ring.lock().release();
    }

    /// Passes the result of an asynchronous call of level `level` to the program.
    ///
    /// If a thread is parked, it resumes at that level and holds the word `DRAINING`, so further
    /// completions interrupt no thread until this thread has drained the ring. If no thread is
    /// parked and no thread drains, a running thread is interrupted. A thread that drains is at
    /// least as urgent as the completions.
    pub(crate) fn complete(&self, entry: [u64; ENTRY_WORDS], level: Level) {
        let Ok(space) = self.space() else {
            return;
        };
        let page = space.shared();
        // Threads park under the lock of the ring. It is held so that no thread parks meanwhile.
        let mut ring = self.ring.lock();
        ring.complete(&space, entry);
        let is_most_urgent = ring.is_more_urgent(page, level);
        let mut threads = self.threads.lock();
        if ring.has_unclaimed(page) {
            if !threads.has_parked() {
                drop(threads);
                drop(ring);
                self.interrupt.store(true, SeqCst);
                if !run_queue::interrupt(self, level) {
                    self.raise(level);
                }
                return;
            }
            if page.claim(DRAINING) {
                let thread = threads.unpark_any(level);
                drop(threads);
                drop(ring);
                if let Some(mut thread) = thread {
                    thread.raised = thread.raised.min(level);
                    thread.context.set_argument(0, 1);
                    run_queue::push_back(thread);
                }
                return;
            }
        }
        drop(ring);
        // A running thread will find the completion; a thread that does not run may be queued
        // behind others.
        if is_most_urgent && !run_queue::raise_running(self, level) {
            let draining = threads.may_be_draining(&space);
            draining
                .for_each(|queue_slot| run_queue::raise(self, core::iter::once(queue_slot), level));
        }
    }

    /// Raises a thread of the process for an event of level `level`, while none of its threads runs
    /// in user mode or is parked. A ready thread, or the next thread that becomes ready, gets this
    /// level.
    pub(crate) fn raise(&self, level: Level) {
        let threads = self.threads.lock();
        run_queue::raise(self, threads.queue_slots(), level);
    }

    /// Removes a thread from the run queue, as a hart does before it runs the thread.
    #[cfg(feature = "selftest")]
    pub(crate) fn take_ready(&self) -> Option<Box<Thread>> {
        let threads = self.threads.lock();
        threads
            .queue_slots()
            .find_map(|queue_slot| run_queue::remove(self, queue_slot))
    }

    /// Parks the thread until a completion arrives or it is unparked. Returns the thread if one of
    /// the two has already happened.
    ///
    /// # Errors
    /// [`Error::NoProcess`] if the process has ended.
    pub(crate) fn park(&self, thread: Box<Thread>) -> Result<Option<Box<Thread>>, Error> {
        let space = self.space()?;
        // Both locks are held until the thread is parked, so that a completion that arrives now
        // finds the thread.
        let ring = self.ring.lock();
        if ring.has_unclaimed(space.shared()) {
            return Ok(Some(thread));
        }
        let parked = self.with_thread(thread, Threads::park);
        drop(ring);
        Ok(parked.flatten())
    }

    /// Ends the current wait of the parked thread of a line, or its next wait.
    ///
    /// # Errors
    /// [`Error::NoThread`].
    pub(crate) fn unpark(&self, line: usize, level: Level) -> Result<(), Error> {
        let thread = self.threads.lock().unpark(line, level)?;
        if let Some(mut thread) = thread {
            thread.context.set_argument(0, 0);
            run_queue::push_back(thread);
        }
        Ok(())
    }

    pub(super) fn has_interrupt(&self) -> bool {
        self.interrupt.load(SeqCst)
    }

    /// Returns whether a user interrupt was pending, and clears it.
    pub(super) fn take_interrupt(&self) -> bool {
        self.has_interrupt() && self.interrupt.swap(false, SeqCst)
    }
}
