//! Starts the I/O that coroutines request, at their level, on the ring of their vCPU.

#[cfg(feature = "hyper")]
use upshift_core::Level;
use upshift_ring::{DeferredCall, Fd, Operation, Submission};

use super::{Worker, more_urgent_than};
use crate::time::clock;

impl Worker {
    #[inline]
    pub(crate) fn start<T: Operation>(&self, operation: T) -> Submission<T> {
        self.ring.start(operation, self.io_level())
    }

    #[cfg(feature = "hyper")]
    pub(crate) fn start_at<T: Operation>(&self, operation: T, level: Level) -> Submission<T> {
        self.outbox.add(level.get());
        self.ring.start(operation, level.get())
    }

    /// Starts a file read. The vCPU submits a few gathered reads before its next poll.
    pub(crate) fn start_read<T: Operation>(&self, operation: T) -> Submission<T> {
        let submission = self.start(operation);
        self.outbox.add_read();
        submission
    }

    /// Returns the level of the I/O that the calling coroutine starts now, and adds it to the
    /// outbox.
    #[inline]
    pub(crate) fn io_level(&self) -> u8 {
        let level = self.executor.running_level().unwrap_or_default().get();
        self.outbox.add(level);
        level
    }

    /// Ends those operations on `fd` whose futures have been dropped. May be called in the middle
    /// of a poll. Returns deferred calls of user code, which the caller must make.
    pub(crate) fn settle(&self, fd: &Fd) -> Vec<DeferredCall> {
        let index = self.executor.index();
        self.recorder().reaped(index, || self.ring.settle(fd));
        self.ring.take_deferred()
    }

    /// Returns whether the calling coroutine can continue undisturbed, because no I/O of a more
    /// urgent level is in flight on the ring, and no timer expires within `time` ns.
    pub(crate) fn is_undisturbed(&self, time: u64) -> bool {
        let level = self.executor.running_level().unwrap_or_default().get();
        self.ring.levels_in_flight() & more_urgent_than(level) == 0
            && (self.timers.next_deadline()).is_none_or(|deadline| deadline > clock::now() + time)
    }
}
