//! Runs the workers, which compute, and the switcher, which demotes a worker at the end of its
//! slice ([`QUANTUM_NS`]).

use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::{self, Thread};

use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
use upshift_elevate::{Elevated, Priority};

use crate::{DEMOTED, ELEVATED, QUANTUM_NS, Shared, lock};

/// A worker, as the other threads see it.
#[derive(Default)]
pub(crate) struct Worker {
    thread: OnceLock<(Thread, Elevated)>,
    /// True from [`Worker::start`] until the worker finds the queue empty.
    busy: AtomicBool,
}

impl Worker {
    /// Stores the worker's thread; called once, by that thread.
    pub(crate) fn introduce(&self, elevated: Elevated) {
        let _ = self.thread.set((thread::current(), elevated));
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(SeqCst)
    }

    /// Wakes the worker, which then serves requests until the queue is empty. An elevated worker
    /// preempts the caller, so if every request takes less than a slice, the queue is empty when
    /// this returns.
    pub(crate) fn start(&self) {
        self.busy.store(true, SeqCst);
        if let Some((thread, _)) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Elevates the demoted worker again. The worker preempts the caller, so this returns only when
    /// the worker's slice has expired or the queue is empty.
    pub(crate) fn resume(&self) {
        self.set(ELEVATED);
    }

    fn set(&self, priority: Priority) {
        if let Some((_, elevated)) = self.thread.get() {
            // The call cannot fail, because the thread is alive and belongs to this process.
            let _ = elevated.set(priority);
        }
    }
}

/// Arms the switcher's timer; 0 disarms it.
pub(crate) fn set_timer(timer: &impl AsFd, ns: i64) {
    let zero = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let value = Itimerspec {
        it_interval: zero,
        it_value: Timespec {
            tv_nsec: ns,
            ..zero
        },
    };
    // The call cannot fail, because the descriptor is a timer and the time is valid.
    let _ = timerfd_settime(timer, TimerfdTimerFlags::empty(), &value);
}

pub(crate) fn serve(shared: &Shared, worker: &Worker) -> ! {
    loop {
        while !worker.is_busy() {
            thread::park();
        }
        while let Some(job) = next(shared) {
            set_timer(&shared.timer, QUANTUM_NS);
            shared.burner.burn(job.1.service);
            set_timer(&shared.timer, 0);
            lock(&shared.served).push(job);
        }
        worker.busy.store(false, SeqCst);
    }
}

fn next(shared: &Shared) -> Option<crate::Job> {
    lock(&shared.requests).pop_front()
}

pub(crate) fn switch(shared: &Shared) -> ! {
    let mut expired = [0; 8];
    loop {
        if rustix::io::read(&shared.timer, &mut expired).is_err() {
            continue;
        }
        if let Some(worker) = shared.workers.get(shared.current.load(SeqCst)) {
            worker.set(DEMOTED);
        }
    }
}
