//! [`Control`]: what other threads tell a running engine, and what they learn from it.
//!
//! The engine runs above everything, so no other thread may hold a lock it needs: words are atomic, and the report is handed over by a
//! lock that the engine only *tries*. To wake it costs a system call.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32};
use std::sync::{Arc, Mutex, PoisonError};

use upshift_elevate::futex::futex_wake;

use crate::clock::thread_cpu_time;
use crate::policy::Nanos;
use crate::report::Report;

/// A handle to a running engine. Clones are handles to the same one.
#[derive(Debug, Clone, Default)]
pub struct Control {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    futex: AtomicU32,
    stop: AtomicBool,
    ended: AtomicBool,
    changes: Mutex<Vec<Change>>,
    /// The thread of the watch; 0: there is none.
    listener: AtomicI32,
    report: Mutex<Option<Report>>,
}

/// What the kernel has told of a scheduled process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// It has one more thread, or child.
    Born {
        parent: i32,
        process: i32,
        thread: i32,
    },
    /// A thread of it has ended.
    Ended { process: i32, thread: i32 },
}

/// Changes that may wait: more than a machine makes until the engine wakes up.
const CHANGES: usize = 4096;

impl Control {
    /// Ends [`Engine::run`](crate::Engine::run), which gives everything back.
    pub fn stop(&self) {
        self.shared.stop.store(true, Release);
        self.ring();
    }

    /// Whether [`Control::stop`] was called.
    pub fn is_stopped(&self) -> bool {
        self.shared.stop.load(Acquire)
    }

    /// Names the thread that listens to the kernel for the engine: its time is the scheduler's.
    pub(crate) fn listens(&self, tid: i32) {
        self.shared.listener.store(tid, Release);
    }

    /// CPU time of that thread, ns. One system call.
    pub(crate) fn listener_cpu_time(&self) -> Nanos {
        match self.shared.listener.load(Acquire) {
            0 => 0,
            tid => thread_cpu_time(tid).unwrap_or(0),
        }
    }

    /// Tells the engine that a process has ended.
    pub(crate) fn process_ended(&self) {
        self.shared.ended.store(true, Release);
        self.ring();
    }

    /// Whether a process has ended since the last question.
    pub(crate) fn take_ended(&self) -> bool {
        self.shared.ended.swap(false, AcqRel)
    }

    /// Tells the engine what has become of a process. An ended process has time until the engine wakes up by itself. What there is no room
    /// for makes it look at everything.
    pub(crate) fn changed(&self, change: Change) {
        let mut changes = self
            .shared
            .changes
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if changes.len() >= CHANGES {
            self.shared.ended.store(true, Release);
        } else {
            changes.push(change);
        }
        drop(changes);
        if matches!(change, Change::Born { .. }) {
            self.ring();
        }
    }

    /// What has changed since the last question, in its order. Not while it is being added to: then the futex is woken.
    pub(crate) fn take_changes(&self) -> Vec<Change> {
        let changes = self.shared.changes.try_lock();
        changes.map_or_else(|_| Vec::new(), |mut changes| std::mem::take(&mut *changes))
    }

    /// What the engine said last, at most a second ago while it runs.
    pub fn report(&self) -> Option<Report> {
        let report = self.shared.report.lock();
        report.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Leaves a report, unless a thread is reading.
    pub(crate) fn publish(&self, report: impl FnOnce() -> Report) {
        if let Ok(mut slot) = self.shared.report.try_lock() {
            *slot = Some(report());
        }
    }

    fn ring(&self) {
        self.shared.futex.store(1, Release);
        futex_wake(&self.shared.futex);
    }

    /// Whether it rang since the last question.
    pub fn take_bell(&self) -> bool {
        self.shared.futex.swap(0, AcqRel) != 0
    }

    /// The word to wait on: 0 until it rings.
    pub(crate) fn word(&self) -> &AtomicU32 {
        &self.shared.futex
    }
}
