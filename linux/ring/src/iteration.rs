//! Hands entries to the kernel, fetches completions, and waits for them. The thread that owns the
//! ring does this once per iteration of its loop.
//!
//! All system calls for operations are made here, one per iteration unless a queue is too short.
//! If the kernel refuses entries because it lacks memory or room for completions, they stay queued
//! for the next iteration.

use crate::backend::Backend;
use crate::counters::count;
use crate::driver::Driver;
use crate::fd::Fd;
use crate::readiness::Readiness;
use crate::slot::{CANCEL, CANCELLED, KICK};
use crate::uring::Uring;
use io_uring::{opcode, types};
use std::io;
use std::time::Duration;

/// Maximum number of enters per [`Driver::submit`], so that the owner always gets to reap.
const MAX_ENTERS: usize = 64;

impl Driver {
    /// Fills the submission queue. The order is: the poll of the eventfd, cancellations, streams
    /// that waited for a buffer and can have one now, and the backlog. Returns true if operations
    /// that were cancelled in the backlog have completed, because the woken tasks may have work
    /// then.
    #[inline]
    fn flush(&self) -> bool {
        let waiting = self.cancels.len() + self.starved.len() + self.backlog.len();
        (waiting != 0 || !self.watching.get()) && self.flush_all()
    }

    #[inline(never)]
    fn flush_all(&self) -> bool {
        let mut completed = false;
        if !self.watching.get() {
            self.watch();
        }
        while !self.backend.is_full() {
            let Some(user_data) = self.cancels.pop() else {
                break;
            };
            let pushed = self.push_cancel(user_data);
            debug_assert!(pushed, "there is room");
        }
        self.feed();
        while !self.backend.is_full() {
            let Some(slot) = self.backlog.pop() else {
                break;
            };
            if slot.has_mark(CANCELLED) {
                self.handle_completion(slot, -libc::ECANCELED, 0);
                completed = true;
            } else {
                self.push_slot(slot);
            }
        }
        completed
    }

    /// Returns whether the submission queue was too short for all entries that must be handed over
    /// before the ring may sleep.
    fn is_unsettled(&self) -> bool {
        !self.backlog.is_empty()
            || self.cancels.len() != 0
            || !(self.watching.get() || self.closing.get())
    }

    #[cold]
    fn watch(&self) {
        if self.closing.get() || self.backend.is_full() {
            return;
        }
        let fd = types::Fd(self.mail.kick.raw_fd());
        let entry = opcode::PollAdd::new(fd, libc::POLLIN as u32)
            .multi(true)
            .build()
            .user_data(KICK);
        // SAFETY: the entry has no pointers, so no memory must stay valid. The eventfd lives as
        // long as the mailbox.
        self.watching.set(unsafe { self.backend.push(&entry, 0) });
    }

    /// Returns the number of entries that a submit would hand over. All streams that waited for a
    /// buffer and can have one now count as one.
    #[inline]
    pub(crate) fn pending(&self) -> usize {
        self.backend.pending()
            + self.backlog.len()
            + self.cancels.len()
            + usize::from(self.is_feed_due())
    }

    #[inline]
    pub(crate) fn is_due(&self, busy: bool) -> bool {
        self.backend.is_due(busy)
            || self.backlog.len() + self.cancels.len() != 0
            || self.is_feed_due()
    }

    pub(crate) fn submit(&self) -> io::Result<()> {
        // The driver is chosen once per iteration, as in `reap`.
        match &self.backend {
            Backend::Kernel(uring) => self.submit_to(uring),
            Backend::Readiness(readiness) => {
                self.make_calls(readiness);
                Ok(())
            }
        }
    }

    #[cold]
    fn make_calls(&self, readiness: &Readiness) {
        readiness.begin_iteration();
        for _ in 0..MAX_ENTERS {
            self.flush();
            let fetch = readiness.owes_completions();
            if readiness.pending() == 0 && (!fetch || readiness.unread() >= self.fetch_limit) {
                return;
            }
            readiness.enter(fetch);
        }
    }

    #[inline]
    fn submit_to(&self, uring: &Uring) -> io::Result<()> {
        let mut fetched = None;
        for _ in 0..MAX_ENTERS {
            self.flush();
            let fetch = uring.owes_completions();
            if uring.pending() == 0 {
                let unread = uring.unread();
                // `owes_completions` may stay true although everything has been fetched, presumably
                // because a completion arrived during the fetch. Then no enter brings more until
                // the next arrival.
                if !fetch || unread >= self.fetch_limit || fetched == Some(unread) {
                    return Ok(());
                }
                fetched = Some(unread);
            }
            if fetch && uring.has_overflowed() {
                count(&self.counters.overflows);
            }
            match uring.enter(fetch) {
                Ok(_) => {}
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    // The kernel lacks memory, or wants its completions reaped. The entries stay
                    // queued for the next iteration.
                    Some(libc::EBUSY | libc::EAGAIN) => return Ok(()),
                    _ => return Err(error),
                },
            }
        }
        Ok(())
    }

    pub(crate) fn settle(&self, fd: &Fd) -> usize {
        let mut read = 0;
        for _ in 0..MAX_ENTERS {
            if self.orphans.get() == 0 || !fd.is_shared() {
                break;
            }
            self.flush();
            let enters = self.backend.pending() != 0 || self.backend.owes_completions();
            if enters {
                let entered = self.backend.hand_over_and_fetch();
                // Try again if the kernel wants its completions reaped, or if the thread that made
                // the ring has not made the system call in time.
                if entered.map(drop).or_else(Self::ignore_transient).is_err() {
                    break;
                }
            }
            let reaped = self.reap();
            read += reaped;
            if !enters && reaped == 0 {
                // The remaining operations cannot be cancelled, or belong to another ring.
                break;
            }
        }
        read
    }

    /// Does the part of a hand-over that any thread can do. Returns true if an enter by the issuer
    /// (the thread that made the ring) is due.
    pub(crate) fn publish(&self) -> bool {
        self.flush();
        self.backend.publish()
    }

    pub(crate) fn wait(&self, block: bool, timeout: Option<Duration>) -> io::Result<()> {
        let mut completed = self.flush();
        while self.is_unsettled() {
            match self.backend.enter(self.backend.owes_completions()) {
                // The kernel takes no entries, so the caller must reap first.
                Ok(0) => return Ok(()),
                Ok(_) => completed |= self.flush(),
                Err(error) => return Self::ignore_transient(error),
            }
        }
        if self.backend.has_overflowed() {
            count(&self.counters.overflows);
        }
        let min_completions = u32::from(block && !self.is_feed_due() && !completed);
        match self.backend.enter_and_wait(min_completions, timeout) {
            Ok(_) => Ok(()),
            Err(error) => Self::ignore_transient(error),
        }
    }

    /// Ignores the errors after which the caller reaps and continues.
    fn ignore_transient(error: io::Error) -> io::Result<()> {
        match error.raw_os_error() {
            Some(libc::EINTR | libc::ETIME | libc::EBUSY | libc::EAGAIN) => Ok(()),
            _ => Err(error),
        }
    }

    pub(crate) fn reap(&self) -> usize {
        let mut read = 0;
        match &self.backend {
            Backend::Kernel(uring) => loop {
                while let Some(entry) = uring.next_completion() {
                    read += 1;
                    self.dispatch(entry.user_data(), entry.result(), entry.flags());
                }
                if !uring.sync_completions() {
                    break;
                }
            },
            Backend::Readiness(readiness) => {
                while let Some(completion) = readiness.next_completion() {
                    read += 1;
                    self.dispatch(completion.user_data, completion.result, completion.flags);
                }
            }
        }
        let completed = &self.counters.completed;
        completed.set(completed.get() + read as u64);
        read
    }

    /// Runs one round of the loop that ends all operations in flight. Even rounds cancel the
    /// operations; every round waits.
    pub(crate) fn drain(&self, round: usize) -> io::Result<()> {
        if round.is_multiple_of(2) {
            let entry = opcode::AsyncCancel2::new(types::CancelBuilder::any().all())
                .build()
                .user_data(CANCEL);
            // If the queue is full, the enter below empties it, and a later round has room.
            // SAFETY: the entry has no pointers, so no memory must stay valid.
            let _ = unsafe { self.backend.push(&entry, 0) };
        }
        // Most operations end within the first enter; the timeout is for operations in the kernel's
        // worker threads.
        let result = self
            .backend
            .enter_and_wait(1, Some(Duration::from_millis(10)));
        self.reap();
        result.map(drop).or_else(Self::ignore_transient)
    }
}
