//! [`Closer`]: closes what came from clients, on threads of its own.
//!
//! Closing the last descriptor of a file may take time: a TCP connection can linger for minutes, a file of a
//! user's own file system is flushed by that user, and the kernel gives the memory of a large file in memory back page by page. Descriptors travel in packets and in packets of sockets that travel, so what
//! a connection holds is not known before it is closed, either. So all of it is closed here; [`THREADS`] threads may wait at
//! once, the rest queues. Nothing is closed by the control thread but what is known to be harmless: small memory files.
//!
//! One thread is there from the start; another one is started when none has taken anything for [`STUCK`], and ends when there has
//! been nothing to close for a second. They are elevated like the control thread while they take the lock, which that takes, too; and ordinary
//! while they close.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use upshift_elevate::Elevated;

use crate::shared::{DAEMON, Shared};

/// Threads that may wait at once.
const THREADS: usize = 64;

/// So many descriptors may queue before nothing more is let in.
const ROOM: usize = 1024;

/// A thread that has been closing something for so long is stuck.
const STUCK: Duration = Duration::from_millis(5);

/// A thread beside the first one that has had nothing to close for so long ends.
const IDLE: Duration = Duration::from_secs(1);

/// How long the end waits for them.
const GRACE: Duration = Duration::from_millis(100);

/// It needs next to nothing.
const STACK: usize = 128 * 1024;

/// See the module. Threads outlive it until they are done.
#[derive(Debug)]
pub(super) struct Closer {
    work: Arc<Work>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Work {
    state: Mutex<State>,
    changed: Condvar,
    /// Threads that have not let go of everything yet. Not in the lock: they are ordinary in the end.
    alive: AtomicUsize,
}

#[derive(Debug)]
struct State {
    queue: VecDeque<Vec<OwnedFd>>,
    /// Descriptors in it.
    waiting: usize,
    /// When something was taken from it last.
    taken: Instant,
    /// That take from the queue.
    threads: usize,
    /// Of those, they wait for something to close.
    idle: usize,
    /// Nothing more will come.
    ends: bool,
}

impl Closer {
    pub(super) fn new(shared: Arc<Shared>) -> Closer {
        let state = State {
            queue: VecDeque::new(),
            waiting: 0,
            taken: Instant::now(),
            threads: 0,
            idle: 0,
            ends: false,
        };
        let work = Work {
            state: Mutex::new(state),
            changed: Condvar::new(),
            alive: AtomicUsize::new(0),
        };
        Closer {
            work: Arc::new(work),
            shared,
        }
    }

    /// Starts the first thread.
    pub(super) fn start(&self) {
        self.add_thread(&mut self.work.lock());
    }

    /// Closes `all`, soon.
    pub(super) fn close(&self, all: Vec<OwnedFd>) {
        let mut state = self.work.lock();
        state.waiting += all.len();
        state.queue.push_back(all);
        self.work.changed.notify_one();
        self.relieve_locked(&mut state);
        if state.threads == 0 {
            // No other thread will do it: rather be held up than run out of descriptors.
            state.waiting = 0;
            let all = std::mem::take(&mut state.queue);
            drop(state);
            drop(all);
        }
    }

    /// Starts another thread if those that are there are stuck; to be called from time to time.
    pub(super) fn relieve(&self) {
        self.relieve_locked(&mut self.work.lock());
    }

    fn relieve_locked(&self, state: &mut State) {
        let nobody_comes = !state.queue.is_empty() && state.idle == 0;
        let stuck = nobody_comes && state.taken.elapsed() > STUCK;
        if state.threads == 0 || (stuck && state.threads < THREADS) {
            self.add_thread(state);
        }
    }

    fn add_thread(&self, state: &mut State) {
        let (work, shared) = (Arc::clone(&self.work), Arc::clone(&self.shared));
        let started = std::thread::Builder::new()
            .name("upshift-close".into())
            .stack_size(STACK)
            .spawn(move || {
                // Without the right it is as late as ordinary threads are.
                let elevator = shared.elevator.clone();
                let own = elevator.and_then(|elevator| elevator.elevate_current(DAEMON).ok());
                work.run(own.as_ref());
                drop((own, shared));
                work.alive.fetch_sub(1, Release);
            });
        // Without it, those that are there have more to do.
        if started.is_ok() {
            state.threads += 1;
            self.work.alive.fetch_add(1, Relaxed);
        }
    }

    /// Whether so much waits to be closed that nothing more may come in.
    pub(super) fn is_full(&self) -> bool {
        self.work.lock().waiting > ROOM
    }
}

impl Work {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Elevated as long as it takes the lock, ordinary while it closes.
    fn run(&self, own: Option<&Elevated>) {
        let mut state = self.lock();
        loop {
            if let Some(all) = state.queue.pop_front() {
                state.waiting = state.waiting.saturating_sub(all.len());
                state.taken = Instant::now();
                drop(state);
                let _ = own.map(Elevated::set_fair);
                drop(all);
                let _ = own.map(|own| own.set(DAEMON));
                state = self.lock();
                continue;
            }
            let patience = if state.idle == 0 { Duration::MAX } else { IDLE };
            state.idle += 1;
            let nothing = |it: &mut State| it.queue.is_empty() && !it.ends;
            let rung = self.changed.wait_timeout_while(state, patience, nothing);
            state = rung.unwrap_or_else(PoisonError::into_inner).0;
            state.idle -= 1;
            if state.queue.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        self.work.lock().ends = true;
        self.work.changed.notify_all();
        let began = Instant::now();
        // A thread that takes longer ends by itself, or with the process.
        while self.work.alive.load(Acquire) > 0 && began.elapsed() < GRACE {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}
