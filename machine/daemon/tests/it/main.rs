//! Tests on the real kernel: a daemon, and processes that are good, bad, or killed.
//!
//! Whatever can be elevated is bounded: children live under `alarm` and RLIMIT_RTTIME, loops under a clock. Without the right to
//! use SCHED_FIFO a test prints `skipped:` and the reason. They run one at a time, because each wants a CPU for itself.

mod assign;
mod assign_rules;
mod attack;
mod budgets;
mod cgroup;
mod child;
mod client;
mod cpu_share;
mod deaths;
mod descriptors;
mod doorbells;
mod elevation;
mod false_daemon;
mod faults;
mod freezer;
mod fuzz;
mod identity;
mod inquest;
mod kernel;
mod lending;
mod main_thread;
mod operating;
mod place;
mod proc_files;
mod process;
mod protocol;
mod puppet;
mod quiet;
mod quotas;
mod registration;
mod reuse;
mod rules_thread;
mod shared_page;
mod sharing;
mod silence;
mod status_socket;
mod upheaval;

use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use upshift_daemon::{Config, Daemon};
use upshift_elevate::testing::hides_processes;
use upshift_elevate::{Priority, Rights};

static TURN: Mutex<()> = Mutex::new(());

/// A test's turn; the directory of its sockets goes with it.
struct Turn {
    _turn: MutexGuard<'static, ()>,
}

fn turn() -> Turn {
    Turn {
        _turn: TURN.lock().unwrap_or_else(PoisonError::into_inner),
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(directory());
    }
}

fn directory() -> PathBuf {
    std::env::temp_dir().join(format!("upshift-daemon-{}", std::process::id()))
}

/// Says that the calling test does not test, past the capture of the test harness.
fn skipped(why: impl Display) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("test");
    let _ = writeln!(std::io::stderr(), "skipped: {name}: {why}");
}

/// Whether this machine lets us; if not, says why.
fn permitted() -> bool {
    // SAFETY: cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        skipped("needs root");
        return false;
    }
    if hides_processes() {
        skipped(
            "/proc is mounted with hidepid, which hides the processes of others: `mount -o remount,hidepid=0 /proc`",
        );
        return false;
    }
    match Rights::probe().require(Priority::MAX) {
        Ok(()) => true,
        Err(missing) => {
            skipped(missing);
            false
        }
    }
}

/// A path for a socket of the calling test's own.
fn socket(name: &str) -> PathBuf {
    std::fs::create_dir_all(directory()).unwrap();
    directory().join(format!("{name}.sock"))
}

/// A configuration that listens there.
fn config(name: &str) -> Config {
    Config {
        socket: socket(name),
        ..Config::default()
    }
}

fn daemon(name: &str) -> Daemon {
    Daemon::start(config(name)).unwrap()
}
