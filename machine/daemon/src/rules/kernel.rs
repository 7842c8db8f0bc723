//! Lists the kernel behaviour that the rules work around, and reports it to the administrator.
//!
//! | behaviour | since Linux | remedy |
//! |---|---|---|
//! | SCHED_FIFO has no slices | always | computing threads are rotated: `process/rotation.rs` |
//! | SCHED_IDLE is last in its session or cgroup only | 2.6.38 | longer pauses: `domain.rs` |
//! | RLIMIT_RTTIME kills a process that computes | 2.6.25 | no elevation: [`report_time_limit`] |
//! | a cgroup may have no real-time runtime | 2.6.25 | no elevation: [`report_refusal`] |
//! | cgroup quotas do not limit real-time threads | 2.6.32 | daemon's quotas: `bounds/quota.rs` |
//! | moves between cgroups are not reported | always | a sweep every `SWEEP` |
//! | events are lost when their reader is late | 2.6.15 | a sweep one second later |
//! | `/proc/PID` is empty without a main thread | always | another thread: `proc/living.rs` |
//! | a lookup in `/proc` may wait for any thread | always | readers: `proc/reader.rs` |
//! | TIDs are reused | always | threads are recorded, then checked: `process.rs` |

use std::io;

use crate::shared::Shared;

/// Reports that a process stays ordinary because of its RLIMIT_RTTIME, `us` microseconds.
pub(super) fn report_time_limit(shared: &Shared, pid: i32, us: u64) {
    shared.warn("time limit", || {
        format!("process {pid} stays ordinary, though a rule fits: its RLIMIT_RTTIME would kill it after {us} us in SCHED_FIFO (systemd: LimitRTTIME)")
    });
}

/// Reports that a process stays ordinary because its cgroup has no real-time runtime. Only EPERM
/// has this meaning, so other errors are not reported.
pub(super) fn report_refusal(shared: &Shared, pid: i32, error: &io::Error) {
    if error.raw_os_error() == Some(libc::EPERM) {
        shared.warn("refused", || {
            format!("process {pid} stays ordinary, though a rule fits: the kernel refuses SCHED_FIFO. Its cgroup has no real-time time (see /proc/{pid}/cgroup; `cpu.rt_runtime_us` of the controller cpu, or RT_GROUP_SCHED with cgroup v2)")
        });
    }
}
