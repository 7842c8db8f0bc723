//! [`Elevated`]: the guard of one elevated thread.
//!
//! It owns one use of a slot of its set's table, named by index and generation; once that is past, it acts on no thread.
//! Everything but [`Elevated::set`] takes the set's lock.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::elevator::{FIFO, Set};
use crate::policy::Policy;
use crate::priority::Priority;
use crate::restore::{Restored, leaving_deadline, retrying};
use crate::sys::{CpuSet, SchedAttr, Tid};
use crate::table::Record;

/// A guard of an elevated thread. Dropping it gives the thread its former policy, nice value and
/// CPUs back, as far as these still are the ones that this crate has set.
///
/// It may be sent to and dropped on any thread.
#[derive(Debug)]
pub struct Elevated {
    inner: Arc<Set>,
    tid: Tid,
    index: usize,
    generation: u64,
    ceiling: Priority,
    /// It has been put in SCHED_DEADLINE, and not been taken out since.
    reserves: AtomicBool,
    /// It has been given up: its record is the set's.
    left: AtomicBool,
}

impl Elevated {
    /// The guard of the thread recorded in `slot` (index and generation), which may rise up to `ceiling`.
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
            reserves: AtomicBool::new(false),
            left: AtomicBool::new(false),
        }
    }

    /// Makes `call`, which puts the thread in another class than SCHED_DEADLINE.
    #[inline]
    fn leaving(&self, call: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        if !self.reserves.load(Relaxed) {
            return call();
        }
        leaving_deadline(self.inner.sys.as_ref(), self.tid, call)?;
        self.reserves.store(false, Relaxed);
        Ok(())
    }

    /// The thread.
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// Moves the thread to `priority`: one system call, 0.3–1 µs, no lock, no allocation. If the thread is then less
    /// urgent than another one that is ready on its CPU, the kernel switches before this returns.
    ///
    /// Its birth is not compared here: a guard of a thread of *another* process must not be used for
    /// long after that process ended (see [`Elevated::is_alive`]), or it might meet a later thread of the same tid. Nor is
    /// it checked that the caller is the process that made the set: a fork of it must not call this.
    ///
    /// # Errors
    /// `ESRCH` if the thread has ended, `EPERM` if it is raised and the rights are gone, `EINVAL` above
    /// [`Priority::FOREIGN_MAX`] for a thread of another process. The priority is then as it was.
    #[inline]
    pub fn set(&self, priority: Priority) -> io::Result<()> {
        if priority > self.ceiling {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        if !self.inner.table.is_current(self.index, self.generation) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        let sys = &self.inner.sys;
        self.leaving(|| sys.sched_setscheduler(self.tid, FIFO, i32::from(priority.get())))
    }

    /// Pins the thread to one CPU. Its former CPUs are saved the first time and come back with its policy, unless
    /// another program has moved the thread meanwhile.
    ///
    /// # Errors
    /// `EINVAL` if there is no such CPU or the thread may not run there, `ESRCH` if the thread has ended.
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
        let former = || retrying(|| sys.sched_getaffinity(self.tid));
        let table = &self.inner.table;
        let noted = table.get(self.index).and_then(|record| record.pin);
        table.note_pin(self.index, cpu, former)?;
        retrying(|| sys.sched_setaffinity(self.tid, &only)).inspect_err(|_| {
            table.unnote_pin(self.index, noted.map_or([None; 2], |pin| pin.cpus));
        })
    }

    /// What the thread had before it was elevated; `None` if it has been given back.
    pub fn former(&self) -> Option<Policy> {
        let _lock = self.inner.lock();
        if !self.inner.table.is_current(self.index, self.generation) {
            return None;
        }
        let record = self.inner.table.get(self.index)?;
        Some(Policy::from_attr(record.former))
    }

    /// Whether the thread still exists.
    pub fn is_alive(&self) -> bool {
        let record = {
            let _lock = self.inner.lock();
            if !self.inner.table.is_current(self.index, self.generation) {
                return false;
            }
            self.inner.table.get(self.index)
        };
        record.is_some_and(|record| {
            retrying(|| self.inner.sys.birth(self.tid)).is_ok_and(|start| start == record.birth)
        })
    }

    /// Gives the thread back now and says how far that went; dropping does the same silently.
    ///
    /// # Errors
    /// The kernel's. The record then stays: it is tried again at the end of the set, at exit and by the guardian, and the
    /// thread can be elevated again.
    pub fn release(self) -> io::Result<Restored> {
        self.give_back()
    }

    /// Takes the thread out of SCHED_FIFO for the time being, to `SCHED_OTHER` at the nice value it has. It stays recorded, and
    /// [`set`](Elevated::set) brings it back. One system call, a few more out of SCHED_DEADLINE; no lock, no allocation.
    ///
    /// # Errors
    /// `ESRCH` if the thread has ended or has been given back.
    #[inline]
    pub fn set_fair(&self) -> io::Result<()> {
        if !self.inner.table.is_current(self.index, self.generation) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        let policy = libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK;
        let sys = &self.inner.sys;
        self.leaving(|| sys.sched_setscheduler(self.tid, policy, 0))
    }

    /// Moves the thread to `SCHED_OTHER` at `nice` (−20 … 19) for the time being; the rest is as with
    /// [`set_fair`](Elevated::set_fair).
    ///
    /// # Errors
    /// As [`set_fair`](Elevated::set_fair); `EPERM` if a nice value below the thread's own is not permitted.
    pub fn set_nice(&self, nice: i32) -> io::Result<()> {
        if self.inner.table.is_current(self.index, self.generation) {
            self.inner.table.note_nice(self.index, nice);
        }
        self.set_ordinary(libc::SCHED_OTHER, nice)
    }

    /// Moves the thread to `SCHED_IDLE` for the time being: it runs when no other thread wants the CPU. The rest is as with
    /// [`set_fair`](Elevated::set_fair).
    ///
    /// # Errors
    /// As [`set_fair`](Elevated::set_fair).
    pub fn set_idle(&self) -> io::Result<()> {
        self.set_ordinary(libc::SCHED_IDLE, 0)
    }

    /// Moves the thread to `SCHED_DEADLINE`, above every priority of `SCHED_FIFO`: `runtime` in each `period`, within `deadline` of its
    /// beginning. The kernel enforces the runtime: beyond it the thread waits for the next period. (With `SCHED_FLAG_RECLAIM` it would have
    /// up to 95 % of a CPU, above everything else.) Its children are `SCHED_OTHER`. Linux 6.18 now and then keeps a thread from the CPU that was throttled when
    /// it left this class, and comes back: look whether it runs. The rest is as with [`set_fair`](Elevated::set_fair).
    ///
    /// # Errors
    /// As [`set_fair`](Elevated::set_fair); `EBUSY` if the reservations add up to more than the kernel admits, `EPERM` if the thread may not
    /// run on every CPU of its scheduling domain, `EINVAL` if the times are not in order (1 µs < runtime ≤ deadline ≤ period).
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
        // Before: a thread that leaves meanwhile looks once too often.
        self.reserves.store(true, Relaxed);
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
        self.leaving(|| self.inner.sys.sched_setattr(self.tid, &attr))
    }

    /// A copy of the thread's record, if it belongs to `inner` and has not been given back.
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

    /// Gives the thread back now, for a guard that is shared; [`set`](Elevated::set) fails afterwards.
    ///
    /// # Errors
    /// As [`Elevated::release`].
    pub fn restore(&self) -> io::Result<Restored> {
        self.give_back()
    }

    /// As [`Elevated::restore`], of a thread of which the caller knows that it lives, by its pidfd or an open file of its own: if the kernel says that it has
    /// ended, that is not believed, and the record stays.
    ///
    /// # Errors
    /// As [`Elevated::release`]; `ESRCH` if the thread is said to have ended. Dropping the guard then does nothing.
    pub fn restore_living(&self) -> io::Result<Restored> {
        let restored = self.try_give_back(true);
        self.left.store(restored.is_err(), Relaxed);
        restored
    }

    fn give_back(&self) -> io::Result<Restored> {
        self.try_give_back(false)
    }

    fn try_give_back(&self, lives: bool) -> io::Result<Restored> {
        if !self.inner.is_owner() || self.left.load(Relaxed) {
            return Ok(Restored::Gone);
        }
        let _lock = self.inner.lock();
        if !self.inner.table.is_current(self.index, self.generation) {
            return Ok(Restored::Gone);
        }
        match self.inner.table.get(self.index) {
            Some(record) => self.inner.give_back(self.index, &record, lives),
            None => Ok(Restored::Gone),
        }
    }
}

impl Drop for Elevated {
    fn drop(&mut self) {
        // After `release` the generation is past, and this does nothing.
        let _ = self.give_back();
    }
}
