//! Priority inheritance within a process: a waiter lends its level to the thread that it waits for.
//!
//! ```text
//!  thread H ── futex_lock ─► call ─┐
//!  thread J ── thread_join ► call ─┼─► lent[line] ─► thread T ─┬─ ready: moves in the queue
//!  thread_join (asynchronous) ─────┘                           ├─ on a hart: its level there
//!                                                              └─ in a call: the call's level,
//!                                                                 and on along the chain …
//! ```
//!
//! The effective level of a thread is the more urgent of its own level, which its program sets, and
//! the most urgent level that is lent to the thread. Loans are recomputed from the waiting
//! calls whenever a call begins or stops waiting, or changes its level. So a loan ends with its
//! wait, for whatever reason the wait ends, and no thread stays raised. A loan is passed on
//! immediately along chains of waiting threads, and in a cycle until no level changes any more. A
//! *line* is the index of a thread in its process (`threads.rs`).
//!
//! *Locks.* The word of a lock is 0 or the number of the thread that holds it, and [`CONTENDED`] if
//! other threads wait. The holder passes the lock to the most urgent waiter, and among equally
//! urgent waiters to the oldest. So the kernel knows to which thread the other waiters lend. A
//! program may store any value in the word, but a loan never leaves the process.
//!
//! All steps hold the lock of the threads. A step is O(waiting calls), which are at most as many as
//! the other threads of the process, plus its asynchronous `thread_join`s.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::task::{Context, Poll};

use os_abi::Error;
use os_abi::thread::{CONTENDED, HOLDER, LOCAL_BITMAP, MAX_THREADS};
use upshift_core::{CoroutineId, Level};

use super::threads::{Borrower, Threads};
use super::{Process, Thread};
use crate::memory::space::AddressSpace;
use crate::{executor, run_queue};

/// A call that waits for a thread, and lends it a level.
struct WaitingCall {
    call: CoroutineId,
    level: Level,
    target: WaitTarget,
    /// Line of the thread that the call lends to.
    borrower: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WaitTarget {
    /// The call waits for the end of a thread.
    End,
    /// The call waits for a lock, on behalf of the thread with this number.
    Lock { address: usize, thread: usize },
}

/// Calls that wait for threads of the process, oldest first.
pub(super) struct WaitList(Vec<WaitingCall>);

impl WaitList {
    pub(super) const fn new() -> WaitList {
        WaitList(Vec::new())
    }

    fn add(&mut self, waiting: WaitingCall) -> Result<(), Error> {
        self.0.try_reserve(1).map_err(|_| Error::OutOfMemory)?;
        self.0.push(waiting);
        Ok(())
    }

    fn remove(&mut self, call: CoroutineId) -> Option<WaitingCall> {
        let at = self.0.iter().position(|waiting| waiting.call == call)?;
        let removed = self.0.remove(at);
        if self.0.is_empty() {
            // An empty list keeps no memory.
            self.0 = Vec::new();
        }
        Some(removed)
    }

    fn contains(&self, call: CoroutineId) -> bool {
        self.0.iter().any(|waiting| waiting.call == call)
    }

    /// Returns the most urgent level that is lent to a line.
    fn lent(&self, line: usize) -> Level {
        let lends_to_line = self
            .0
            .iter()
            .filter(|waiting| waiting.borrower == Some(line));
        let levels = lends_to_line.map(|waiting| waiting.level);
        levels.min().unwrap_or(Level::LEAST_URGENT)
    }

    /// Sets the level of a call. Returns the line that the call lends to, if the level has changed.
    fn set_level(&mut self, call: CoroutineId, level: Level) -> Option<usize> {
        let mut calls = self.0.iter_mut();
        let waiting = calls.find(|waiting| waiting.call == call)?;
        let before = core::mem::replace(&mut waiting.level, level);
        waiting.borrower.filter(|_| before != level)
    }

    /// Returns the calls that wait for the lock at address `lock`, each with the number of the
    /// thread for which it waits.
    fn lock_waiters(&mut self, lock: usize) -> impl Iterator<Item = (&mut WaitingCall, usize)> {
        self.0.iter_mut().filter_map(move |waiting| {
            let WaitTarget::Lock { address, thread } = waiting.target else {
                return None;
            };
            (address == lock).then_some((waiting, thread))
        })
    }

    /// Removes the most urgent call that waits for a lock; returns it with the number of its
    /// thread, and whether other calls still wait.
    fn take_lock_waiter(&mut self, address: usize) -> Option<(WaitingCall, usize, bool)> {
        // `min_by_key` returns the first of several minima.
        let first = self
            .lock_waiters(address)
            .min_by_key(|(first, _)| first.level);
        let (call, thread) = first.map(|(first, thread)| (first.call, thread))?;
        let waiting = self.remove(call)?;
        let is_contended = self.lock_waiters(address).next().is_some();
        Some((waiting, thread, is_contended))
    }

    pub(super) fn end_loans_to(&mut self, line: usize) {
        let lends_to_line = |waiting: &&mut WaitingCall| waiting.borrower == Some(line);
        for waiting in self.0.iter_mut().filter(lends_to_line) {
            waiting.borrower = None;
        }
    }
}

impl Process {
    /// Returns the most urgent level that is lent to the thread of a line. The level is exact under
    /// the lock of the run queue, because a change of the level searches for the thread under this
    /// lock. Costs a load.
    #[inline]
    pub(crate) fn lent(&self, line: usize) -> u8 {
        self.lent[line % MAX_THREADS].load(Relaxed)
    }

    /// Recomputes the level that is lent to the thread of a line, and passes it on along the chain.
    pub(super) fn update_loan(&self, threads: &mut Threads, line: usize) {
        let mut next = Some(line);
        while let Some(line) = next.take() {
            let lent = threads.wait_list.lent(line).get();
            if self.lent[line].swap(lent, SeqCst) == lent {
                return;
            }
            match threads.borrower(line) {
                Some(Borrower::Queued(queue_slot)) => {
                    run_queue::requeue(self, queue_slot, Thread::update_level, lent)
                }
                Some(Borrower::InCall(thread, call)) => {
                    let changed = thread.update_level().then_some(thread.level);
                    next = changed.and_then(|level| self.set_call_level(threads, call, level));
                }
                // The thread updates its level when it becomes ready.
                None => {}
            }
        }
    }

    /// Applies the levels that the program has set in the line of a thread.
    ///
    /// # Errors
    /// [`Error::NoThread`]; [`Error::NoProcess`] if the process has ended.
    pub(crate) fn follow(&self, line: usize) -> Result<(), Error> {
        if line >= MAX_THREADS {
            return Err(Error::NoThread);
        }
        let space = self.space()?;
        let follow = |thread: &mut Thread| thread.follow_bitmap(&space);
        let mut threads = self.threads.lock();
        match threads.borrower(line) {
            Some(Borrower::Queued(queue_slot)) => {
                let requested = space.line(line, LOCAL_BITMAP).trailing_zeros() as u8;
                let level = requested.max(self.ceiling.get()).min(self.lent(line));
                run_queue::requeue(self, queue_slot, follow, level);
            }
            Some(Borrower::InCall(thread, call)) => {
                let changed = follow(thread).then_some(thread.level);
                if let Some(level) = changed {
                    self.reprio_call(&mut threads, call, level);
                }
            }
            None => {}
        }
        Ok(())
    }

    /// Sets the level of a call's coroutine. Returns the line to which the call now lends a
    /// different level; the caller updates the loan of this line.
    fn set_call_level(
        &self,
        threads: &mut Threads,
        call: CoroutineId,
        level: Level,
    ) -> Option<usize> {
        // The coroutine may just have ended.
        let _ = executor::domain().reprio(call, level);
        threads.wait_list.set_level(call, level)
    }

    /// Sets the level of a call's coroutine, and updates the loan of the line that it lends to.
    pub(super) fn reprio_call(&self, threads: &mut Threads, call: CoroutineId, level: Level) {
        if let Some(line) = self.set_call_level(threads, call, level) {
            self.update_loan(threads, line);
        }
    }

    /// Lends the level of the running kernel coroutine to thread `number`, for whose end the
    /// coroutine waits, until the loan is dropped.
    pub(super) fn lend_to(&self, number: usize) -> Option<Loan<'_>> {
        let call = executor::domain().current_id()?;
        let mut threads = self.threads.lock();
        let borrower = threads.line_of(number)?;
        let waiting = WaitingCall {
            call,
            level: current_level(),
            target: WaitTarget::End,
            borrower: Some(borrower),
        };
        // Without memory for the loan, the call waits without lending.
        threads.wait_list.add(waiting).ok()?;
        self.update_loan(&mut threads, borrower);
        Some(Loan {
            process: self,
            call,
        })
    }

    fn end_wait(&self, call: CoroutineId) {
        let mut threads = self.threads.lock();
        if let Some(line) = threads
            .wait_list
            .remove(call)
            .and_then(|waiting| waiting.borrower)
        {
            self.update_loan(&mut threads, line);
        }
    }

    /// Takes the lock at an address for the thread with this number, or makes the call wait for it.
    /// Returns true if the thread has the lock.
    fn take_lock(
        &self,
        space: &AddressSpace,
        address: usize,
        thread: usize,
        call: CoroutineId,
    ) -> Result<bool, Error> {
        let mut threads = self.threads.lock();
        let holder = thread as u32 & HOLDER;
        let mut word = space.load_word(address)?;
        loop {
            let new_word = match word & HOLDER {
                // Only a faulty program marks a free lock as contended.
                0 => holder | word & CONTENDED,
                _ => word | CONTENDED,
            };
            match space.exchange_word(address, word, new_word)? {
                Ok(()) if word & HOLDER == 0 => return Ok(true),
                Ok(()) => break,
                Err(current) => word = current,
            }
        }
        let borrower = threads.line_of_holder(word & HOLDER);
        threads.wait_list.add(WaitingCall {
            call,
            level: current_level(),
            target: WaitTarget::Lock { address, thread },
            borrower,
        })?;
        if let Some(borrower) = borrower {
            self.update_loan(&mut threads, borrower);
        }
        Ok(false)
    }

    /// Passes the lock at an address to the most urgent thread that waits for it; the other waiters
    /// lend to that thread from now on.
    ///
    /// # Errors
    /// [`Error::BadAddress`].
    pub(crate) fn unlock(&self, address: usize) -> Result<(), Error> {
        let space = self.space()?;
        let mut threads = self.threads.lock();
        space.check_word(address)?;
        let Some((granted, thread, is_contended)) = threads.wait_list.take_lock_waiter(address)
        else {
            return space.store_word(address, 0);
        };
        let contended = if is_contended { CONTENDED } else { 0 };
        space.store_word(address, thread as u32 & HOLDER | contended)?;
        let new_holder = threads.line_of(thread);
        for (waiting, _) in threads.wait_list.lock_waiters(address) {
            waiting.borrower = new_holder;
        }
        for line in [new_holder, granted.borrower].into_iter().flatten() {
            self.update_loan(&mut threads, line);
        }
        drop(threads);
        // The coroutine does not exist if the process has ended meanwhile.
        let _ = executor::domain().wake(granted.call);
        Ok(())
    }
}

/// Returns the level of the running kernel coroutine. Called under the lock of the threads, because
/// that level changes under this lock.
fn current_level() -> Level {
    let level = executor::domain().current_level();
    level.unwrap_or(executor::LEAST_URGENT_WORK)
}

/// A loan of the level of a waiting call, which ends when the value is dropped.
pub(super) struct Loan<'a> {
    process: &'a Process,
    call: CoroutineId,
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        self.process.end_wait(self.call);
    }
}

/// Waits for the lock at an address on behalf of the thread of a line; this thread then holds the
/// lock.
///
/// # Errors
/// [`Error::BadAddress`], [`Error::NoProcess`], [`Error::OutOfMemory`].
pub(crate) fn lock(process: Arc<Process>, line: usize, address: usize) -> Lock {
    let thread = process.threads.lock().number(line);
    Lock {
        process,
        thread,
        address,
        call: None,
    }
}

pub(crate) struct Lock {
    process: Arc<Process>,
    thread: usize,
    address: usize,
    /// Coroutine of the call, while it waits.
    call: Option<CoroutineId>,
}

impl Future for Lock {
    type Output = Result<isize, Error>;

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(call) = self.call {
            if self.process.threads.lock().wait_list.contains(call) {
                return Poll::Pending;
            }
            self.call = None;
            return Poll::Ready(Ok(0));
        }
        let Some(call) = executor::domain().current_id() else {
            return Poll::Ready(Err(Error::BadArgument));
        };
        let process = &self.process;
        let is_taken = process
            .space()
            .and_then(|space| process.take_lock(&space, self.address, self.thread, call));
        match is_taken {
            Ok(true) => Poll::Ready(Ok(0)),
            Ok(false) => {
                self.call = Some(call);
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Some(call) = self.call {
            self.process.end_wait(call);
        }
    }
}
