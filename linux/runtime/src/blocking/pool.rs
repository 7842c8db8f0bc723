//! Threads for functions that block.
//!
//! Started on demand up to a bound, ended after ten idle seconds. The queue is
//! ordered by level, FIFO within one; it is bounded by the number of coroutines
//! that wait for it. Its threads run on all CPUs of the process, also if they are
//! started by a vCPU that is pinned to one. They belong to the runtime, and are
//! within tokio's where there is one, as the threads of vCPUs are.
//!
//! Functions that wait for each other need a thread each. The first that finds
//! all threads taken is therefore reported on standard error.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use upshift_core::{Level, SpawnError};

use crate::affinity::{self, Mask};
use crate::metrics::BlockingMetrics;
use crate::notice::{no_thread, notice};
use crate::preempt::permit::Critical;
use crate::tokio::around::Surroundings;
use crate::user_code::catch_panic::catch_panic;

const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// What a thread does.
pub(crate) enum Job {
    Function(Box<dyn FnOnce() + Send>),
    /// A call that the driver cannot make without waiting.
    Call(upshift_ring::Job),
}

impl Job {
    fn run(self) {
        match self {
            Self::Function(function) => function(),
            Self::Call(call) => call.run(),
        }
    }
}

/// A job that no thread will do.
pub(crate) struct Refused {
    pub(crate) why: io::Error,
    pub(crate) job: Job,
}

#[derive(Default)]
struct Queue {
    jobs: BTreeMap<(Level, u64), Job>,
    sequence: u64,
    threads: usize,
    idle: usize,
    closed: bool,
    /// Set when it has been reported that all threads are taken.
    reported: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
    surroundings: Surroundings,
    /// Called first on each thread.
    begin: Box<dyn Fn() + Send + Sync>,
    /// The CPUs of the process.
    cpus: Option<Mask>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The threads of a runtime.
#[derive(Debug)]
pub(crate) struct Pool {
    shared: Arc<Shared>,
    most: usize,
    name: String,
}

impl Pool {
    /// Creates a pool of at most so many threads, each within `surroundings`, which
    /// calls `begin` first.
    pub(crate) fn new(
        most: usize,
        name: String,
        surroundings: Surroundings,
        begin: impl Fn() + Send + Sync + 'static,
    ) -> Pool {
        Pool {
            shared: Arc::new(Shared {
                queue: Mutex::default(),
                work: Condvar::new(),
                surroundings,
                begin: Box::new(begin),
                cpus: affinity::current().ok(),
            }),
            most,
            name,
        }
    }

    /// Queues a job and sees to it that there is a thread for it, or gives it back: it is code of users, to be dropped neither with the lock
    /// nor in what must not be suspended.
    pub(crate) fn take(&self, level: Level, job: Job) -> Result<(), Refused> {
        if self.queue(level, job)? {
            notice(format_args!(
                "all {} threads for blocking functions are taken and more functions wait: if those that run wait for them, \
                 raise Builder::blocking_threads",
                self.most
            ));
        }
        Ok(())
    }

    /// `Ok(true)`: all threads are taken, for the first time.
    fn queue(&self, level: Level, job: Job) -> Result<bool, Refused> {
        let _critical = Critical::enter();
        let mut queue = self.shared.queue();
        if queue.closed {
            let why = io::Error::other(SpawnError::Closed);
            return Err(Refused { why, job });
        }
        let sequence = queue.sequence;
        queue.sequence += 1;
        queue.jobs.insert((level, sequence), job);
        // An idle thread stays one until it has woken up: it can be counted upon once.
        if queue.idle >= queue.jobs.len() {
            self.shared.work.notify_one();
        } else if queue.threads < self.most {
            let shared = self.shared.clone();
            let started = std::thread::Builder::new()
                .name(format!("{}-blocking", self.name))
                .spawn(move || serve(&shared));
            match started {
                Ok(thread) => {
                    // Ordinary, and on the CPU of an elevated vCPU, it might wait there for most of a second.
                    if let Some(cpus) = &self.shared.cpus {
                        affinity::restore_of(&thread, cpus);
                    }
                    queue.threads += 1;
                }
                // Others will come to it; without others it cannot be done.
                Err(_) if queue.threads > 0 => {}
                Err(error) => {
                    if let Some(job) = queue.jobs.remove(&(level, sequence)) {
                        let why = no_thread("a blocking call", &error);
                        return Err(Refused { why, job });
                    }
                }
            }
        } else {
            return Ok(!std::mem::replace(&mut queue.reported, true));
        }
        Ok(false)
    }

    pub(crate) fn metrics(&self) -> BlockingMetrics {
        let _critical = Critical::enter();
        let queue = self.shared.queue();
        BlockingMetrics {
            threads: queue.threads as u64,
            idle: queue.idle as u64,
            queued: queue.jobs.len() as u64,
        }
    }

    /// Ends the threads when they are through; what is queued is dropped.
    pub(crate) fn shut_down(&self) {
        let dropped = {
            let mut queue = self.shared.queue();
            queue.closed = true;
            std::mem::take(&mut queue.jobs)
        };
        self.shared.work.notify_all();
        drop(dropped);
    }
}

fn serve(shared: &Shared) {
    if let Some(cpus) = &shared.cpus {
        // If they have been taken away meanwhile, it goes where it may.
        let _ = affinity::restore(cpus);
    }
    (shared.begin)();
    let _within = shared.surroundings.begin();
    serve_queue(shared);
}

fn serve_queue(shared: &Shared) {
    let mut queue = shared.queue();
    loop {
        if let Some((_, job)) = queue.jobs.pop_first() {
            drop(queue);
            // A result that is not wanted any more is dropped here, and a waker of another executor called: the thread outlives their panics.
            catch_panic(|| job.run());
            queue = shared.queue();
            continue;
        }
        if queue.closed {
            break;
        }
        queue.idle += 1;
        let (woken, timeout) = shared
            .work
            .wait_timeout(queue, IDLE_TIMEOUT)
            .unwrap_or_else(PoisonError::into_inner);
        queue = woken;
        queue.idle -= 1;
        if timeout.timed_out() && queue.jobs.is_empty() {
            break;
        }
    }
    queue.threads -= 1;
}
