//! Starts and ends the threads of a preemptible vCPU, which are named after it and pinned to its
//! CPU.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use super::thread::id_of;
use crate::affinity;
use crate::notice::no_thread;

/// The threads of a vCPU that have been started.
pub(super) struct Starter {
    cpu: usize,
    name: String,
    handles: Mutex<Vec<JoinHandle<()>>>,
}

impl Starter {
    pub(super) fn new(cpu: usize, name: &str, index: usize) -> Starter {
        Starter {
            cpu,
            // The kernel shows fifteen bytes of a name.
            name: format!("{name:.7}-{index}"),
            handles: Mutex::default(),
        }
    }

    /// Starts a thread that runs `body`. Returns the id of the thread in the kernel.
    pub(super) fn start(
        &self,
        role: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> io::Result<u32> {
        let cpu = self.cpu;
        let thread = thread::Builder::new()
            .name(format!("{}/{role}", self.name))
            .spawn(move || {
                // A failure is ignored, because on another CPU the thread is only slower.
                let _ = affinity::pin(cpu);
                body();
            })
            .map_err(|error| no_thread("a vCPU", &error))?;
        let id = id_of(&thread);
        self.handles().push(thread);
        Ok(id)
    }

    /// Waits for the end of all threads. If `must_join` is false, detaches them instead, because
    /// one of them holds a poll that does not end.
    pub(super) fn end(&self, must_join: bool) {
        for thread in std::mem::take(&mut *self.handles()) {
            if must_join {
                // A thread that panicked has reported it already.
                let _ = thread.join();
            }
        }
    }

    fn handles(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
