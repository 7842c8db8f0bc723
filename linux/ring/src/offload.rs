//! Makes blocking calls on other threads, for [`Driver::Readiness`](crate::Driver::Readiness).
//! These threads do what the kernel's worker threads do for io_uring.
//!
//! ```text
//!   Queued ──run──► Running ──call returns──► posted: result of the call
//!     ├──── cancelled, or dropped unrun ──────────► posted: ECANCELED
//!     └──── refused ──────────────────────────────► posted: another errno
//! ```
//!
//! Cancelling does not interrupt a running call, which ends when the kernel ends it; it only keeps
//! the call from being repeated. The memory that the call uses must stay valid until the result is
//! posted; the slot of the operation owns this memory until then.

use crate::readiness::sqe::Sqe;
use crate::readiness::{blocking, epoll};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fmt, io, mem, thread};

/// A pool of threads that may block. A runtime can provide one; without it, the ring starts a
/// thread for each call.
pub trait Offload: Send + Sync + fmt::Debug {
    /// Arranges that another thread [runs](Job::run) `job`. Jobs of more urgent levels (0 is the
    /// most urgent) should run first. A job that is dropped ends with ECANCELED.
    fn offload(&self, level: u8, job: Job);
}

/// Starts a thread for each call. If that fails, the caller's own thread makes the call.
#[derive(Debug)]
pub(crate) struct ThreadPerCall;

impl Offload for ThreadPerCall {
    fn offload(&self, _level: u8, job: Job) {
        make_on_thread_or_here(job, |call| {
            let builder = thread::Builder::new().name("upshift-ring/file".into());
            builder.stack_size(64 << 10).spawn(call).map(drop)
        });
    }
}

/// Makes the call of `job` on a thread that `start` starts, or on this thread if `start` fails.
fn make_on_thread_or_here(
    mut job: Job,
    start: impl FnOnce(Box<dyn FnOnce() + Send>) -> io::Result<()>,
) {
    if let Some(call) = job.0.take() {
        let fallback = call.clone();
        if start(Box::new(move || call.make())).is_err() {
            fallback.make();
        }
    }
}

/// A call that may block, to be made once.
pub struct Job(Option<Arc<Call>>);

impl Job {
    pub(crate) fn new(call: &Arc<Call>) -> Self {
        Self(Some(call.clone()))
    }

    /// Makes the call and posts the result to the ring.
    pub fn run(mut self) {
        if let Some(call) = self.0.take() {
            call.make();
        }
    }

    /// Ends the operation with an errno, because no thread will make the call.
    pub fn refuse(mut self, errno: i32) {
        self.end(-errno);
    }

    fn end(&mut self, result: i32) {
        if let Some(call) = self.0.take()
            && call.take()
        {
            call.post(result);
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.end(-libc::ECANCELED);
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").finish_non_exhaustive()
    }
}

pub(crate) struct Call {
    request: Sqe,
    is_taken: AtomicBool,
    is_cancelled: AtomicBool,
    posts: Arc<Posts>,
}

impl Call {
    pub(crate) fn new(request: Sqe, posts: &Arc<Posts>) -> Arc<Self> {
        Arc::new(Self {
            request,
            is_taken: AtomicBool::new(false),
            is_cancelled: AtomicBool::new(false),
            posts: posts.clone(),
        })
    }

    /// Prevents the call. Returns false if a thread has taken the call already; that thread then
    /// posts the result.
    #[must_use]
    pub(crate) fn cancel(&self) -> bool {
        self.is_cancelled.store(true, Ordering::Relaxed);
        self.take()
    }

    fn take(&self) -> bool {
        !self.is_taken.swap(true, Ordering::AcqRel)
    }

    fn make(&self) {
        if self.take() {
            let is_cancelled = || self.is_cancelled.load(Ordering::Relaxed);
            self.post(blocking::make_call(&self.request, is_cancelled));
        }
    }

    fn post(&self, result: i32) {
        self.posts.post(self.request.user_data, result);
    }
}

/// Results on their way back to the ring, and the eventfd that announces them.
pub(crate) struct Posts {
    results: Mutex<Vec<(u64, i32)>>,
    pub(crate) eventfd: OwnedFd,
}

impl Posts {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            results: Mutex::default(),
            eventfd: epoll::eventfd()?,
        })
    }

    fn results(&self) -> MutexGuard<'_, Vec<(u64, i32)>> {
        self.results.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts a result, from any thread. Only the first result since the last
    /// [`take`](Self::take) writes to the eventfd.
    fn post(&self, user_data: u64, result: i32) {
        let is_first = {
            let mut results = self.results();
            results.push((user_data, result));
            results.len() == 1
        };
        if is_first {
            epoll::signal(&self.eventfd);
        }
    }

    /// Takes all results, on the ring's thread. A result posted during the call is either returned
    /// or signals the eventfd again.
    pub(crate) fn take(&self) -> Vec<(u64, i32)> {
        epoll::drain(&self.eventfd);
        mem::take(&mut *self.results())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use io_uring::{opcode, types};

    #[test]
    fn the_caller_makes_the_call_if_no_thread_can_be_started() {
        let posts = Arc::new(Posts::new().unwrap());
        let entry = opcode::Fsync::new(types::Fd(-1)).build().user_data(7);
        let call = Call::new(Sqe::from_entry(&entry), &posts);
        make_on_thread_or_here(Job::new(&call), |_| {
            Err(io::Error::from_raw_os_error(libc::EAGAIN))
        });
        assert_eq!(posts.take(), [(7, -libc::EBADF)]);
    }
}
