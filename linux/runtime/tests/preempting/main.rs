//! Tests of preemption: a vCPU (a run queue that several threads serve in turn) suspends a poll
//! that runs for too long, and continues on another thread.
//!
//! Every test is bounded: every wait lasts for at most [`LIMIT`], and an alarm ends a process that
//! hangs. If the kernel lacks a feature, the tests print the reason and are skipped.

mod beside;
mod blocking;
#[path = "../support/child.rs"]
mod child;
mod control;
#[path = "../support/cpu.rs"]
mod cpu;
mod faults;
mod foreign;
#[path = "../support/handler.rs"]
mod handler;
mod hooks;
mod io;
mod locks;
#[path = "../support/masked.rs"]
mod masked;
mod niceness;
mod order;
mod pinned;
mod signals;
mod stacks;

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use upshift::{Builder, Preemption, Runtime};

/// Maximum duration of a wait in these tests.
const LIMIT: Duration = Duration::from_secs(20);

/// Lock that serialises the tests, because all of them use the first CPU.
static CPU: Mutex<()> = Mutex::new(());

/// A preemptible runtime of one vCPU, with exclusive use of the CPU.
struct ExclusiveRuntime {
    runtime: Runtime,
    _cpu: MutexGuard<'static, ()>,
}

impl std::ops::Deref for ExclusiveRuntime {
    type Target = Runtime;
    fn deref(&self) -> &Runtime {
        &self.runtime
    }
}

fn builder() -> Builder {
    Runtime::builder()
        .vcpus(1)
        .preemption(Preemption::Required)
        .quantum(Duration::from_micros(200))
        .max_suspended(8)
}

/// Waits until no other test runs, and builds a runtime. Returns `None`, and prints the reason, if
/// the runtime cannot be built here.
fn build(builder: Builder) -> Option<ExclusiveRuntime> {
    let cpu = CPU.lock().unwrap_or_else(PoisonError::into_inner);
    limit_process();
    match builder.build() {
        Ok(runtime) => Some(ExclusiveRuntime { runtime, _cpu: cpu }),
        Err(error) => {
            skipped(&error);
            None
        }
    }
}

fn runtime() -> Option<ExclusiveRuntime> {
    build(builder())
}

/// Prints why a test is skipped. Unlike the output of `eprintln`, this output is not captured.
fn skipped(reason: &dyn std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "skipped: {reason}");
}

/// Ends the process after 300 s.
fn limit_process() {
    // SAFETY: `alarm` takes no pointer. The default action of SIGALRM ends the process.
    unsafe { libc::alarm(300) };
}

/// Spins until the flag is set. Returns false if it is not set within [`LIMIT`].
fn spin_until(flag: &AtomicBool) -> bool {
    let start = Instant::now();
    while !flag.load(Ordering::Relaxed) {
        if start.elapsed() > LIMIT {
            return false;
        }
        std::hint::spin_loop();
    }
    true
}

async fn wait_until_set(flag: &AtomicBool) {
    let start = Instant::now();
    while !flag.load(Ordering::Relaxed) {
        assert!(start.elapsed() < LIMIT, "the flag was not set in time");
        upshift::time::sleep(Duration::from_millis(1)).await;
    }
}

fn burn(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}
