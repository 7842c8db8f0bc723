//! Tests on the real kernel: a daemon, and processes that behave, misbehave, or are killed.
//!
//! Every elevated thread is bounded: children live under `alarm` and RLIMIT_RTTIME, loops under a
//! clock. Without the right to use SCHED_FIFO a test prints `skipped:` and the reason. The tests
//! run one at a time, because each needs a CPU for itself.

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
mod socket_path;
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

/// A test's turn. Dropping it removes the directory of its sockets.
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

/// Reports that the calling test is skipped, past the capture of the test harness.
fn skipped(why: impl Display) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("test");
    let _ = writeln!(std::io::stderr(), "skipped: {name}: {why}");
}

/// Whether this machine has the rights for a test; if not, reports that.
fn permitted() -> bool {
    // SAFETY: a plain call that cannot fail.
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

/// Returns a path for a socket of the calling test.
fn socket(name: &str) -> PathBuf {
    std::fs::create_dir_all(directory()).unwrap();
    directory().join(format!("{name}.sock"))
}

/// Returns a configuration that listens on that path.
fn config(name: &str) -> Config {
    Config {
        socket: socket(name),
        ..Config::default()
    }
}

fn daemon(name: &str) -> Daemon {
    Daemon::start(config(name)).unwrap()
}
