//! [`Control`] passes messages from other threads to a running engine, and the engine's reports to
//! them.
//!
//! The engine runs above all other threads, so it never waits for a lock of another thread. Single
//! words are atomic, and the engine only *tries* the locks of the report and of the changes. Waking
//! the engine costs a system call.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32};
use std::sync::{Arc, Mutex, PoisonError};

use upshift_elevate::futex::futex_wake;

use crate::clock::thread_cpu_time;
use crate::policy::Nanos;
use crate::report::Report;

/// A handle to a running engine. Clones are handles to the same engine.
#[derive(Debug, Clone, Default)]
pub struct Control {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    futex: AtomicU32,
    stop: AtomicBool,
    scan_requested: AtomicBool,
    changes: Mutex<Vec<Change>>,
    /// Thread id of the [`ProcessMonitor`](crate::ProcessMonitor), or 0 if there is none.
    monitor_thread: AtomicI32,
    report: Mutex<Option<Report>>,
}

/// A change in a scheduled process that the kernel reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// The process has a new thread, or a new child.
    ThreadStarted {
        parent: i32,
        process: i32,
        thread: i32,
    },
    /// A thread of the process has ended.
    ThreadEnded { process: i32, thread: i32 },
}

/// Maximum number of queued changes. A machine causes fewer until the engine wakes up.
const MAX_CHANGES: usize = 4096;

impl Control {
    /// Ends [`Engine::run`](crate::Engine::run), which restores all tasks.
    pub fn stop(&self) {
        self.shared.stop.store(true, Release);
        self.ring();
    }

    /// Returns whether [`Control::stop`] was called.
    pub fn is_stopped(&self) -> bool {
        self.shared.stop.load(Acquire)
    }

    pub(crate) fn set_monitor_thread(&self, tid: i32) {
        self.shared.monitor_thread.store(tid, Release);
    }

    /// Returns the CPU time of the process monitor's thread, ns. This costs one system call.
    pub(crate) fn monitor_cpu_time(&self) -> Nanos {
        match self.shared.monitor_thread.load(Acquire) {
            0 => 0,
            tid => thread_cpu_time(tid).unwrap_or(0),
        }
    }

    pub(crate) fn request_scan(&self) {
        self.shared.scan_requested.store(true, Release);
        self.ring();
    }

    pub(crate) fn take_scan_request(&self) -> bool {
        self.shared.scan_requested.swap(false, AcqRel)
    }

    /// Queues a change for the engine. The end of a thread does not wake the engine. If the queue
    /// is full, the engine scans all processes.
    pub(crate) fn queue_change(&self, change: Change) {
        let mut changes = self
            .shared
            .changes
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if changes.len() >= MAX_CHANGES {
            self.shared.scan_requested.store(true, Release);
        } else {
            changes.push(change);
        }
        drop(changes);
        if matches!(change, Change::ThreadStarted { .. }) {
            self.ring();
        }
    }

    /// Takes the queued changes, oldest first. While another thread is adding a change, returns no
    /// changes, and the engine takes them when it next wakes up.
    pub(crate) fn take_changes(&self) -> Vec<Change> {
        let changes = self.shared.changes.try_lock();
        changes.map_or_else(|_| Vec::new(), |mut changes| std::mem::take(&mut *changes))
    }

    /// Returns the last report, at most a second old while the engine runs.
    pub fn report(&self) -> Option<Report> {
        let report = self.shared.report.lock();
        report.unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn publish(&self, report: impl FnOnce() -> Report) {
        if let Ok(mut slot) = self.shared.report.try_lock() {
            *slot = Some(report());
        }
    }

    fn ring(&self) {
        self.shared.futex.store(1, Release);
        futex_wake(&self.shared.futex);
    }

    /// Returns whether another thread has woken the engine since the last call.
    pub fn take_bell(&self) -> bool {
        self.shared.futex.swap(0, AcqRel) != 0
    }

    /// Returns the futex that wakes the engine. It is 0 until another thread wakes the engine.
    pub(crate) fn word(&self) -> &AtomicU32 {
        &self.shared.futex
    }
}
