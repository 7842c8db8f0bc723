//! Tests of the daemon on the real kernel, with clients that behave, misbehave, or are killed.
//!
//! The time of every elevated thread is limited. `alarm` and RLIMIT_RTTIME limit child processes,
//! and a deadline limits loops. Without the right to use SCHED_FIFO, a test prints `skipped:` and
//! the reason. The tests run one at a time, because each needs a CPU for itself.

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
mod diagnosis;
mod doorbells;
mod elevation;
mod false_daemon;
mod faults;
mod freezer;
mod fuzz;
mod identity;
mod kernel;
mod lent_priority;
mod machine_changes;
mod main_thread;
mod operating;
mod proc_files;
mod process;
mod protocol;
mod quotas;
mod registration;
mod rules_thread;
mod scripted_client;
mod shared_page;
mod sharing;
mod silence;
mod socket_path;
mod status_socket;
mod steady_state;
mod tid_reuse;

use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use upshift_daemon::{Config, Daemon};
use upshift_elevate::testing::hides_processes;
use upshift_elevate::{Priority, Rights};

static SERIAL: Mutex<()> = Mutex::new(());

/// The right to run a test, while no other test runs. Dropping it removes the directory of the
/// test's sockets.
struct SerialTest {
    _lock: MutexGuard<'static, ()>,
}

fn serial_test() -> SerialTest {
    SerialTest {
        _lock: SERIAL.lock().unwrap_or_else(PoisonError::into_inner),
    }
}

impl Drop for SerialTest {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(directory());
    }
}

fn directory() -> PathBuf {
    std::env::temp_dir().join(format!("upshift-daemon-{}", std::process::id()))
}

/// Reports that the calling test is skipped. Writes to the standard error directly, since the test
/// harness captures `eprintln!`.
fn skipped(reason: impl Display) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("test");
    let _ = writeln!(std::io::stderr(), "skipped: {name}: {reason}");
}

/// Returns whether this process may elevate threads. If not, reports that the test is skipped.
fn permitted() -> bool {
    // SAFETY: `geteuid` has no arguments and cannot fail.
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

fn socket(name: &str) -> PathBuf {
    std::fs::create_dir_all(directory()).unwrap();
    directory().join(format!("{name}.sock"))
}

fn config(name: &str) -> Config {
    Config {
        socket: socket(name),
        ..Config::default()
    }
}

fn daemon(name: &str) -> Daemon {
    Daemon::start(config(name)).unwrap()
}
