//! Tests on the real kernel, with real threads, processes and deaths of processes.
//!
//! All elevation is bounded: children have an `alarm` and RLIMIT_RTTIME, and loops have a time
//! limit. Without the right to use SCHED_FIFO a test prints `skipped:` and the reason.

mod calibrate;
mod child;
mod deaths;
mod faults;
mod guards;
mod process;
mod rights;

use std::fmt::Display;
use std::io::Write;

use upshift_elevate::{Priority, Rights};

/// Reports, past the capture of the test harness, that the calling test is skipped.
fn skipped(reason: impl Display) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("test");
    let _ = writeln!(std::io::stderr(), "skipped: {name}: {reason}");
}

/// Returns whether this process may use SCHED_FIFO, and reports the reason if it may not. Also
/// arranges that the process ends when one of its threads occupies a CPU in SCHED_FIFO for 2 s.
fn is_permitted() -> bool {
    let limit = libc::rlimit {
        rlim_cur: 2_000_000,
        rlim_max: 2_000_000,
    };
    // SAFETY: `limit` is a live local.
    unsafe { libc::setrlimit(libc::RLIMIT_RTTIME, &raw const limit) };
    match Rights::probe().require(Priority::MAX) {
        Ok(()) => true,
        Err(missing) => {
            skipped(missing);
            false
        }
    }
}

/// Returns whether this process is [permitted](is_permitted) to use SCHED_FIFO and is root, which
/// some tests need to change users or choose PIDs. Reports the reason if it is not.
fn is_permitted_root() -> bool {
    // SAFETY: the call has no arguments.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root {
        skipped("needs root");
    }
    is_root && is_permitted()
}
