//! [`ProcReader`] owns the *readers*. These are ordinary threads (SCHED_OTHER) that do work which
//! may block, so that the daemon's elevated threads (SCHED_FIFO) need not do it.
//!
//! A thread that looks up a file of an ending process may loop in the kernel until another thread
//! has finished the same lookup (`d_invalidate`). Other lookups can block until the owner of the
//! file acts (`exec`, a lease). Closing a client's descriptor can block, too, because a TCP
//! connection may linger for minutes, and a file system in user space may not answer. An elevated
//! thread that waited could keep the thread that it waits for off the CPU. So elevated threads look
//! up no path and close no descriptor of a client. Instead they send a job to the readers, and
//! continue with other work until the answer arrives or is too late.
//!
//! ```text
//!   elevated ──job──▶ Stack, eventfd ──▶ reader (SCHED_OTHER) ──answer──▶ Answers ──▶ elevated
//! ```
//!
//! Jobs that may wait for the same party share a [`JobClass`]. Only a limited number of jobs of a
//! class run at the same time, so the processes of a user delay only the jobs of this user. An
//! elevated thread waits neither for a reader nor for a lock that a reader may hold.
//!
//! A reader that begins a job starts another reader if no idle reader remains, up to
//! [`MAX_READERS`]. Readers that are idle for a second end, except the last one.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use upshift_elevate::sys::{Kernel, SchedAttr, Sys};

use super::stack::Stack;
use crate::abort::AbortOnPanic;

/// Maximum number of readers. It is enough for the jobs of [`JobClass::Rules`] and
/// [`JobClass::Closing`] at their limits, and for the jobs of a few users.
const MAX_READERS: usize = 96;

const STACK_BYTES: usize = 256 * 1024;

/// Time after which an idle reader ends, except the last one.
const IDLE_TIMEOUT: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// Time slice of a reader. Since Linux 6.12, a thread with a short slice waits less for other
/// ordinary threads.
const TIME_SLICE: Duration = Duration::from_micros(100);

/// Maximum number of descriptors that may wait to be closed before new clients must wait.
const MAX_CLOSING: usize = 1024;

/// Jobs that may wait for the same party.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum JobClass {
    /// Lookups for the registering processes of this user.
    User(u32),
    /// Lookups for the `[[assign]]` rules.
    Rules,
    /// Closing descriptors of clients.
    Closing,
    /// Lookups for sessions after a change of the configuration.
    Own,
}

impl JobClass {
    fn limit(self) -> usize {
        match self {
            JobClass::User(_) => 2,
            JobClass::Rules => 16,
            JobClass::Closing => 64,
            JobClass::Own => MAX_READERS,
        }
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// The handle of the readers. The readers live until their jobs have finished, which may be after
/// the handle is dropped, so a job must hold nothing that has to end with the daemon.
#[derive(Debug)]
pub(crate) struct ProcReader {
    readers: Arc<Readers>,
    closing: Arc<AtomicUsize>,
}

struct Readers {
    /// Jobs in the order of their arrival.
    arrived: Stack<(JobClass, Job)>,
    /// Locked by readers only.
    queue: Mutex<Queue>,
    /// Counts one for each job.
    eventfd: OwnedFd,
    threads: AtomicUsize,
    idle: AtomicUsize,
    is_ending: AtomicBool,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<(JobClass, Job)>,
    running: HashMap<JobClass, usize>,
}

impl Queue {
    fn next(&mut self) -> Option<(JobClass, Job)> {
        let running = &self.running;
        let has_room = |class: JobClass| {
            running
                .get(&class)
                .is_none_or(|&count| count < class.limit())
        };
        let index = self.jobs.iter().position(|(class, _)| has_room(*class))?;
        let (class, job) = self.jobs.remove(index)?;
        *self.running.entry(class).or_default() += 1;
        Some((class, job))
    }

    fn finish(&mut self, class: JobClass) {
        if let Some(running) = self.running.get_mut(&class) {
            *running -= 1;
            if *running == 0 {
                self.running.remove(&class);
            }
        }
    }
}

impl fmt::Debug for Readers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Readers")
    }
}

impl ProcReader {
    pub(crate) fn start() -> io::Result<ProcReader> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE;
        let readers = Arc::new(Readers {
            arrived: Stack::default(),
            queue: Mutex::default(),
            eventfd: rustix::event::eventfd(0, flags)?,
            threads: AtomicUsize::new(0),
            idle: AtomicUsize::new(0),
            is_ending: AtomicBool::new(false),
        });
        readers.add_thread()?;
        Ok(ProcReader {
            readers,
            closing: Arc::default(),
        })
    }

    pub(crate) fn send(&self, class: JobClass, job: impl FnOnce() + Send + 'static) {
        self.readers.arrived.put((class, Box::new(job)));
        let _ = upshift_board::os::ring(self.readers.eventfd.as_fd());
    }

    pub(crate) fn close(&self, all: Vec<OwnedFd>) {
        let count = all.len();
        self.closing.fetch_add(count, Relaxed);
        let closing = Arc::clone(&self.closing);
        self.send(JobClass::Closing, move || {
            drop(all);
            closing.fetch_sub(count, Relaxed);
        });
    }

    /// Returns whether more than [`MAX_CLOSING`] descriptors wait to be closed, so that new clients
    /// must wait.
    pub(crate) fn closes_too_much(&self) -> bool {
        self.closing.load(Relaxed) > MAX_CLOSING
    }
}

impl Drop for ProcReader {
    fn drop(&mut self) {
        self.readers.is_ending.store(true, SeqCst);
        let _ = upshift_board::os::ring(self.readers.eventfd.as_fd());
    }
}

impl Readers {
    fn add_thread(self: &Arc<Readers>) -> io::Result<()> {
        let readers = Arc::clone(self);
        self.threads.fetch_add(1, AcqRel);
        self.idle.fetch_add(1, AcqRel);
        let started = std::thread::Builder::new()
            .name("upshift-reader".into())
            .stack_size(STACK_BYTES)
            .spawn(move || readers.run());
        if started.is_err() {
            self.threads.fetch_sub(1, AcqRel);
            self.idle.fetch_sub(1, AcqRel);
        }
        started.map(drop)
    }

    fn run(self: Arc<Readers>) {
        let attr = SchedAttr {
            runtime: TIME_SLICE.as_nanos() as u64,
            ..SchedAttr::normal()
        };
        // A refusal is harmless, because the reader then only waits longer for other ordinary
        // threads.
        let _ = Kernel.sched_setattr(0, &attr);
        loop {
            let mut polled = [PollFd::new(&self.eventfd, PollFlags::IN)];
            // The last reader sleeps until a job arrives.
            let has_others = self.threads.load(Acquire) > 1;
            let rung = rustix::event::poll(&mut polled, has_others.then_some(&IDLE_TIMEOUT));
            if self.is_ending.load(SeqCst) {
                // The next reader must also notice the end.
                let _ = upshift_board::os::ring(self.eventfd.as_fd());
                return;
            }
            if matches!(rung, Ok(0)) {
                let spare = |idle: usize| (idle > 1).then(|| idle - 1);
                if self.idle.fetch_update(AcqRel, Acquire, spare).is_ok() {
                    self.threads.fetch_sub(1, AcqRel);
                    return;
                }
                continue;
            }
            let mut word = [0u8; 8];
            // The read fails if another reader has already taken the value.
            let Ok(_) = rustix::io::read(&self.eventfd, &mut word) else {
                continue;
            };
            let was_last_idle = self.idle.fetch_sub(1, AcqRel) == 1;
            if was_last_idle && self.threads.load(Acquire) < MAX_READERS {
                // If no thread can be started, jobs that arrive meanwhile wait for this reader.
                let _ = self.add_thread();
            }
            self.work();
            self.idle.fetch_add(1, AcqRel);
        }
    }

    /// Runs jobs until none may run. A reader that was woken for a job leaves it in the queue if
    /// its class is at the limit. No wake-up follows for this job, so each reader that finishes a
    /// job looks for such jobs.
    fn work(&self) {
        let mut queue = self.lock();
        queue.jobs.extend(self.arrived.take());
        while let Some((class, job)) = queue.next() {
            drop(queue);
            let abort = AbortOnPanic;
            job();
            std::mem::forget(abort);
            queue = self.lock();
            queue.finish(class);
            queue.jobs.extend(self.arrived.take());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::super::stack::Answers;
    use super::*;

    /// Starts `jobs` jobs that block until the returned sender is dropped.
    fn hold_up(readers: &ProcReader, class: JobClass, jobs: usize) -> Sender<()> {
        let (end, ended) = channel();
        let ended: Arc<Mutex<Receiver<()>>> = Arc::new(Mutex::new(ended));
        for _ in 0..jobs {
            let ended = Arc::clone(&ended);
            readers.send(class, move || {
                assert!(ended.lock().unwrap().recv().is_err())
            });
        }
        end
    }

    #[test]
    fn jobs_that_block_delay_only_their_own_class() {
        let readers = ProcReader::start().unwrap();
        let answers = Arc::new(Answers::new().unwrap());
        let send = |class, value: usize| {
            let answers = Arc::clone(&answers);
            readers.send(class, move || answers.put(value));
        };
        let blocked = JobClass::User(7);
        let stuck = hold_up(&readers, blocked, blocked.limit());
        (0..10).for_each(|value| send(blocked, 100 + value));
        (0..100).for_each(|value| send(JobClass::User(8), value));
        let found = Mutex::new(Vec::new());
        let received = |count: usize| {
            upshift_testing::wait_until("the answers", || {
                let mut found = found.lock().unwrap();
                found.extend(answers.take());
                found.len() >= count
            });
            let mut found = found.lock().unwrap().clone();
            found.sort_unstable();
            found
        };
        assert_eq!(received(100), (0..100).collect::<Vec<_>>());
        drop(stuck);
        assert_eq!(received(110), (0..110).collect::<Vec<_>>());
    }

    #[test]
    fn readers_end_when_no_job_is_left() {
        let readers = ProcReader::start().unwrap();
        drop(hold_up(&readers, JobClass::Rules, 100));
        let all = Arc::clone(&readers.readers);
        upshift_testing::wait_until("all but one have ended", || {
            all.threads.load(Acquire) == 1 && all.idle.load(Acquire) == 1
        });
        drop(readers);
        upshift_testing::wait_until("the last has ended, too", || Arc::strong_count(&all) == 1);
    }
}
