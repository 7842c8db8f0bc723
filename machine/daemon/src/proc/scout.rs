//! [`Scouts`]: ordinary threads that look things up in `/proc` for those that are elevated.
//!
//! While a process ends that was waited for, a thread that looks up one of its files may loop in the kernel until another thread that is
//! in the middle of the same has got on (`d_invalidate`); other files wait for what their owner does (`exec`, a lease). An elevated
//! thread would stand there above the one it waits for. So elevated threads look up no path: they send a scout, and go on with something
//! else until its answer comes, or until it is too late for one.
//!
//! ```text
//!   elevated ──errand──▶ Stack, eventfd ──▶ scout (SCHED_OTHER) ──answer──▶ Stack, eventfd ──▶ elevated
//! ```
//!
//! An elevated thread waits neither for a scout nor for a lock that one may hold: both ways are a [`Stack`]. A scout that sets out starts
//! another one if none is left, up to [`THREADS`]; those that are not needed for a second end.
//!
//! Unsafe code: the stack's pointers, and a thread's own slice.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::marker::PhantomData;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use upshift_elevate::sys::{Kernel, SchedAttr, Sys};

use crate::abort::AbortOnPanic;

/// Scouts that may be on their way at once.
const THREADS: usize = 32;

/// They need little.
const STACK: usize = 256 * 1024;

/// A scout beside the first one that has had nothing to do for so long ends.
const IDLE: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// Of other ordinary threads a scout is to wait for none for long (Linux 6.12).
const SLICE: Duration = Duration::from_micros(100);

/// Values from many threads, taken all at once. Neither way waits for anything.
pub(crate) struct Stack<T> {
    head: AtomicPtr<Node<T>>,
    _owns: PhantomData<T>,
}

struct Node<T> {
    value: T,
    next: *mut Node<T>,
}

// SAFETY: values are moved in by one thread and out by another one.
unsafe impl<T: Send> Send for Stack<T> {}
// SAFETY: as above; there are no references to values inside.
unsafe impl<T: Send> Sync for Stack<T> {}

impl<T> Default for Stack<T> {
    fn default() -> Stack<T> {
        Stack {
            head: AtomicPtr::new(null_mut()),
            _owns: PhantomData,
        }
    }
}

impl<T> fmt::Debug for Stack<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stack")
    }
}

impl<T> Stack<T> {
    pub(crate) fn put(&self, value: T) {
        let mut next = self.head.load(Relaxed);
        let node = Box::into_raw(Box::new(Node { value, next }));
        loop {
            match self
                .head
                .compare_exchange_weak(next, node, Release, Relaxed)
            {
                Ok(_) => return,
                Err(now) => {
                    next = now;
                    // SAFETY: it is not in the stack yet, so it is this thread's.
                    unsafe { (*node).next = next };
                }
            }
        }
    }

    /// All there are, oldest first.
    pub(crate) fn take(&self) -> Vec<T> {
        let mut node = self.head.swap(null_mut(), Acquire);
        let mut all = Vec::new();
        while !node.is_null() {
            // SAFETY: made by `put`, and out of the stack, of which one thread has taken it.
            let taken = unsafe { Box::from_raw(node) };
            node = taken.next;
            all.push(taken.value);
        }
        all.reverse();
        all
    }
}

impl<T> Drop for Stack<T> {
    fn drop(&mut self) {
        self.take();
    }
}

/// Where answers go: a stack, and the eventfd that wakes the thread that has asked.
#[derive(Debug)]
pub(crate) struct Answers<T> {
    stack: Stack<T>,
    pub(crate) eventfd: OwnedFd,
}

impl<T> Answers<T> {
    pub(crate) fn new() -> std::io::Result<Answers<T>> {
        Ok(Answers {
            stack: Stack::default(),
            eventfd: upshift_board::os::doorbell()?,
        })
    }

    pub(crate) fn put(&self, answer: T) {
        self.stack.put(answer);
        // An eventfd that is open and does not block can always be rung.
        let _ = upshift_board::os::ring(self.eventfd.as_fd());
    }

    pub(crate) fn take(&self) -> Vec<T> {
        let mut word = [0u8; 8];
        let _ = rustix::io::read(&self.eventfd, &mut word);
        self.stack.take()
    }
}

type Errand = Box<dyn FnOnce() + Send>;

/// What a scout is doing, for others to see.
#[derive(Debug, Clone)]
pub(crate) struct Whereabouts(Arc<File>);

thread_local! {
    static OWN: Option<Whereabouts> = File::open("/proc/thread-self/stat")
        .ok()
        .map(|file| Whereabouts(Arc::new(file)));
}

impl Whereabouts {
    /// Those of the calling thread; `None` if no descriptors are left.
    pub(crate) fn own() -> Option<Whereabouts> {
        OWN.with(Clone::clone)
    }

    /// Whether it sleeps in the kernel: it neither computes nor waits for a CPU. One system call, which waits for nothing.
    pub(crate) fn sleeps(&self) -> bool {
        let mut text = [0; 64];
        let read = self.0.read_at(&mut text, 0).unwrap_or(0);
        matches!(state(&text[..read]), Some(b'S' | b'D'))
    }
}

/// The state in the beginning of a file `stat`: the letter after the name, which is in parentheses.
fn state(stat: &[u8]) -> Option<u8> {
    let end = stat.iter().rposition(|&it| it == b')')?;
    stat.get(end + 2).copied()
}

/// See the module. Scouts outlive it until they are back, so errands hold nothing that has to end with the daemon.
#[derive(Debug)]
pub(crate) struct Scouts {
    camp: Arc<Camp>,
}

struct Camp {
    /// As they come, and as scouts take them. Only scouts lock.
    errands: Stack<Errand>,
    queue: Mutex<VecDeque<Errand>>,
    /// One for each errand.
    eventfd: OwnedFd,
    threads: AtomicUsize,
    idle: AtomicUsize,
    ends: AtomicBool,
}

impl fmt::Debug for Camp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Camp")
    }
}

impl Scouts {
    /// Starts the first one.
    ///
    /// # Errors
    /// No threads or descriptors are left.
    pub(crate) fn start() -> std::io::Result<Scouts> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE;
        let camp = Arc::new(Camp {
            errands: Stack::default(),
            queue: Mutex::default(),
            eventfd: rustix::event::eventfd(0, flags)?,
            threads: AtomicUsize::new(0),
            idle: AtomicUsize::new(0),
            ends: AtomicBool::new(false),
        });
        camp.add_thread()?;
        Ok(Scouts { camp })
    }

    /// Sends a scout: `errand` runs on an ordinary thread, soon.
    pub(crate) fn send(&self, errand: impl FnOnce() + Send + 'static) {
        self.camp.errands.put(Box::new(errand));
        let _ = upshift_board::os::ring(self.camp.eventfd.as_fd());
    }
}

impl Drop for Scouts {
    fn drop(&mut self) {
        self.camp.ends.store(true, SeqCst);
        let _ = upshift_board::os::ring(self.camp.eventfd.as_fd());
    }
}

impl Camp {
    fn add_thread(self: &Arc<Camp>) -> std::io::Result<()> {
        let camp = Arc::clone(self);
        self.threads.fetch_add(1, AcqRel);
        self.idle.fetch_add(1, AcqRel);
        let started = std::thread::Builder::new()
            .name("upshift-scout".into())
            .stack_size(STACK)
            .spawn(move || camp.run());
        if started.is_err() {
            self.threads.fetch_sub(1, AcqRel);
            self.idle.fetch_sub(1, AcqRel);
        }
        started.map(drop)
    }

    fn run(self: Arc<Camp>) {
        let attr = SchedAttr {
            runtime: SLICE.as_nanos() as u64,
            ..SchedAttr::normal()
        };
        // Without it, it is as late as other threads are.
        let _ = Kernel.sched_setattr(0, &attr);
        loop {
            let mut polled = [PollFd::new(&self.eventfd, PollFlags::IN)];
            // The only one sleeps until it is sent.
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
                // Without it, the errands that come meanwhile wait for this one.
                let _ = self.add_thread();
            }
            if let Some(errand) = self.next() {
                let abort = AbortOnPanic;
                errand();
                std::mem::forget(abort);
            }
            self.idle.fetch_add(1, AcqRel);
        }
    }

    fn next(&self) -> Option<Errand> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.is_empty() {
            queue.extend(self.errands.take());
        }
        queue.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_gives_what_was_put_once_and_in_order() {
        let stack = Stack::default();
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                let stack = &stack;
                scope.spawn(move || (0..1000u32).for_each(|it| stack.put((thread, it))));
            }
            let mut next = [0; 4];
            while next != [1000; 4] {
                for (thread, it) in stack.take() {
                    assert_eq!(it, next[thread as usize]);
                    next[thread as usize] += 1;
                }
            }
        });
        stack.put((0, 0));
    }

    #[test]
    fn a_thread_that_sleeps_is_seen_and_one_that_computes_is_not_taken_for_it() {
        assert_eq!(state(b"7 (upshift-scout) S 1 1"), Some(b'S'));
        assert_eq!(state(b"7 (a) b) R 1"), Some(b'R'));
        assert_eq!((state(b"7 (a)"), state(b"")), (None, None));
        let own = Whereabouts::own().unwrap();
        assert!(!own.sleeps());
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(Whereabouts::own().unwrap()).unwrap();
            let _ = ended.recv();
        });
        let its = told.recv().unwrap();
        upshift_testing::until("it sleeps", || its.sleeps());
        drop(end);
        thread.join().unwrap();
        // It has ended.
        upshift_testing::until("it has ended", || !its.sleeps());
    }

    #[test]
    fn scouts_that_do_not_come_back_hold_up_no_others() {
        let scouts = Scouts::start().unwrap();
        let answers = Arc::new(Answers::new().unwrap());
        let (stuck, held) = std::sync::mpsc::channel::<()>();
        let held = Arc::new(Mutex::new(held));
        for _ in 0..THREADS - 1 {
            let held = Arc::clone(&held);
            scouts.send(move || assert!(held.lock().unwrap().recv().is_err()));
        }
        for it in 0..100 {
            let answers = Arc::clone(&answers);
            scouts.send(move || answers.put(it));
        }
        let found = Mutex::new(Vec::new());
        upshift_testing::until("the scout", || {
            found.lock().unwrap().extend(answers.take());
            found.lock().unwrap().len() == 100
        });
        let mut found = found.into_inner().unwrap();
        found.sort_unstable();
        assert_eq!(found, (0..100).collect::<Vec<_>>());
        drop(stuck);
        let camp = Arc::clone(&scouts.camp);
        upshift_testing::until("the scout", || {
            camp.idle.load(Acquire) == camp.threads.load(Acquire)
        });
        upshift_testing::until("the scout", || camp.threads.load(Acquire) == 1);
        drop(scouts);
        upshift_testing::until("the scout", || Arc::strong_count(&camp) == 1);
    }
}
