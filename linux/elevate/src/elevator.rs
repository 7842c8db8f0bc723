//! A set of threads that are elevated, that is, run in SCHED_FIFO until they are restored
//! ([`Elevator`]).
//!
//! Invariants:
//! * Only threads recorded in the table (`table.rs`) are elevated, and a record is removed only
//!   after its thread was restored.
//! * A thread is always elevated with `SCHED_RESET_ON_FORK`, so that its children start at
//!   `SCHED_OTHER`. A thread that calls `exec` keeps its policy and becomes the main thread of its
//!   process. It is found there, and restored.
//! * A thread of another process is elevated only while a guardian lives (a process that restores
//!   the threads if this process dies), and at most to [`Priority::FOREIGN_MAX`].
//! * A thread that another elevator elevates is refused, because its elevated policy would be
//!   recorded as the former policy, and would stay.
//! * Only the process that made an elevator acts on it. In a fork of that process the elevator does
//!   nothing.
//! * A thread that waits for the set's lock lends its priority to the holder (`lock.rs`), because
//!   the holder may have left SCHED_FIFO while it holds the lock.
//!
//! Elevating and restoring take the set's lock and open a pidfd. Before Linux 6.9 they open a file
//! of `/proc` instead, or three files for threads of other processes. [`Elevated::set`] is one
//! system call, without lock or allocation.

use std::io;
use std::ops::Deref;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Duration;

use crate::builder::Builder;
use crate::elevated::Elevated;
use crate::error::ElevateError;
use crate::exit;
use crate::guardian::Guardian;
use crate::lock::{Lock, Locked};
use crate::policy::{Class, Policy};
use crate::priority::Priority;
use crate::restore::{Restored, is_gone, restore, retry_transient};
use crate::sys::{CpuSet, Sys, Tid, current_tid};
use crate::table::{Pin, Record, Table};

pub(crate) const FIFO: i32 = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;

/// A set of threads that run in SCHED_FIFO while their guards live. Cloning gives another handle to
/// the set.
///
/// The crate's documentation says how threads are restored when the process ends.
#[derive(Debug, Clone)]
pub struct Elevator {
    pub(crate) inner: Arc<Set>,
}

/// The state that handles and guards share. When the last of them is dropped, all threads are
/// restored before the drop returns. A caller that only checks whether a set holds a thread
/// ([`exit`]) shares the [`Inner`] instead, so it cannot delay the restoration.
#[derive(Debug)]
pub(crate) struct Set(pub(crate) Arc<Inner>);

impl Set {
    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.0
    }
}

impl Deref for Set {
    type Target = Inner;
    fn deref(&self) -> &Inner {
        &self.0
    }
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) sys: Arc<dyn Sys>,
    pub(crate) table: Table,
    /// The process that made the set.
    pub(crate) owner: libc::pid_t,
    /// Whether the builder requested a guardian.
    pub(crate) is_guarded: bool,
    pub(crate) heartbeat: Option<Duration>,
    /// Locked for every change of the table, and for every access to the guardian.
    pub(crate) guardian: Lock<Option<Guardian>>,
}

// Every change of the table ends with one store that publishes it, so a panic in between leaves the
// table unchanged.
impl UnwindSafe for Inner {}
impl RefUnwindSafe for Inner {}

impl Elevator {
    /// Creates a set for threads of this process, without a guardian.
    ///
    /// # Errors
    /// The kernel's error if there is no memory.
    pub fn new() -> io::Result<Elevator> {
        Elevator::builder().build()
    }

    /// Creates a set for threads of any process, with a guardian that restores them if this process
    /// dies.
    ///
    /// # Errors
    /// The kernel's error if no process can be forked.
    pub fn with_guardian() -> io::Result<Elevator> {
        Elevator::builder().guardian(true).build()
    }

    /// Returns a builder, which sets the capacity, the guardian and the system calls.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// Elevates thread `tid`, of this or another process, to `priority`.
    ///
    /// # Errors
    /// [`ElevateError`]; the thread is then unchanged.
    pub fn elevate(&self, tid: Tid, priority: Priority) -> Result<Elevated, ElevateError> {
        if tid <= 0 {
            return Err(ElevateError::NoSuchThread(tid));
        }
        Inner::elevate(&self.inner, tid, Some(priority), None)
    }

    /// Records thread `tid`, of this or another process, without changing its policy. The returned
    /// guard changes the policy by [`Elevated::set`] and the like, and restores it.
    ///
    /// # Errors
    /// Those of [`Elevator::elevate`], except that no rights are needed yet.
    pub fn record(&self, tid: Tid) -> Result<Elevated, ElevateError> {
        if tid <= 0 {
            return Err(ElevateError::NoSuchThread(tid));
        }
        Inner::elevate(&self.inner, tid, None, None)
    }

    /// Elevates a thread that was born while `like`, a thread of its process, was elevated. The
    /// kernel gave the new thread `SCHED_OTHER` and the CPU that `like` was pinned to. The new
    /// thread is recorded with the former policy and CPUs of `like`, which it would have inherited
    /// otherwise. If it has chosen a policy or CPUs itself, that choice is recorded.
    ///
    /// # Errors
    /// [`ElevateError`]; the thread is then unchanged.
    pub fn elevate_inheriting(
        &self,
        tid: Tid,
        priority: Priority,
        like: &Elevated,
    ) -> Result<Elevated, ElevateError> {
        if tid <= 0 {
            return Err(ElevateError::NoSuchThread(tid));
        }
        let parent = like.record_in(&self.inner);
        Inner::elevate(&self.inner, tid, Some(priority), parent.as_ref())
    }

    /// Elevates the calling thread to `priority`. If its guard is leaked, the thread is restored
    /// when it ends.
    ///
    /// # Errors
    /// [`ElevateError`]; the thread is then unchanged.
    pub fn elevate_current(&self, priority: Priority) -> Result<Elevated, ElevateError> {
        let guard = Inner::elevate(&self.inner, current_tid(), Some(priority), None)?;
        exit::restore_this_thread_at_end();
        Ok(guard)
    }

    /// Returns the number of recorded threads.
    pub fn len(&self) -> usize {
        let _lock = self.inner.lock();
        self.inner.table.records().count()
    }

    /// Returns whether no thread is recorded.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of threads that can be recorded.
    pub fn capacity(&self) -> usize {
        self.inner.table.capacity()
    }

    /// Returns the guardian's process id, if there is a living guardian.
    pub fn guardian_pid(&self) -> Option<libc::pid_t> {
        let lock = self.inner.lock();
        lock.as_ref()
            .filter(|guardian| guardian.is_alive())
            .map(Guardian::pid)
    }

    /// Gives a sign of life, for a set with a [`Builder::heartbeat`]. One atomic addition.
    pub fn beat(&self) {
        self.inner.table.header().beats.fetch_add(1, Release);
    }

    /// Returns how often the guardian has demoted all threads because there was no sign of life. A
    /// caller that sees this change must set its threads' priorities again. One load.
    pub fn demotions(&self) -> u64 {
        self.inner.table.header().demotions.load(Acquire)
    }

    /// Starts a new guardian if the last one has died. Elevating a thread of another process does
    /// this, too. A daemon that rarely elevates threads should call this from time to time, because
    /// without a guardian the threads would not be restored if the daemon died.
    ///
    /// # Errors
    /// [`ElevateError::GuardianLost`] if no guardian can be started, [`ElevateError::Forked`] in a
    /// fork.
    pub fn ensure_guardian(&self) -> Result<(), ElevateError> {
        if !self.inner.is_owner() {
            return Err(ElevateError::Forked);
        }
        let mut lock = self.inner.lock();
        self.inner.ensure_guardian(&mut lock)
    }
}

impl Inner {
    pub(crate) fn lock(&self) -> Locked<'_, Option<Guardian>> {
        self.guardian.lock()
    }

    /// Returns whether the caller is the process that made the set, and not a fork of it.
    pub(crate) fn is_owner(&self) -> bool {
        // SAFETY: `getpid` has no arguments and cannot fail.
        unsafe { libc::getpid() == self.owner }
    }

    fn ensure_guardian(&self, lock: &mut Locked<'_, Option<Guardian>>) -> Result<(), ElevateError> {
        if !self.is_guarded || lock.as_ref().is_some_and(Guardian::is_alive) {
            return Ok(());
        }
        **lock = None;
        let guardian = Guardian::start(&self.table, self.sys.as_ref(), self.owner, self.heartbeat)
            .map_err(ElevateError::GuardianLost)?;
        **lock = Some(guardian);
        Ok(())
    }

    /// Records a thread, and elevates it if there is a `priority`. `parent` is the record of a
    /// thread of the same process that was elevated when this thread was born.
    fn elevate(
        inner: &Arc<Set>,
        tid: Tid,
        priority: Option<Priority>,
        parent: Option<&Record>,
    ) -> Result<Elevated, ElevateError> {
        if !inner.is_owner() {
            return Err(ElevateError::Forked);
        }
        let sys = inner.sys.as_ref();
        let unreadable = |error| unreadable(tid, error);
        let is_own = retry_transient(|| sys.is_own(tid)).map_err(unreadable)?;
        if !is_own && !inner.is_guarded {
            return Err(ElevateError::GuardianNeeded(tid));
        }
        if let Some(requested) = priority
            && !is_own
            && requested > Priority::FOREIGN_MAX
        {
            return Err(ElevateError::AboveGuardian { requested });
        }
        let birth = retry_transient(|| sys.birth(tid)).map_err(unreadable)?;
        if exit::is_elevated_elsewhere(inner.inner(), tid, birth) {
            return Err(ElevateError::AlreadyElevated(tid));
        }
        let mut lock = inner.lock();
        if !is_own {
            inner.ensure_guardian(&mut lock)?;
        }
        let (index, generation) = inner.find_or_record(tid, birth, is_own, parent)?;
        if !is_own
            && inner.heartbeat.is_some()
            && let Some(guardian) = lock.as_ref()
        {
            guardian.arm(&inner.table);
        }
        if let Some(priority) = priority
            && let Err(error) =
                retry_transient(|| sys.sched_setscheduler(tid, FIFO, i32::from(priority.get())))
        {
            if inner.table.orphan(index).is_none() {
                inner.table.free(index);
            }
            return Err(if is_gone(&error) {
                ElevateError::NoSuchThread(tid)
            } else {
                ElevateError::Refused {
                    tid,
                    requested: priority,
                    error,
                }
            });
        }
        inner.table.set_orphan(index, false);
        drop(lock);
        let ceiling = if is_own {
            Priority::MAX
        } else {
            Priority::FOREIGN_MAX
        };
        let inner = Arc::clone(inner);
        Ok(Elevated::new(inner, tid, (index, generation), ceiling))
    }

    /// Returns the slot of the thread's orphaned record (a record without a guard, because the
    /// thread could not be restored), or of a new record. The caller holds the lock.
    fn find_or_record(
        &self,
        tid: Tid,
        birth: u64,
        is_own: bool,
        parent: Option<&Record>,
    ) -> Result<(usize, u64), ElevateError> {
        if let Some(index) = self.table.find(tid, birth) {
            return match self.table.orphan(index) {
                Some(generation) => Ok((index, generation)),
                None => Err(ElevateError::AlreadyElevated(tid)),
            };
        }
        let former = retry_transient(|| Policy::of(self.sys.as_ref(), tid))
            .map_err(|error| unreadable(tid, error))?;
        if former.is_above_bands() {
            return Err(ElevateError::AboveBands {
                tid,
                policy: former,
            });
        }
        let looks_idled = matches!(former.class(), Class::Idle) && former.resets_on_fork();
        if !is_own && (former.looks_elevated() || looks_idled) {
            return Err(ElevateError::ElevatedByOthers {
                tid,
                policy: former,
            });
        }
        let inherits = matches!(former.class(), Class::Other { .. } | Class::Idle);
        let slot = self.record(&Record {
            tid,
            birth,
            is_own,
            leader: if is_own {
                None
            } else {
                self.leader_of(tid)
                    .map_err(|error| unreadable(tid, error))?
            },
            former: match parent {
                Some(parent) if inherits => parent.former,
                _ => *former.attr(),
            },
            nices: [None; 2],
            pin: None,
        })?;
        if parent.is_some() && inherits {
            // The kernel chose the thread's present nice value.
            self.table.record_nice(slot.0, former.attr().nice);
        }
        if let Some(pin) = parent.and_then(|parent| parent.pin) {
            self.record_inherited_pin(slot.0, tid, &pin);
        }
        Ok(slot)
    }

    /// Returns the main thread of the process to which `tid` belongs, and the birth of that main
    /// thread. Returns `None` if `tid` is the main thread itself.
    fn leader_of(&self, tid: Tid) -> io::Result<Option<(Tid, u64)>> {
        let leader = retry_transient(|| self.sys.leader(tid))?;
        if leader == tid {
            return Ok(None);
        }
        Ok(Some((leader, retry_transient(|| self.sys.birth(leader))?)))
    }

    /// Records the CPUs that an inherited pin has replaced, if the thread still has the pin. The
    /// caller holds the lock.
    fn record_inherited_pin(&self, index: usize, tid: Tid, pin: &Pin) {
        // If the CPUs cannot be read, they are not changed either.
        let Ok(now) = retry_transient(|| self.sys.sched_getaffinity(tid)) else {
            return;
        };
        let is_at = |&cpu: &usize| CpuSet::only(cpu) == Some(now);
        if let Some(cpu) = pin.cpus.into_iter().flatten().find(is_at) {
            // The closure cannot fail.
            let _ = self.table.record_pin(index, cpu, || Ok(pin.former));
        }
    }

    /// Records a thread, if necessary after removing threads that have ended. The caller holds the
    /// lock.
    fn record(&self, record: &Record) -> Result<(usize, u64), ElevateError> {
        if let Some(slot) = self.table.record(record) {
            return Ok(slot);
        }
        for (index, old) in self.table.records() {
            let now = retry_transient(|| self.sys.birth(old.tid));
            let has_ended = match now {
                Ok(start) => start != old.birth,
                Err(error) => is_gone(&error),
            };
            if has_ended {
                self.table.free(index);
            }
        }
        self.table.record(record).ok_or(ElevateError::TableFull {
            capacity: self.table.capacity(),
        })
    }

    /// Returns whether this set has recorded the thread. Takes the lock.
    pub(crate) fn has_recorded(&self, tid: Tid, birth: u64) -> bool {
        let _lock = self.lock();
        self.table.find(tid, birth).is_some()
    }

    /// Restores the thread of slot `index` and frees the slot. If that fails, the record stays and
    /// is marked as an orphan. Set `is_known_alive` if the thread cannot have ended. It is then an
    /// error if the kernel does not find the thread. The caller holds the lock.
    pub(crate) fn restore_and_free(
        &self,
        index: usize,
        record: &Record,
        is_known_alive: bool,
    ) -> io::Result<Restored> {
        let restored = match restore(self.sys.as_ref(), &self.table, record) {
            Ok(Restored::Gone) if is_known_alive => Err(io::Error::from_raw_os_error(libc::ESRCH)),
            restored => restored,
        };
        match restored {
            Ok(_) => self.table.free(index),
            Err(_) => self.table.set_orphan(index, true),
        }
        restored
    }

    /// Restores the calling thread at its end, if it is still recorded.
    pub(crate) fn restore_ending_thread(&self, tid: Tid) {
        if !self.is_owner() {
            return;
        }
        let _lock = self.lock();
        for (index, record) in self.table.records() {
            if record.is_own && record.tid == tid {
                // If this fails, the elevation still ends with the thread a moment later.
                let _ = self.restore_and_free(index, &record, false);
            }
        }
    }

    /// Restores all threads at the exit of the process. If there is a guardian, the records stay,
    /// and the guardian checks them again once no other thread of this process can elevate a
    /// thread. `attempts` is the number of attempts to take the lock.
    pub(crate) fn restore_at_exit(&self, attempts: usize) {
        if !self.is_owner() {
            return;
        }
        for _ in 0..attempts {
            let Some(lock) = self.guardian.try_lock() else {
                std::thread::sleep(std::time::Duration::from_millis(1));
                continue;
            };
            for (index, record) in self.table.records() {
                let restored = restore(self.sys.as_ref(), &self.table, &record);
                if restored.is_ok() && lock.is_none() {
                    self.table.free(index);
                }
            }
            return;
        }
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        // Every guard holds the set, so only orphans are left in the table.
        if self.is_owner() {
            let mut lock = self.lock();
            for (_, record) in self.table.records() {
                let _ = restore(self.sys.as_ref(), &self.table, &record);
            }
            self.table.header().closing.store(1, Release);
            let guardian = lock.take();
            drop(lock);
            if let Some(guardian) = guardian {
                guardian.stop();
            }
        }
    }
}

fn unreadable(tid: Tid, error: io::Error) -> ElevateError {
    if is_gone(&error) {
        ElevateError::NoSuchThread(tid)
    } else {
        ElevateError::Unreadable { tid, error }
    }
}
