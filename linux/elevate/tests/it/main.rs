//! Tests on the real kernel: real threads, real processes, real deaths.
//!
//! All elevation is bounded: children live under `alarm` and RLIMIT_RTTIME, loops under a clock.
//! Without the right to use SCHED_FIFO a test prints `skipped:` and the reason.

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
fn skipped(why: impl Display) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("test");
    let _ = writeln!(std::io::stderr(), "skipped: {name}: {why}");
}

/// Returns whether this machine permits SCHED_FIFO; reports the reason if not. From then on a
/// thread of this process that keeps a CPU in SCHED_FIFO for 2 s ends the process.
fn permitted() -> bool {
    let limit = libc::rlimit {
        rlim_cur: 2_000_000,
        rlim_max: 2_000_000,
    };
    // SAFETY: a live structure.
    unsafe { libc::setrlimit(libc::RLIMIT_RTTIME, &raw const limit) };
    match Rights::probe().require(Priority::MAX) {
        Ok(()) => true,
        Err(missing) => {
            skipped(missing);
            false
        }
    }
}

/// Checks [`permitted`] for tests that need root to change users or choose pids.
fn root() -> bool {
    // SAFETY: cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        skipped("needs root");
    }
    root && permitted()
}
