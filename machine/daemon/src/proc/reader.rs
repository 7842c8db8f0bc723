//! [`ProcReader`]: ordinary threads that run jobs which may wait, for elevated threads.
//!
//! A thread that looks up a file of a process which ends may loop in the kernel until another
//! thread that is in the middle of the same has got on (`d_invalidate`); other files wait for
//! their owner (`exec`, a lease), and so does closing a client's descriptor: a TCP connection
//! lingers for minutes, a file system in user space is its user's. An elevated thread would
//! stand there above the thread that it waits for. So elevated threads look up no path and close
//! nothing of a client's: they send a job, and go on until its answer comes, or until it is too
//! late for one.
//!
//! ```text
//!   elevated ──job──▶ Stack, eventfd ──▶ reader (SCHED_OTHER) ──answer──▶ Answers ──▶ elevated
//! ```
//!
//! Jobs that may wait for the same party share a [`Lane`], and only so many of a lane run at
//! once: the processes of a user hold up the jobs of that user alone. An elevated thread waits
//! neither for a reader nor for a lock that one may hold. A reader that begins a job starts
//! another reader if none is left, up to [`THREADS`]; readers that are idle for a second end.

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

/// Readers that may run at once: all of the two wide lanes, and some for users.
const THREADS: usize = 96;

/// Stack of a reader, bytes.
const STACK: usize = 256 * 1024;

/// A reader beside the first one that has been idle for so long ends.
const IDLE: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// Slice of a reader, so that it waits for no other ordinary thread for long (Linux 6.12).
const SLICE: Duration = Duration::from_micros(100);

/// Descriptors that may wait to be closed before nothing more is let in.
const CLOSING: usize = 1024;

/// Jobs that may wait for the same party.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Lane {
    /// Files of the processes of a user that register.
    User(u32),
    /// Files of the processes that rules are held against.
    Rules,
    /// Closing descriptors of clients.
    Closing,
    /// Jobs of the daemon's own.
    Own,
}

impl Lane {
    /// Returns the number of jobs that may run at once.
    fn width(self) -> usize {
        match self {
            Lane::User(_) => 2,
            Lane::Rules => 16,
            Lane::Closing => 64,
            Lane::Own => THREADS,
        }
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// The handle of the readers. They outlive it until their jobs are done, so jobs hold nothing
/// that has to end with the daemon.
#[derive(Debug)]
pub(crate) struct ProcReader {
    readers: Arc<Readers>,
    /// Descriptors that wait to be closed.
    closing: Arc<AtomicUsize>,
}

struct Readers {
    /// Jobs as they come.
    arrived: Stack<(Lane, Job)>,
    /// Only readers lock it.
    queue: Mutex<Queue>,
    /// Counts one for each job.
    eventfd: OwnedFd,
    threads: AtomicUsize,
    idle: AtomicUsize,
    ends: AtomicBool,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<(Lane, Job)>,
    running: HashMap<Lane, usize>,
}

impl Queue {
    /// Takes the oldest job whose lane has room.
    fn next(&mut self) -> Option<(Lane, Job)> {
        let running = &self.running;
        let has_room = |lane: Lane| running.get(&lane).is_none_or(|&it| it < lane.width());
        let at = self.jobs.iter().position(|(lane, _)| has_room(*lane))?;
        let (lane, job) = self.jobs.remove(at)?;
        *self.running.entry(lane).or_default() += 1;
        Some((lane, job))
    }

    fn is_done(&mut self, lane: Lane) {
        if let Some(running) = self.running.get_mut(&lane) {
            *running -= 1;
            if *running == 0 {
                self.running.remove(&lane);
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
    /// Starts the first reader.
    ///
    /// # Errors
    /// No threads or descriptors are left.
    pub(crate) fn start() -> io::Result<ProcReader> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE;
        let readers = Arc::new(Readers {
            arrived: Stack::default(),
            queue: Mutex::default(),
            eventfd: rustix::event::eventfd(0, flags)?,
            threads: AtomicUsize::new(0),
            idle: AtomicUsize::new(0),
            ends: AtomicBool::new(false),
        });
        readers.add_thread()?;
        Ok(ProcReader {
            readers,
            closing: Arc::default(),
        })
    }

    /// Has an ordinary thread run `job`, soon.
    pub(crate) fn send(&self, lane: Lane, job: impl FnOnce() + Send + 'static) {
        self.readers.arrived.put((lane, Box::new(job)));
        let _ = upshift_board::os::ring(self.readers.eventfd.as_fd());
    }

    /// Has descriptors of a client closed.
    pub(crate) fn close(&self, all: Vec<OwnedFd>) {
        let count = all.len();
        self.closing.fetch_add(count, Relaxed);
        let closing = Arc::clone(&self.closing);
        self.send(Lane::Closing, move || {
            drop(all);
            closing.fetch_sub(count, Relaxed);
        });
    }

    /// Whether so much waits to be closed that nothing more may come in.
    pub(crate) fn closes_too_much(&self) -> bool {
        self.closing.load(Relaxed) > CLOSING
    }
}

impl Drop for ProcReader {
    fn drop(&mut self) {
        self.readers.ends.store(true, SeqCst);
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
            .stack_size(STACK)
            .spawn(move || readers.run());
        if started.is_err() {
            self.threads.fetch_sub(1, AcqRel);
            self.idle.fetch_sub(1, AcqRel);
        }
        started.map(drop)
    }

    fn run(self: Arc<Readers>) {
        let attr = SchedAttr {
            runtime: SLICE.as_nanos() as u64,
            ..SchedAttr::normal()
        };
        // Without it, it is as late as other threads are.
        let _ = Kernel.sched_setattr(0, &attr);
        loop {
            let mut polled = [PollFd::new(&self.eventfd, PollFlags::IN)];
            // The only one sleeps until a job comes.
            let others = self.threads.load(Acquire) > 1;
            let rung = rustix::event::poll(&mut polled, others.then_some(&IDLE));
            if self.ends.load(SeqCst) {
                // The next one is to hear of it, too.
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
            // Another one was faster.
            let Ok(_) = rustix::io::read(&self.eventfd, &mut word) else {
                continue;
            };
            let last = self.idle.fetch_sub(1, AcqRel) == 1;
            if last && self.threads.load(Acquire) < THREADS {
                // Without it, the jobs that come meanwhile wait for this one.
                let _ = self.add_thread();
            }
            self.work();
            self.idle.fetch_add(1, AcqRel);
        }
    }

    /// Runs a job, and those that waited in its lane. Nothing else has counted the latter: the
    /// reader that was woken for one found the lane full.
    fn work(&self) {
        let mut queue = self.lock();
        queue.jobs.extend(self.arrived.take());
        while let Some((lane, job)) = queue.next() {
            drop(queue);
            let abort = AbortOnPanic;
            job();
            std::mem::forget(abort);
            queue = self.lock();
            queue.is_done(lane);
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

    /// Sends jobs that wait until the sender is dropped.
    fn hold_up(readers: &ProcReader, lane: Lane, jobs: usize) -> Sender<()> {
        let (end, ended) = channel();
        let ended: Arc<Mutex<Receiver<()>>> = Arc::new(Mutex::new(ended));
        for _ in 0..jobs {
            let ended = Arc::clone(&ended);
            readers.send(lane, move || assert!(ended.lock().unwrap().recv().is_err()));
        }
        end
    }

    #[test]
    fn jobs_that_do_not_end_hold_up_no_other_lane_and_the_rest_of_theirs_until_they_end() {
        let readers = ProcReader::start().unwrap();
        let answers = Arc::new(Answers::new().unwrap());
        let ask = |lane, it: usize| {
            let answers = Arc::clone(&answers);
            readers.send(lane, move || answers.put(it));
        };
        let mallory = Lane::User(7);
        let stuck = hold_up(&readers, mallory, mallory.width());
        (0..10).for_each(|it| ask(mallory, 100 + it));
        (0..100).for_each(|it| ask(Lane::User(8), it));
        let found = Mutex::new(Vec::new());
        let have = |count: usize| {
            upshift_testing::until("the answers", || {
                let mut found = found.lock().unwrap();
                found.extend(answers.take());
                found.len() >= count
            });
            let mut found = found.lock().unwrap().clone();
            found.sort_unstable();
            found
        };
        assert_eq!(have(100), (0..100).collect::<Vec<_>>());
        drop(stuck);
        assert_eq!(have(110), (0..110).collect::<Vec<_>>());
    }

    #[test]
    fn readers_end_when_nothing_is_left_to_do() {
        let readers = ProcReader::start().unwrap();
        drop(hold_up(&readers, Lane::Rules, 100));
        let all = Arc::clone(&readers.readers);
        upshift_testing::until("all but one have ended", || {
            all.threads.load(Acquire) == 1 && all.idle.load(Acquire) == 1
        });
        drop(readers);
        upshift_testing::until("that has ended, too", || Arc::strong_count(&all) == 1);
    }
}
