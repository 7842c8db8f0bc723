//! [`Closer`]: closes what came from clients, on threads of its own.
//!
//! Whoever closes the last descriptor of a file may have to wait for it: a TCP connection can linger for minutes, a file of a
//! user's own file system is flushed by that user. Descriptors travel in packets and in packets of sockets that travel, so what
//! a connection holds is not known before it is closed, either. So all of it is closed here; [`THREADS`] threads may wait at
//! once, the rest queues. Nothing is closed by the control thread but what is known to be harmless: memory files.
//!
//! Threads are started when they are needed, and end when there has been nothing to close for a second. They are elevated like
//! the control thread, which takes their lock.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::shared::{DAEMON, Shared};

/// Threads that may wait at once.
const THREADS: usize = 64;

/// So much may queue before nothing more is let in.
const ROOM: usize = 64;

/// A thread that has had nothing to close for so long ends.
const IDLE: Duration = Duration::from_secs(1);

/// It needs next to nothing.
const STACK: usize = 128 * 1024;

/// See the module. Threads outlive it until they are done.
#[derive(Debug, Default)]
pub(super) struct Closer {
    work: Arc<Work>,
}

#[derive(Debug, Default)]
struct Work {
    state: Mutex<State>,
    bell: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Vec<OwnedFd>>,
    threads: usize,
    idle: usize,
}

impl Closer {
    /// Closes `all`, soon.
    pub(super) fn close(&self, all: Vec<OwnedFd>, shared: &Arc<Shared>) {
        let mut state = self.work.lock();
        state.queue.push_back(all);
        if state.idle >= state.queue.len() {
            self.work.bell.notify_one();
            return;
        }
        if state.threads >= THREADS {
            return;
        }
        let (work, with) = (Arc::clone(&self.work), Arc::clone(shared));
        let started = std::thread::Builder::new()
            .name("upshift-close".into())
            .stack_size(STACK)
            .spawn(move || work.run(&with));
        match started {
            Ok(_) => state.threads += 1,
            // Nobody else will ever do it: rather be held up than run out of descriptors.
            Err(_) if state.threads == 0 => {
                let all = std::mem::take(&mut state.queue);
                drop(state);
                drop(all);
            }
            Err(_) => {}
        }
    }

    /// Whether so much waits to be closed that nothing more may come in.
    pub(super) fn is_full(&self) -> bool {
        self.work.lock().queue.len() > ROOM
    }
}

impl Work {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, shared: &Shared) {
        // Without the right it is as late as ordinary threads are.
        let elevator = shared.elevator.as_ref();
        let _own = elevator.and_then(|elevator| elevator.elevate_current(DAEMON).ok());
        let mut state = self.lock();
        loop {
            if let Some(all) = state.queue.pop_front() {
                drop(state);
                drop(all);
                state = self.lock();
                continue;
            }
            state.idle += 1;
            let rung = self
                .bell
                .wait_timeout_while(state, IDLE, |it| it.queue.is_empty());
            state = rung.unwrap_or_else(PoisonError::into_inner).0;
            state.idle -= 1;
            if state.queue.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}
