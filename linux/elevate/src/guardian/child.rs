//! The code that runs in the guardian, a forked child that restores the elevated threads when its
//! owner (the parent process) dies.
//!
//! The code must be async-signal-safe, because the owner may have many threads when it forks. So it
//! only makes system calls and uses plain memory, and does not allocate, lock or panic. The
//! guardian blocks in `poll`. Without a heartbeat to check, it uses no CPU time until its owner
//! dies.

use std::ffi::c_int;
use std::sync::atomic::Ordering::{Acquire, SeqCst};
use std::sync::atomic::fence;
use std::time::Duration;

use crate::policy::Policy;
use crate::priority::Priority;
use crate::restore::{Restored, is_gone, leave_deadline, restore};
use crate::sys::{CpuSet, Kernel, Sys};
use crate::table::Table;

/// Maximum number of passes over the table if restorations fail.
const MAX_PASSES: usize = 10;
/// Pause between two passes, in milliseconds.
const PAUSE_MS: c_int = 20;

/// Interval in milliseconds at which the guardian checks for its parent if the kernel has no pidfd.
const PARENT_CHECK_MS: c_int = 100;

/// Number of checks per heartbeat, so that a missed heartbeat is noticed after 1 to
/// 1 + 1/[`CHECKS_PER_HEARTBEAT`] heartbeats.
const CHECKS_PER_HEARTBEAT: u32 = 4;

/// Watches `owner`, restores all threads when it ends, and exits. `socket` is the guardian's end of
/// the pair.
pub(super) fn run(
    table: &Table,
    socket: c_int,
    owner: libc::pid_t,
    heartbeat: Option<Duration>,
) -> ! {
    detach(socket);
    raise_priority();
    let owner_birth = Kernel.birth(owner).unwrap_or(0);
    let pidfd = Kernel.pidfd_open(owner).unwrap_or(-1);
    // SAFETY: the pointer is valid for one byte. If the owner is dead already, the loop notices.
    unsafe { libc::send(socket, [1u8].as_ptr().cast(), 1, libc::MSG_NOSIGNAL) };
    // The table may already hold records, made while an earlier guardian lived.
    let mut monitor = HeartbeatMonitor::new(table, heartbeat);
    loop {
        let timeout_ms = match (monitor.check_interval_ms(), pidfd) {
            (Some(interval), _) => interval,
            (None, ..0) => PARENT_CHECK_MS,
            (None, _) => -1,
        };
        match wait(socket, pidfd, owner, timeout_ms) {
            WaitOutcome::OwnerEnded => break,
            WaitOutcome::Woken => monitor.check(false),
            WaitOutcome::TimedOut => monitor.check(true),
        }
    }
    let is_closed_in_order = table.header().closing.load(Acquire) == 1;
    if !is_closed_in_order {
        restore_leader_after_exec(table, owner, owner_birth);
    }
    restore_all(table);
    // SAFETY: the call has no preconditions; it ends the process without running the owner's code.
    unsafe { libc::_exit(0) }
}

struct HeartbeatMonitor<'a> {
    table: &'a Table,
    interval_ms: Option<c_int>,
    is_checking: bool,
    last_beats: u64,
    /// Number of consecutive checks that found no new beat.
    missed_checks: u32,
}

impl<'a> HeartbeatMonitor<'a> {
    fn new(table: &'a Table, heartbeat: Option<Duration>) -> HeartbeatMonitor<'a> {
        let interval_ms = heartbeat.map(|longest| {
            (longest / CHECKS_PER_HEARTBEAT)
                .as_millis()
                .clamp(1, 60_000) as c_int
        });
        HeartbeatMonitor {
            table,
            interval_ms,
            is_checking: interval_ms.is_some(),
            last_beats: table.header().beats.load(Acquire),
            missed_checks: 0,
        }
    }

    fn check_interval_ms(&self) -> Option<c_int> {
        self.interval_ms.filter(|_| self.is_checking)
    }

    /// Checks the heartbeat after a wait. `timed_out` says that the wait lasted its full time.
    fn check(&mut self, timed_out: bool) {
        if self.interval_ms.is_none() {
            return;
        }
        let header = self.table.header();
        let beats = header.beats.load(Acquire);
        // If the owner has woken the guardian early, the owner is alive.
        let is_missed = timed_out && self.is_checking && beats == self.last_beats;
        self.last_beats = beats;
        self.missed_checks = if is_missed { self.missed_checks + 1 } else { 0 };
        if is_missed
            && self.missed_checks.is_multiple_of(CHECKS_PER_HEARTBEAT)
            && demote_all(self.table)
        {
            header.demotions.fetch_add(1, SeqCst);
        }
        header.armed.store(0, SeqCst);
        // Pairs with the fence between the owner's record and its check of `armed`, so that at
        // least one side sees the other's store.
        fence(SeqCst);
        self.is_checking = self.table.has_foreign();
        if self.is_checking {
            header.armed.store(1, SeqCst);
        }
    }
}

/// Takes every recorded thread of other processes out of SCHED_FIFO. The records stay. Returns
/// whether a thread was demoted. Only the atomic words of the table are read, because the owner may
/// be alive.
fn demote_all(table: &Table) -> bool {
    let mut demoted_any = false;
    for (tid, birth) in table.foreign_threads() {
        let is_elevated = Policy::of(&Kernel, tid).is_ok_and(|policy| policy.looks_elevated());
        let is_same_thread = || match Kernel.birth(tid) {
            Ok(now) => now == birth,
            Err(error) => !is_gone(&error),
        };
        if is_elevated && is_same_thread() {
            let fair = libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK;
            let demote = || Kernel.sched_setscheduler(tid, fair, 0);
            demoted_any |= leave_deadline(&Kernel, tid, demote).is_ok();
        }
    }
    demoted_any
}

/// Leaves the owner's session, directory and descriptors.
fn detach(socket: c_int) {
    // SAFETY: the calls take only integers and valid constant strings. The closed descriptors are
    // the guardian's own copies. Signals were blocked before the fork.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"upshift-guard".as_ptr());
        libc::setsid();
        libc::chdir(c"/".as_ptr());
        let (low, high) = (socket as libc::c_uint, libc::c_uint::MAX);
        let mut closed = libc::syscall(libc::SYS_close_range, low + 1, high, 0) == 0;
        if low > 0 {
            closed &= libc::syscall(libc::SYS_close_range, 0, low - 1, 0) == 0;
        }
        if !closed {
            // Linux before 5.9 lacks the call, so close the descriptors one by one.
            for fd in (0..65_536).filter(|&fd| fd != socket) {
                libc::close(fd);
            }
        }
        // Errors are ignored, because this needs CAP_SYS_RESOURCE.
        let fd = libc::open(
            c"/proc/self/oom_score_adj".as_ptr(),
            libc::O_WRONLY | libc::O_CLOEXEC,
        );
        if fd >= 0 {
            libc::write(fd, b"-1000".as_ptr().cast(), 5);
            libc::close(fd);
        }
        // The guardian must not wait for a disk when memory is short. Pages that it has touched
        // stay in memory; without CAP_IPC_LOCK the kernel refuses.
        libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT);
    }
}

/// Lets the guardian run on every permitted CPU and, if permitted, gives it a priority above all
/// guarded threads.
fn raise_priority() {
    let _ = Kernel.sched_setaffinity(0, &CpuSet::all());
    let _ = Kernel.sched_setscheduler(
        0,
        libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK,
        i32::from(Priority::MAX.get()),
    );
}

enum WaitOutcome {
    /// The owner is dead, or it tells the guardian to end.
    OwnerEnded,
    Woken,
    TimedOut,
}

/// Waits at most `timeout_ms` milliseconds. With -1 there is no time limit.
fn wait(socket: c_int, pidfd: c_int, owner: libc::pid_t, timeout_ms: c_int) -> WaitOutcome {
    let mut fds = [socket, pidfd].map(|fd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    });
    // SAFETY: the pointer is valid for two entries. The kernel ignores a negative descriptor.
    let ready = unsafe { libc::poll(fds.as_mut_ptr(), 2, timeout_ms) };
    // SAFETY: `getppid` has no arguments and cannot fail.
    let is_orphaned = unsafe { libc::getppid() } != owner;
    if is_orphaned || (ready > 0 && fds[1].revents != 0) {
        return WaitOutcome::OwnerEnded;
    }
    if ready <= 0 || fds[0].revents == 0 {
        return WaitOutcome::TimedOut;
    }
    let mut byte = [0u8];
    // SAFETY: at most one byte is written to the array.
    let received = unsafe { libc::recv(socket, byte.as_mut_ptr().cast(), 1, libc::MSG_DONTWAIT) };
    // The end of file means that the owner has ended or has closed its end.
    if received > 0 {
        WaitOutcome::Woken
    } else {
        WaitOutcome::OwnerEnded
    }
}

fn restore_all(table: &Table) {
    for _ in 0..MAX_PASSES {
        let mut has_failed = false;
        for (_, record) in table.records() {
            has_failed |= restore(&Kernel, table, &record).is_err();
        }
        if !has_failed {
            return;
        }
        // SAFETY: the call gets no descriptors, so it accesses no memory and only waits.
        unsafe { libc::poll(std::ptr::null_mut(), 0, PAUSE_MS) };
    }
}

/// Restores the main thread after an `exec`. If another thread called `exec`, that thread has
/// become the main thread and kept its policy, but its record names a tid that is gone.
fn restore_leader_after_exec(table: &Table, owner: libc::pid_t, owner_birth: u64) {
    let is_same_process = Kernel.birth(owner).is_ok_and(|now| now == owner_birth);
    let has_lost_a_thread = || {
        table
            .records()
            .any(|(_, record)| record.is_own && Kernel.birth(record.tid).is_err())
    };
    let is_elevated = || Policy::of(&Kernel, owner).is_ok_and(|policy| policy.looks_elevated());
    if is_same_process && is_elevated() && has_lost_a_thread() {
        let record = crate::table::Record {
            tid: owner,
            birth: owner_birth,
            is_own: true,
            leader: None,
            former: table.leader_policy(),
            nices: [None; 2],
            pin: None,
        };
        // If the main thread itself was elevated, it is restored by its own record afterwards.
        let _: Result<Restored, _> = restore(&Kernel, table, &record);
    }
}
