//! Behaviour of the kernel that the rules work around.
//!
//! | behaviour | since | what is done |
//! |---|---|---|
//! | threads of one priority in SCHED_FIFO run until they sleep | always | threads that compute take turns (`process/turns.rs`) |
//! | SCHED_IDLE is last within a session or cgroup only; groups are equals | Linux 2.6.38 | a breath is longer for each process that steps aside (`domain.rs`) |
//! | a process that computes in a real-time class for RLIMIT_RTTIME is killed | 2.6.25 | it stays ordinary ([`tell_time_limit`]) |
//! | a cgroup without real-time time refuses SCHED_FIFO with `EPERM` (RT_GROUP_SCHED) | 2.6.25 | it stays ordinary, and is tried again each second ([`tell_refusal`]) |
//! | a quota of a cgroup does not hold real-time threads | 2.6.32 | the daemon charges the quota itself (`bounds/quota.rs`) |
//! | nothing reports that a process was moved to another cgroup | always | everything is looked through each [`SWEEP`](super::SWEEP) |
//! | events are lost when their reader is late | always | everything is looked through a second later |
//! | `/proc/PID` of a process whose main thread has ended is empty | always | a thread that lives is asked (`proc/living.rs`) |
//! | looking a name up in `/proc` may wait for a less urgent thread | before and with 6.18 | ordinary threads do it (`proc/reader.rs`) |
//! | the number of a thread that has ended may come to mean another one | always | a thread is recorded first, then proved to be of its process (`process.rs`) |

use std::io;

use crate::shared::Shared;

/// Says that a process stays ordinary because of its RLIMIT_RTTIME.
pub(super) fn tell_time_limit(shared: &Shared, pid: i32, us: u64) {
    shared.complain("time limit", || {
        format!("process {pid} stays ordinary, though a rule fits: its RLIMIT_RTTIME would kill it after {us} us in SCHED_FIFO (systemd: LimitRTTIME)")
    });
}

/// Says that a process stays ordinary because its cgroup has no real-time time, if `error` says so.
pub(super) fn tell_refusal(shared: &Shared, pid: i32, error: &io::Error) {
    if error.raw_os_error() == Some(libc::EPERM) {
        shared.complain("refused", || {
            format!("process {pid} stays ordinary, though a rule fits: the kernel refuses SCHED_FIFO. Its cgroup has no real-time time (see /proc/{pid}/cgroup; `cpu.rt_runtime_us` of the controller cpu, or RT_GROUP_SCHED with cgroup v2)")
        });
    }
}
