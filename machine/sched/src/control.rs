//! [`Control`]: messages from other threads to a running engine, and its reports.
//!
//! The engine runs above everything, so it never waits for a lock of another thread: words are
//! atomic, and it only *tries* the locks of the report and of the changes. Waking it costs a system
//! call.

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
    /// Thread id of the [`ProcessMonitor`](crate::ProcessMonitor); 0: none.
    watch_thread: AtomicI32,
    report: Mutex<Option<Report>>,
}

/// A change in a scheduled process, as the kernel reported it.
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

/// Changes that are queued at most: more than a machine makes until the engine wakes up.
const MAX_CHANGES: usize = 4096;

impl Control {
    /// Ends [`Engine::run`](crate::Engine::run), which restores all tasks.
    pub fn stop(&self) {
        self.shared.stop.store(true, Release);
        self.ring();
    }

    /// Whether [`Control::stop`] was called.
    pub fn is_stopped(&self) -> bool {
        self.shared.stop.load(Acquire)
    }

    /// Sets the thread of the process monitor, whose CPU time counts as the scheduler's.
    pub(crate) fn set_monitor_thread(&self, tid: i32) {
        self.shared.watch_thread.store(tid, Release);
    }

    /// Returns the CPU time of the thread of the process monitor, ns. One system call.
    pub(crate) fn monitor_cpu_time(&self) -> Nanos {
        match self.shared.watch_thread.load(Acquire) {
            0 => 0,
            tid => thread_cpu_time(tid).unwrap_or(0),
        }
    }

    /// Asks the engine for a scan, because a process has ended or events were lost.
    pub(crate) fn request_scan(&self) {
        self.shared.scan_requested.store(true, Release);
        self.ring();
    }

    /// Whether a scan was requested since the last call.
    pub(crate) fn take_scan_request(&self) -> bool {
        self.shared.scan_requested.swap(false, AcqRel)
    }

    /// Queues a change for the engine. The end of a thread does not wake it. If the queue is full,
    /// the engine scans all processes.
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

    /// Takes the queued changes, oldest first. Returns none while one is being added: the engine is
    /// woken afterwards.
    pub(crate) fn take_changes(&self) -> Vec<Change> {
        let changes = self.shared.changes.try_lock();
        changes.map_or_else(|_| Vec::new(), |mut changes| std::mem::take(&mut *changes))
    }

    /// Returns the last report, at most a second old while the engine runs.
    pub fn report(&self) -> Option<Report> {
        let report = self.shared.report.lock();
        report.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Stores a report, unless a thread is reading the last one.
    pub(crate) fn publish(&self, report: impl FnOnce() -> Report) {
        if let Ok(mut slot) = self.shared.report.try_lock() {
            *slot = Some(report());
        }
    }

    fn ring(&self) {
        self.shared.futex.store(1, Release);
        futex_wake(&self.shared.futex);
    }

    /// Whether the bell rang since the last call.
    pub fn take_bell(&self) -> bool {
        self.shared.futex.swap(0, AcqRel) != 0
    }

    /// Returns the futex of the bell: 0 until it rings.
    pub(crate) fn word(&self) -> &AtomicU32 {
        &self.shared.futex
    }
}
