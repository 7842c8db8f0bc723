//! Restores the former policy of one thread. Guards, exit handlers and the guardian process use
//! this routine.
//!
//! The routine is idempotent, allocates nothing and takes no lock. On Linux, lowering a thread of
//! the same user needs no rights, so the routine works even after this process has lost its rights.
//! If the thread has kept capabilities that the caller has lost, the routine fails. The thread's
//! record then stays in the table, and the guardian or the next attempt restores the thread. The
//! routine tries these settings in turn until the kernel accepts one, and returns which one it was
//! ([`Restored`]):
//!
//! 1. the exact former policy;
//! 2. the former policy with the reset-on-fork flag, which only the privileged may clear;
//! 3. a policy that is not above the former one: the former priority as SCHED_FIFO, or the former
//!    class at the thread's present nice value.
//!
//! A setting (policy, nice value, CPUs) is restored only if this crate has made the present
//! setting. A setting that another program has made since is left alone ([`Restored::Superseded`]).
//! The crate recognises its own settings, because all its policies reset on fork, and because the
//! last nice values and CPUs that it has set are recorded. A thread without CAP_SYS_NICE cannot
//! leave a policy that resets on fork for a policy that does not.
//!
//! A thread is restored only if its tid *and* its start time (*birth*) match. If the birth cannot
//! be read (for example because no descriptor is free), the thread is changed only if its policy
//! looks like a policy of this crate, or if its policy cannot be read either.

use std::io;

use crate::policy::{Class, Policy};
use crate::sys::{CpuSet, RETRIES, SchedAttr, Sys, Tid, sleeps};
use crate::table::{Pin, Record, Table};

/// The extent to which a thread was restored.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restored {
    /// The former policy and CPUs are restored.
    Exactly,
    /// Everything is restored, except that `SCHED_RESET_ON_FORK` stays set, because clearing it
    /// needs CAP_SYS_NICE. Children of the thread get `SCHED_OTHER`, nice ≥ 0.
    ExceptResetOnFork,
    /// Another program has set the thread's policy since, and that policy is left alone.
    Superseded,
    /// The former policy could not be restored, because rights were lost. The thread is not above
    /// its former policy, but below it or at another nice value.
    Lowered,
    /// The thread has ended.
    Gone,
}

/// Repeats `call` while it is interrupted or the kernel lacks a resource, a bounded number of
/// times.
pub(crate) fn retry_transient<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut retries_left = RETRIES;
    loop {
        match call() {
            Err(error) if retries_left > 0 && is_transient(&error) => retries_left -= 1,
            result => return result,
        }
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINTR | libc::EAGAIN | libc::EBUSY | libc::ENOMEM)
    )
}

/// Runtime and period of the smallest reservation, in nanoseconds. The reservation is less than the
/// kernel's unit of bandwidth, so that the kernel counts it as zero.
const MIN_RESERVATION: (u64, u64) = (1 << 10, 2_000_000_000);

/// Calls `leave`, which takes the thread out of SCHED_DEADLINE if it is in that class.
///
/// If a thread *sleeps* while it leaves, the kernel does not return its reservation (seen with
/// Linux 6.18). The timer that would return the reservation has fired when the thread fell asleep,
/// and neither the thread's next wait nor its death returns it. The kernel then counts the
/// reservation as taken forever. So this function first makes the reservation of a sleeping thread
/// as small as possible, which the kernel accounts for at once. If the thread cannot leave, the
/// reservation is made as large as before. This costs two system calls and a read of `/proc`.
///
/// The reservation of a running thread stays as it is, and is returned when the thread leaves. The
/// small reservation would throttle such a thread, and a thread that was throttled when it left may
/// stay throttled when it comes back (seen for most threads with the small reservation, and rarely
/// without it). A thread in that state took minutes to end when killed.
pub(crate) fn leave_deadline<T>(
    sys: &dyn Sys,
    tid: Tid,
    leave: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    let policy = retry_transient(|| Policy::of(sys, tid)).ok();
    let has_reservation =
        |policy: &Policy| policy.class() == Class::Deadline && policy.looks_elevated();
    let Some(policy) = policy.filter(|policy| has_reservation(policy) && sleeps(tid)) else {
        return leave();
    };
    let (runtime, period) = MIN_RESERVATION;
    let minimal = SchedAttr {
        runtime,
        deadline: period,
        period,
        ..*policy.attr()
    };
    let shrink_result = retry_transient(|| sys.sched_setattr(tid, &minimal));
    let leave_result = leave();
    if leave_result.is_err() && shrink_result.is_ok() {
        // If this fails, too, the next attempt to restore the thread corrects it.
        let _ = retry_transient(|| sys.sched_setattr(tid, policy.attr()));
    }
    leave_result
}

pub(crate) fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT))
}

/// Restores the recorded thread. After an error the thread may still be elevated.
pub(crate) fn restore(sys: &dyn Sys, table: &Table, record: &Record) -> io::Result<Restored> {
    match restore_thread(sys, record)? {
        Restored::Gone => match exec_successor(sys, table, record) {
            Some(successor) => restore_thread(sys, &successor),
            None => Ok(Restored::Gone),
        },
        restored => Ok(restored),
    }
}

/// If the recorded thread has vanished because it has become the main thread of its process by
/// `exec`, returns a record for the main thread. A thread that calls `exec` takes the place of the
/// main thread of its process, and keeps its policy. So a main thread that looks elevated and has
/// no record of its own is the vanished thread.
fn exec_successor(sys: &dyn Sys, table: &Table, record: &Record) -> Option<Record> {
    let (leader, leader_birth) = record.leader?;
    let is_elevated = Policy::of(sys, leader).is_ok_and(|policy| policy.looks_elevated());
    let is_another = match sys.birth(leader) {
        Ok(now) => now != leader_birth,
        Err(error) => is_gone(&error),
    };
    if !is_elevated || is_another {
        return None;
    }
    if table.find(leader, leader_birth).is_some() {
        return None;
    }
    Some(Record {
        tid: leader,
        birth: leader_birth,
        leader: None,
        ..*record
    })
}

fn restore_thread(sys: &dyn Sys, record: &Record) -> io::Result<Restored> {
    match retry_transient(|| sys.birth(record.tid)) {
        Ok(birth) if birth != record.birth => return Ok(Restored::Gone),
        Ok(_) => {}
        Err(error) if is_gone(&error) => return Ok(Restored::Gone),
        Err(_) => match retry_transient(|| Policy::of(sys, record.tid)) {
            Ok(policy) if policy.looks_elevated() => {}
            // A thread that does not look elevated is another one, or was restored already.
            Ok(_) => return Ok(Restored::Gone),
            Err(error) if is_gone(&error) => return Ok(Restored::Gone),
            // The thread may be another one with this tid, but lowering another thread is a lesser
            // evil than leaving this one elevated.
            Err(_) => {}
        },
    }
    let restored = leave_deadline(sys, record.tid, || restore_policy(sys, record))?;
    if restored != Restored::Gone
        && let Some(pin) = &record.pin
    {
        restore_cpus(sys, record.tid, pin);
    }
    Ok(restored)
}

fn restore_policy(sys: &dyn Sys, record: &Record) -> io::Result<Restored> {
    let tid = record.tid;
    match retry_transient(|| Policy::of(sys, tid)) {
        Ok(now) if now.attr() == &record.former => return Ok(Restored::Exactly),
        Ok(now) if !now.resets_on_fork() => {
            restore_nice(sys, record, now.attr());
            return Ok(Restored::Superseded);
        }
        Err(error) if is_gone(&error) => return Ok(Restored::Gone),
        // A thread whose policy cannot be read is lowered.
        Ok(_) | Err(_) => {}
    }
    let former = &SchedAttr {
        nice: nice_to_restore(sys, record),
        ..record.former
    };
    let set = |attr: &SchedAttr| retry_transient(|| sys.sched_setattr(tid, attr));
    let first_error = match set(former) {
        Ok(()) => return Ok(Restored::Exactly),
        Err(error) if is_gone(&error) => return Ok(Restored::Gone),
        Err(error) => error,
    };
    let mut with_reset = *former;
    with_reset.flags |= libc::SCHED_FLAG_RESET_ON_FORK as u64;
    match set(&with_reset) {
        Ok(()) if with_reset.flags == former.flags => return Ok(Restored::Exactly),
        Ok(()) => return Ok(Restored::ExceptResetOnFork),
        Err(error) if is_gone(&error) => return Ok(Restored::Gone),
        Err(_) => {}
    }
    for (policy, priority) in fallbacks(former) {
        let call = || sys.sched_setscheduler(tid, policy | libc::SCHED_RESET_ON_FORK, priority);
        match retry_transient(call) {
            Ok(()) => return Ok(Restored::Lowered),
            Err(error) if is_gone(&error) => return Ok(Restored::Gone),
            Err(_) => {}
        }
    }
    Err(first_error)
}

/// Restores the nice value of a thread whose policy, `now`, another program has set. That program's
/// change leaves the nice value alone, so the thread still has the last value that this crate set.
fn restore_nice(sys: &dyn Sys, record: &Record, now: &SchedAttr) {
    let nice = record.former.nice;
    let is_set_by_crate = nice != now.nice && record.nices.contains(&Some(now.nice));
    if is_set_by_crate && has_nice(now) && has_nice(&record.former) {
        let attr = SchedAttr { nice, ..*now };
        // If the right to lower the nice value is missing, the thread stays below its former
        // policy.
        let _ = retry_transient(|| sys.sched_setattr(record.tid, &attr));
    }
}

/// Returns the former nice value, or the present value if another program has set it.
fn nice_to_restore(sys: &dyn Sys, record: &Record) -> i32 {
    match retry_transient(|| sys.nice(record.tid)) {
        Ok(now) if !record.nices.contains(&Some(now)) && has_nice(&record.former) => now,
        _ => record.former.nice,
    }
}

/// Returns whether the policy has a nice value.
fn has_nice(attr: &SchedAttr) -> bool {
    [libc::SCHED_OTHER, libc::SCHED_BATCH].contains(&(attr.policy as i32))
}

/// Returns policies that are certainly not above `former`, best first. `sched_setscheduler` leaves
/// the nice value alone.
fn fallbacks(former: &SchedAttr) -> impl Iterator<Item = (i32, i32)> {
    let former = *former;
    let real_time = Policy::from_attr(former).real_time();
    // Real-time priorities from 50 on are left to others, so they have no equivalent here.
    let lower = (1..=49)
        .contains(&real_time)
        .then_some((libc::SCHED_FIFO, real_time as i32));
    let fair = match former.policy as i32 {
        libc::SCHED_BATCH => libc::SCHED_BATCH,
        libc::SCHED_IDLE => libc::SCHED_IDLE,
        _ => libc::SCHED_OTHER,
    };
    lower.into_iter().chain([(fair, 0)])
}

/// Restores the former CPUs, unless another program has moved the thread since (for example by
/// `taskset`). If the former CPUs have gone offline, this is not a failure.
fn restore_cpus(sys: &dyn Sys, tid: Tid, pin: &Pin) {
    let Ok(now) = retry_transient(|| sys.sched_getaffinity(tid)) else {
        return;
    };
    let is_pinned_by_crate = pin
        .cpus
        .into_iter()
        .flatten()
        .filter_map(CpuSet::only)
        .any(|only| only == now);
    if is_pinned_by_crate {
        // Only the policy must be restored; a thread that cannot be moved keeps its present CPUs.
        let _ = retry_transient(|| sys.sched_setaffinity(tid, &pin.former));
    }
}
