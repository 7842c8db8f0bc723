//! The guardian's own code, after the fork of a process with many threads.
//!
//! Only what is safe in a signal handler: system calls and plain memory; no allocation, no lock, no panic. It blocks in
//! `poll`; without a heartbeat to look at it costs nothing until its owner dies.

use std::ffi::c_int;
use std::sync::atomic::Ordering::{Acquire, SeqCst};
use std::sync::atomic::fence;
use std::time::Duration;

use crate::policy::Policy;
use crate::priority::Priority;
use crate::restore::{Restored, is_gone, leaving_deadline, restore};
use crate::sys::{CpuSet, Kernel, Sys};
use crate::table::Table;

/// Passes over the table until nothing fails, and the pause between two of them.
const PASSES: usize = 10;
const PAUSE_MS: c_int = 20;

/// How often it looks for its parent if the kernel has no pidfd.
const LOOK_MS: c_int = 100;

/// Looks at the heartbeat in the time the owner may be without one: it is missed after 1 to 1 + 1/[`LOOKS`] of that.
const LOOKS: u32 = 4;

/// Watches `owner`, restores, exits. `socket` is its end of the pair.
pub(super) fn run(
    table: &Table,
    socket: c_int,
    owner: libc::pid_t,
    heartbeat: Option<Duration>,
) -> ! {
    detach(socket);
    rise();
    let start = Kernel.birth(owner).unwrap_or(0);
    let pidfd = Kernel.pidfd_open(owner).unwrap_or(-1);
    // SAFETY: one byte of a live array. If the owner is dead already, the loop finds out.
    unsafe { libc::send(socket, [1u8].as_ptr().cast(), 1, libc::MSG_NOSIGNAL) };
    // It may have been started over records that an earlier one has left.
    let mut heart = Heart::new(table, heartbeat);
    loop {
        let patience = match (heart.look_ms(), pidfd) {
            (Some(look), _) => look,
            (None, ..0) => LOOK_MS,
            (None, _) => -1,
        };
        match wait(socket, pidfd, owner, patience) {
            Waited::Over => break,
            Waited::Rung => heart.look(false),
            Waited::Through => heart.look(true),
        }
    }
    let in_order = table.header().closing.load(Acquire) == 1;
    if !in_order {
        restore_leader_after_exec(table, owner, start);
    }
    restore_all(table);
    // SAFETY: ends the process without running anything of the owner's.
    unsafe { libc::_exit(0) }
}

/// What the guardian knows of its owner's heart.
struct Heart<'a> {
    table: &'a Table,
    /// ms between two looks.
    every: Option<c_int>,
    watching: bool,
    last: u64,
    /// Looks in a row without a beat in between.
    missed: u32,
}

impl<'a> Heart<'a> {
    fn new(table: &'a Table, heartbeat: Option<Duration>) -> Heart<'a> {
        let every =
            heartbeat.map(|longest| (longest / LOOKS).as_millis().clamp(1, 60_000) as c_int);
        Heart {
            table,
            every,
            watching: every.is_some(),
            last: table.header().beats.load(Acquire),
            missed: 0,
        }
    }

    fn look_ms(&self) -> Option<c_int> {
        self.every.filter(|_| self.watching)
    }

    /// Called after each wait; `through`: it was as long as wanted.
    fn look(&mut self, through: bool) {
        if self.every.is_none() {
            return;
        }
        let header = self.table.header();
        let beats = header.beats.load(Acquire);
        // The process that has woken the guardian early lives.
        let missed = through && self.watching && beats == self.last;
        (self.last, self.missed) = (beats, if missed { self.missed + 1 } else { 0 });
        if missed && self.missed.is_multiple_of(LOOKS) && demote_all(self.table) {
            header.demotions.fetch_add(1, SeqCst);
        }
        header.armed.store(0, SeqCst);
        // As the owner's between its record and its look: one of the two sees the other's.
        fence(SeqCst);
        self.watching = self.table.has_foreign();
        if self.watching {
            header.armed.store(1, SeqCst);
        }
    }
}

/// Takes every thread of other processes out of SCHED_FIFO; the records stay. Whether any was there.
fn demote_all(table: &Table) -> bool {
    let mut any = false;
    for (_, record) in table.records().filter(|(_, record)| !record.own) {
        let elevated = Policy::of(&Kernel, record.tid).is_ok_and(|policy| policy.looks_elevated());
        let same = || match Kernel.birth(record.tid) {
            Ok(start) => start == record.birth,
            Err(error) => !is_gone(&error),
        };
        if elevated && same() {
            let fair = libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK;
            let demote = || Kernel.sched_setscheduler(record.tid, fair, 0);
            any |= leaving_deadline(&Kernel, record.tid, demote).is_ok();
        }
    }
    any
}

/// Leaves the owner's session, directory and descriptors.
fn detach(socket: c_int) {
    // SAFETY: system calls on integers and constant strings. Signals were blocked before the fork. The descriptors
    // that are closed are the guardian's own copies.
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
            // Kernels before 5.9: one by one.
            for fd in (0..65_536).filter(|&fd| fd != socket) {
                libc::close(fd);
            }
        }
        // Best effort: sparing needs CAP_SYS_RESOURCE.
        let fd = libc::open(
            c"/proc/self/oom_score_adj".as_ptr(),
            libc::O_WRONLY | libc::O_CLOEXEC,
        );
        if fd >= 0 {
            libc::write(fd, b"-1000".as_ptr().cast(), 5);
            libc::close(fd);
        }
        // Nor is it to wait for a disk when memory is short. What it has touched stays; without CAP_IPC_LOCK the kernel refuses.
        libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT);
    }
}

/// Takes every CPU it may have and, if permitted, a priority above every charge.
fn rise() {
    let _ = Kernel.sched_setaffinity(0, &CpuSet::all());
    let _ = Kernel.sched_setscheduler(
        0,
        libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK,
        i32::from(Priority::MAX.get()),
    );
}

/// How a wait ended.
enum Waited {
    /// The owner is dead or ends the guardian.
    Over,
    /// The owner has woken the guardian up.
    Rung,
    /// Nothing has happened.
    Through,
}

/// Waits at most `timeout` ms (-1: for ever).
fn wait(socket: c_int, pidfd: c_int, owner: libc::pid_t, timeout: c_int) -> Waited {
    let mut watched = [socket, pidfd].map(|fd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    });
    // SAFETY: two live entries; a negative descriptor is ignored by the kernel.
    let ready = unsafe { libc::poll(watched.as_mut_ptr(), 2, timeout) };
    // SAFETY: cannot fail.
    let orphaned = unsafe { libc::getppid() } != owner;
    if orphaned || (ready > 0 && watched[1].revents != 0) {
        return Waited::Over;
    }
    if ready <= 0 || watched[0].revents == 0 {
        return Waited::Through;
    }
    let mut byte = [0u8];
    // SAFETY: at most one byte is received into a live array.
    let got = unsafe { libc::recv(socket, byte.as_mut_ptr().cast(), 1, libc::MSG_DONTWAIT) };
    // The end of the file is the end of its owner.
    if got > 0 { Waited::Rung } else { Waited::Over }
}

fn restore_all(table: &Table) {
    for _ in 0..PASSES {
        let mut failed = false;
        for (_, record) in table.records() {
            failed |= restore(&Kernel, table, &record).is_err();
        }
        if !failed {
            return;
        }
        // SAFETY: waits only.
        unsafe { libc::poll(std::ptr::null_mut(), 0, PAUSE_MS) };
    }
}

/// If a thread other than the main one called `exec`, it has become the main thread and kept its policy. Its record names
/// a tid that is gone.
fn restore_leader_after_exec(table: &Table, owner: libc::pid_t, start: u64) {
    let same_process = Kernel.birth(owner).is_ok_and(|now| now == start);
    let lost_a_thread = || {
        table
            .records()
            .any(|(_, record)| record.own && Kernel.birth(record.tid).is_err())
    };
    let elevated = || Policy::of(&Kernel, owner).is_ok_and(|policy| policy.looks_elevated());
    if same_process && elevated() && lost_a_thread() {
        let record = crate::table::Record {
            tid: owner,
            birth: start,
            own: true,
            leader: None,
            former: table.leader(),
            nices: [None; 2],
            pin: None,
        };
        // What the main thread itself was elevated from, if it was, is restored after this by its own record.
        let _: Result<Restored, _> = restore(&Kernel, table, &record);
    }
}
