//! The guard of one elevated thread ([`Elevated`]), which restores the thread when it is dropped.
//!
//! A guard owns a slot in the table of its [`Elevator`](crate::Elevator), a set of threads, until
//! the slot is freed. Each use of a slot has a number, the generation. If the slot has a later
//! generation than the guard, the slot has been freed and may belong to another thread, so the
//! guard does nothing. All methods but [`Elevated::set`] and the other setters take the elevator's
//! lock.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::elevator::{FIFO, Set};
use crate::policy::Policy;
use crate::priority::Priority;
use crate::restore::{Restored, leave_deadline, retry_transient};
use crate::sys::{CpuSet, SchedAttr, Tid};
use crate::table::Record;

/// A guard of an elevated thread. Dropping it restores the thread's former policy, nice value and
/// CPUs, unless another program has changed them since.
///
/// A guard may be sent to and dropped on any thread.
#[derive(Debug)]
pub struct Elevated {
    inner: Arc<Set>,
    tid: Tid,
    index: usize,
    generation: u64,
    ceiling: Priority,
    /// Set while the thread may be in SCHED_DEADLINE.
    may_be_deadline: AtomicBool,
    /// Set when [`restore_living`](Self::restore_living) has failed. The record then belongs to the
    /// set.
    abandoned: AtomicBool,
}

impl Elevated {
    /// Creates the guard of the thread recorded in `slot` (index and generation), which may rise up
    /// to `ceiling`.
    pub(crate) fn new(
        inner: Arc<Set>,
        tid: Tid,
        slot: (usize, u64),
        ceiling: Priority,
    ) -> Elevated {
        Elevated {
            inner,
            tid,
            index: slot.0,
            generation: slot.1,
            ceiling,
            may_be_deadline: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
        }
    }

    /// Makes `call`, which puts the thread in a class other than SCHED_DEADLINE.
    #[inline]
    fn leave_deadline(&self, call: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        if !self.may_be_deadline.load(Relaxed) {
            return call();
        }
        leave_deadline(self.inner.sys.as_ref(), self.tid, call)?;
        self.may_be_deadline.store(false, Relaxed);
        Ok(())
    }

    /// Returns the thread's id.
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// Moves the thread to `priority`. If the thread is then less urgent than another ready thread
    /// on its CPU, the kernel switches before this method returns. One system call, no lock, no
    /// allocation.
    ///
    /// This method does not check that the tid still belongs to the same thread. So a guard of a
    /// thread of *another* process must not be used for long after that process has ended (see
    /// [`Elevated::is_alive`]), because the guard might act on a later thread with the same tid.
    /// Nor does this method check that the caller is the process that made the elevator, so a fork
    /// of that process must not call it.
    ///
    /// # Errors
    /// `ESRCH` if the thread has ended, `EPERM` if it is raised and the rights are gone, `EINVAL`
    /// above [`Priority::FOREIGN_MAX`] for a thread of another process. The priority is then
    /// unchanged.
    #[inline]
    pub fn set(&self, priority: Priority) -> io::Result<()> {
        if priority > self.ceiling {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        if !self.inner.table.is_current(self.index, self.generation) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        let sys = &self.inner.sys;
        self.leave_deadline(|| sys.sched_setscheduler(self.tid, FIFO, i32::from(priority.get())))
    }

    /// Pins the thread to one CPU. The first call saves the thread's former CPUs. They are restored
    /// with its policy, unless another program has moved the thread meanwhile.
    ///
    /// # Errors
    /// `EINVAL` if there is no such CPU or the thread may not run there, `ESRCH` if the thread has
    /// ended.
    pub fn pin(&self, cpu: usize) -> io::Result<()> {
        let only = CpuSet::only(cpu).ok_or(io::Error::from_raw_os_error(libc::EINVAL))?;
        if !self.inner.is_owner() {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        let _lock = self.inner.lock();
        if !self.inner.table.is_current(self.index, self.generation) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        let sys = self.inner.sys.as_ref();
        let former = || retry_transient(|| sys.sched_getaffinity(self.tid));
        let table = &self.inner.table;
        let former_pin = table.get(self.index).and_then(|record| record.pin);
        table.record_pin(self.index, cpu, former)?;
        retry_transient(|| sys.sched_setaffinity(self.tid, &only)).inspect_err(|_| {
            table.revert_pin(self.index, former_pin.map_or([None; 2], |pin| pin.cpus));
        })
    }

    /// Returns the thread's policy before it was elevated; `None` if it has been restored.
    pub fn former(&self) -> Option<Policy> {
        let _lock = self.inner.lock();
        if !self.inner.table.is_current(self.index, self.generation) {
            return None;
        }
        let record = self.inner.table.get(self.index)?;
        Some(Policy::from_attr(record.former))
    }

    /// Returns whether the thread still exists.
    pub fn is_alive(&self) -> bool {
        let record = {
            let _lock = self.inner.lock();
            if !self.inner.table.is_current(self.index, self.generation) {
                return false;
            }
            self.inner.table.get(self.index)
        };
        record.is_some_and(|record| {
            retry_transient(|| self.inner.sys.birth(self.tid))
                .is_ok_and(|start| start == record.birth)
        })
    }

    /// Restores the thread now, and returns how far it was restored. Dropping the guard does the
    /// same and ignores errors.
    ///
    /// # Errors
    /// The kernel's error. The record then stays, so that the end of the set, the exit of the
    /// process and the guardian can try again. The thread can also be elevated again.
    pub fn release(self) -> io::Result<Restored> {
        self.restore_and_free()
    }

    /// Takes the thread out of SCHED_FIFO temporarily, to `SCHED_OTHER` at its nice value. The
    /// thread stays recorded, and [`set`](Elevated::set) brings it back. One system call, or a few
    /// if the thread is in SCHED_DEADLINE; no lock, no allocation.
    ///
    /// # Errors
    /// `ESRCH` if the thread has ended or has been restored.
    #[inline]
    pub fn set_fair(&self) -> io::Result<()> {
        if !self.inner.table.is_current(self.index, self.generation) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        let policy = libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK;
        let sys = &self.inner.sys;
        self.leave_deadline(|| sys.sched_setscheduler(self.tid, policy, 0))
    }

    /// Moves the thread to `SCHED_OTHER` at `nice` (−20 … 19) temporarily. Otherwise like
    /// [`set_fair`](Elevated::set_fair).
    ///
    /// # Errors
    /// Those of [`set_fair`](Elevated::set_fair); `EPERM` if a nice value below the thread's own is
    /// not permitted.
    pub fn set_nice(&self, nice: i32) -> io::Result<()> {
        if self.inner.table.is_current(self.index, self.generation) {
            self.inner.table.record_nice(self.index, nice);
        }
        self.set_ordinary(libc::SCHED_OTHER, nice)
    }

    /// Moves the thread to `SCHED_IDLE` temporarily, so that it runs only when no other thread
    /// wants the CPU. Otherwise like [`set_fair`](Elevated::set_fair).
    ///
    /// # Errors
    /// Those of [`set_fair`](Elevated::set_fair).
    pub fn set_idle(&self) -> io::Result<()> {
        self.set_ordinary(libc::SCHED_IDLE, 0)
    }

    /// Moves the thread to `SCHED_DEADLINE`, above every priority of `SCHED_FIFO`. In each `period`
    /// the thread gets `runtime` of CPU time, within `deadline` of the period's beginning.
    /// Otherwise like [`set_fair`](Elevated::set_fair).
    ///
    /// The kernel enforces the runtime. A thread that has used up its runtime waits for the next
    /// period. (`SCHED_FLAG_RECLAIM`, which is not set, would let it use up to 95 % of a CPU above
    /// all other threads.) Children are `SCHED_OTHER`. In Linux 6.18, a thread that was throttled
    /// when it left this class sometimes gets no CPU when it comes back, so the caller should check
    /// that the thread runs.
    ///
    /// # Errors
    /// Those of [`set_fair`](Elevated::set_fair). `EBUSY` if the reservations exceed the kernel's
    /// bound, `EPERM` if the thread may not run on every CPU of its scheduling domain, `EINVAL`
    /// unless 1 µs < runtime ≤ deadline ≤ period.
    pub fn set_deadline(
        &self,
        runtime: Duration,
        deadline: Duration,
        period: Duration,
    ) -> io::Result<()> {
        if !self.inner.table.is_current(self.index, self.generation) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let attr = SchedAttr {
            policy: libc::SCHED_DEADLINE as u32,
            flags: libc::SCHED_FLAG_RESET_ON_FORK as u64,
            runtime: ns(runtime),
            deadline: ns(deadline),
            period: ns(period),
            ..SchedAttr::normal()
        };
        // The flag is set first, so that it is never missing. If the thread leaves the class
        // meanwhile, the next change only makes a needless check.
        self.may_be_deadline.store(true, Relaxed);
        self.inner.sys.sched_setattr(self.tid, &attr)
    }

    fn set_ordinary(&self, policy: i32, nice: i32) -> io::Result<()> {
        if !self.inner.table.is_current(self.index, self.generation) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        let attr = SchedAttr {
            policy: policy as u32,
            flags: libc::SCHED_FLAG_RESET_ON_FORK as u64,
            nice,
            ..SchedAttr::normal()
        };
        self.leave_deadline(|| self.inner.sys.sched_setattr(self.tid, &attr))
    }

    /// Returns a copy of the thread's record, if it belongs to `inner` and the thread has not been
    /// restored.
    pub(crate) fn record_in(&self, inner: &Arc<Set>) -> Option<Record> {
        if !Arc::ptr_eq(&self.inner, inner) {
            return None;
        }
        let _lock = self.inner.lock();
        if !self.inner.table.is_current(self.index, self.generation) {
            return None;
        }
        self.inner.table.get(self.index)
    }

    /// Restores the thread now, for a guard that is shared; [`set`](Elevated::set) fails
    /// afterwards.
    ///
    /// # Errors
    /// Those of [`Elevated::release`].
    pub fn restore(&self) -> io::Result<Restored> {
        self.restore_and_free()
    }

    /// Restores a thread that the caller knows to be alive, because the caller holds a pidfd or an
    /// open file of it. If the kernel reports nevertheless that the thread has ended, the record
    /// stays.
    ///
    /// # Errors
    /// Those of [`Elevated::release`]; `ESRCH` if the kernel reports that the thread has ended.
    /// After an error, dropping the guard does nothing.
    pub fn restore_living(&self) -> io::Result<Restored> {
        let restored = self.try_restore_and_free(true);
        self.abandoned.store(restored.is_err(), Relaxed);
        restored
    }

    fn restore_and_free(&self) -> io::Result<Restored> {
        self.try_restore_and_free(false)
    }

    fn try_restore_and_free(&self, is_known_alive: bool) -> io::Result<Restored> {
        if !self.inner.is_owner() || self.abandoned.load(Relaxed) {
            return Ok(Restored::Gone);
        }
        let _lock = self.inner.lock();
        if !self.inner.table.is_current(self.index, self.generation) {
            return Ok(Restored::Gone);
        }
        match self.inner.table.get(self.index) {
            Some(record) => self
                .inner
                .restore_and_free(self.index, &record, is_known_alive),
            None => Ok(Restored::Gone),
        }
    }
}

impl Drop for Elevated {
    fn drop(&mut self) {
        // After `release` the slot has a later generation, so this does nothing.
        let _ = self.restore_and_free();
    }
}
