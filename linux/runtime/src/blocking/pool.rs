//! Threads for blocking functions.
//!
//! The threads are started on demand up to a bound, and end after ten idle seconds. The queue is
//! ordered by level, FIFO within a level, and has no bound. The threads run on all CPUs of the
//! process, even if a thread that is pinned to one CPU starts them. They belong to the runtime, and
//! to tokio's runtime if there is one, as the threads of vCPUs do.
//!
//! Functions that wait for each other need a thread each. The first function that finds all threads
//! taken is therefore reported on standard error.

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
use crate::tokio::thread_hooks::ThreadHooks;
use crate::user_code::catch_panic::catch_panic;

/// Time after which an idle thread ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Work of a thread.
pub(crate) enum Job {
    Function(Box<dyn FnOnce() + Send>),
    /// A call of the readiness driver that may wait.
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

/// A job that no thread can run.
pub(crate) struct Refused {
    pub(crate) error: io::Error,
    pub(crate) job: Job,
}

#[derive(Default)]
struct Queue {
    jobs: BTreeMap<(Level, u64), Job>,
    sequence: u64,
    /// Number of threads, and of those that wait for a job.
    threads: usize,
    idle: usize,
    closed: bool,
    /// Set once a shortage of threads has been reported.
    reported: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
    thread_hooks: ThreadHooks,
    /// Called at the start of each thread, before its hooks.
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

/// The pool of a runtime.
#[derive(Debug)]
pub(crate) struct Pool {
    shared: Arc<Shared>,
    max_threads: usize,
    name: String,
}

impl Pool {
    /// Creates a pool of at most `max_threads` threads. Each calls `begin` and then enters
    /// `thread_hooks`.
    pub(crate) fn new(
        max_threads: usize,
        name: String,
        thread_hooks: ThreadHooks,
        begin: impl Fn() + Send + Sync + 'static,
    ) -> Pool {
        Pool {
            shared: Arc::new(Shared {
                queue: Mutex::default(),
                work: Condvar::new(),
                thread_hooks,
                begin: Box::new(begin),
                cpus: affinity::current().ok(),
            }),
            max_threads,
            name,
        }
    }

    /// Queues a job and provides a thread for it, or returns the job: it is user code, which must
    /// be dropped neither under the lock nor in a critical section.
    pub(crate) fn submit(&self, level: Level, job: Job) -> Result<(), Refused> {
        if self.queue(level, job)? {
            notice(format_args!(
                "all {} threads for blocking functions are taken and more functions wait: if the running functions wait for queued ones, \
                 raise Builder::blocking_threads",
                self.max_threads
            ));
        }
        Ok(())
    }

    /// Queues a job. Returns `Ok(true)` if all threads are taken for the first time.
    fn queue(&self, level: Level, job: Job) -> Result<bool, Refused> {
        let _critical = Critical::enter();
        let mut queue = self.shared.queue();
        if queue.closed {
            let error = io::Error::other(SpawnError::Closed);
            return Err(Refused { error, job });
        }
        let sequence = queue.sequence;
        queue.sequence += 1;
        queue.jobs.insert((level, sequence), job);
        // A notified thread counts as idle until it has woken up. So each queued job needs an idle
        // thread of its own.
        if queue.idle >= queue.jobs.len() {
            self.shared.work.notify_one();
        } else if queue.threads < self.max_threads {
            let shared = self.shared.clone();
            let started = std::thread::Builder::new()
                .name(format!("{}-blocking", self.name))
                .spawn(move || serve(&shared));
            match started {
                Ok(thread) => {
                    // An ordinary thread on the CPU of an elevated vCPU might wait there for most
                    // of a second.
                    if let Some(cpus) = &self.shared.cpus {
                        affinity::set_of_thread(&thread, cpus);
                    }
                    queue.threads += 1;
                }
                // The other threads run the job later; without other threads nothing can run it.
                Err(_) if queue.threads > 0 => {}
                Err(error) => {
                    if let Some(job) = queue.jobs.remove(&(level, sequence)) {
                        let error = no_thread("a blocking call", &error);
                        return Err(Refused { error, job });
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

    /// Ends the threads after their current jobs; queued jobs are dropped.
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
        // If the CPUs have been taken away meanwhile, the thread stays where it is.
        let _ = affinity::set(cpus);
    }
    (shared.begin)();
    let _hooks = shared.thread_hooks.begin();
    serve_queue(shared);
}

fn serve_queue(shared: &Shared) {
    let mut queue = shared.queue();
    loop {
        if let Some((_, job)) = queue.jobs.pop_first() {
            drop(queue);
            // The job may drop an unwanted result, or call a waker of another executor: the thread
            // outlives their panics.
            catch_panic(|| job.run());
            queue = shared.queue();
            continue;
        }
        if queue.closed {
            break;
        }
        queue.idle += 1;
        let (guard, timeout) = shared
            .work
            .wait_timeout(queue, IDLE_TIMEOUT)
            .unwrap_or_else(PoisonError::into_inner);
        queue = guard;
        queue.idle -= 1;
        if timeout.timed_out() && queue.jobs.is_empty() {
            break;
        }
    }
    queue.threads -= 1;
}
