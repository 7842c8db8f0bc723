//! Workers, which burn, and the switcher, which demotes the one that runs too long.

use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::{self, Thread};

use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
use upshift_elevate::{Elevated, Priority};

use crate::{DEMOTED, ELEVATED, QUANTUM, Shared, lock};

/// A worker as the others see it.
#[derive(Default)]
pub(crate) struct Worker {
    thread: OnceLock<(Thread, Elevated)>,
    /// It has been started, and has not emptied the queue since.
    busy: AtomicBool,
}

impl Worker {
    /// Called once, by its thread.
    pub(crate) fn introduce(&self, elevated: Elevated) {
        let _ = self.thread.set((thread::current(), elevated));
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(SeqCst)
    }

    /// It empties the queue, before this returns if it is quick.
    pub(crate) fn start(&self) {
        self.busy.store(true, SeqCst);
        if let Some((thread, _)) = self.thread.get() {
            thread.unpark();
        }
    }

    /// It goes on for a quantum, or to the end, before this returns.
    pub(crate) fn resume(&self) {
        self.set(ELEVATED);
    }

    fn set(&self, priority: Priority) {
        if let Some((_, elevated)) = self.thread.get() {
            // The thread lives and is this process's own.
            let _ = elevated.set(priority);
        }
    }
}

/// Sets the switcher's timer; 0: stops it.
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
    // The descriptor is a timer, and the time is one.
    let _ = timerfd_settime(timer, TimerfdTimerFlags::empty(), &value);
}

/// The thread of a worker.
pub(crate) fn serve(shared: &Shared, worker: &Worker) -> ! {
    loop {
        while !worker.is_busy() {
            thread::park();
        }
        while let Some(job) = next(shared) {
            set_timer(&shared.timer, QUANTUM);
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

/// The thread of the switcher.
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
