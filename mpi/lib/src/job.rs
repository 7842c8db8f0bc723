//! Represents the job on this rank, and has the lock under which MPI is called.
//!
//! MPI is initialised for at most one thread at a time. Therefore every call is made under the
//! lock, and a coroutine that holds the lock is not suspended. The only call under the lock that
//! blocks is `MPI_Comm_split`, which `constructors.rs` delays until all ranks are ready.
//! Destructors never call MPI, but leave their work to the next *look*, in which the progress
//! coroutine asks MPI for completions (`progress.rs`).

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU8};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::Waker;
use std::thread::{self, ThreadId};

use upshift::{CoroutineId, Handle, Level, current_level, no_suspend};

use crate::error::{Death, Error, Result, check};
use crate::node::Node;
use crate::peers::Peers;
use crate::table::{Key, LookResults, Payload, Table};

/// The job, as this rank sees it.
pub(crate) struct Job {
    table: Mutex<Table>,
    /// The only thread that may call MPI, with [`Threads::Funneled`](crate::Threads::Funneled).
    funneled_thread: Option<ThreadId>,
    death: OnceLock<Death>,
    ended: AtomicBool,
    /// The runtime and the progress coroutine, once it runs.
    progress: OnceLock<(Handle, CoroutineId)>,
    /// Level of the progress coroutine.
    level: AtomicU8,
    pub(crate) node: Arc<Node>,
}

impl Job {
    pub(crate) fn new(funneled_thread: Option<ThreadId>, node: Arc<Node>) -> Job {
        Job {
            table: Mutex::new(Table::default()),
            funneled_thread,
            death: OnceLock::new(),
            ended: AtomicBool::new(false),
            progress: OnceLock::new(),
            level: AtomicU8::new(0),
            node,
        }
    }

    pub(crate) fn set_progress(&self, handle: Handle, progress: CoroutineId) {
        let _ = self.progress.set((handle, progress));
    }

    /// Runs `f` on the table under the lock. MPI calls that start an operation go through
    /// [`call`](Self::call).
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Table) -> R) -> R {
        let (result, sleeper) = no_suspend(|| {
            let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
            let result = f(&mut table);
            self.update_level(&table);
            let sleeper = table.look_requested.then(|| table.sleeper.take()).flatten();
            (result, sleeper)
        });
        if let Some(sleeper) = sleeper {
            sleeper.wake();
        }
        result
    }

    /// Calls MPI, and wakes the ranks that the call concerns.
    pub(crate) fn call<R>(
        &self,
        peers: &Peers,
        f: impl FnOnce(&mut Table) -> Result<R>,
    ) -> Result<R> {
        self.check()?;
        let result = self.with(|table| {
            // Checked again under the lock, which `finish` takes.
            if self.has_ended() {
                return Err(Error::Ended);
            }
            f(table)
        });
        self.node.wake_sleepers(peers);
        result
    }

    pub(crate) fn check(&self) -> Result<()> {
        if let Some(death) = self.death.get() {
            return Err(Error::Died(death.clone()));
        }
        if self.ended.load(Relaxed) {
            return Err(Error::Ended);
        }
        if self
            .funneled_thread
            .is_some_and(|funneled_thread| funneled_thread != thread::current().id())
        {
            return Err(Error::WrongThread);
        }
        Ok(())
    }

    fn update_level(&self, table: &Table) {
        let Some(level) = table.most_urgent() else {
            return;
        };
        if self.level.swap(level.get(), Relaxed) != level.get()
            && let Some((handle, id)) = self.progress.get()
        {
            // This fails only at the end of the job, when the level no longer matters.
            let _ = handle.reprio(*id, level);
        }
    }

    pub(crate) fn abandon(&self, key: Key) {
        let payload = self.with(|table| table.abandon(key));
        drop(payload);
    }

    /// Begins a look, in which the progress coroutine asks MPI for completions. Does the work that
    /// destructors left, and probes for messages. Returns the number of requests, which is the end
    /// of the first window. A window is a range of requests that one call of MPI tests.
    pub(crate) fn begin_look(&self, results: &mut LookResults) -> usize {
        self.with(|table| {
            table.look_requested = false;
            table.sweep();
            table.probe(results);
            table.outstanding()
        })
    }

    /// Continues a look with the window of requests that ends at `end`. Returns the end of the next
    /// window; 0 ends the look.
    pub(crate) fn look_at_window(&self, end: usize, results: &mut LookResults) -> usize {
        let mut dropped: Vec<Payload> = Vec::new();
        self.with(|table| table.test(end, results, &mut dropped))
    }

    /// Returns whether no other coroutine of this rank is ready, so that looking continuously
    /// delays no coroutine.
    pub(crate) fn is_otherwise_idle(&self) -> bool {
        self.progress
            .get()
            .is_some_and(|(handle, _)| handle.bitmap() == 0)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Relaxed)
    }

    pub(crate) fn end(&self) {
        self.ended.store(true, SeqCst);
        self.wake_all();
    }

    /// Finalises MPI. Every operation that was started before the end has finished.
    pub(crate) fn finish(&self) -> Result<()> {
        self.with(|table| {
            table.sweep();
            // SAFETY: MPI is initialised, and nothing is outstanding.
            check(unsafe { mpi_sys::MPI_Finalize() })
        })
    }

    pub(crate) fn death(&self) -> Option<&Death> {
        self.death.get()
    }

    /// Records a death and wakes all waiters. The watchdog's thread calls this function.
    pub(crate) fn fail(&self, death: Death) {
        let _ = self.death.set(death);
        self.wake_all();
    }

    fn wake_all(&self) {
        for _ in 0..100 {
            // A rank that hangs in MPI keeps the lock; the watchdog must not hang as well.
            match self.table.try_lock() {
                Ok(mut table) => {
                    let wakers = table.wakers();
                    drop(table);
                    wakers.into_iter().for_each(Waker::wake);
                    return;
                }
                Err(_) => thread::sleep(std::time::Duration::from_millis(1)),
            }
        }
    }
}

pub(crate) fn waiter_level() -> Level {
    current_level().unwrap_or_default()
}
