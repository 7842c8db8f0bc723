//! Preemptible vCPUs, on real threads.
//!
//! Every test is bounded: nothing spins for longer than [`LIMIT`], and a watchdog kills a process
//! that hangs. Where the kernel lacks a feature, the tests say so and are skipped.

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

/// Bound of every loop of these tests.
const LIMIT: Duration = Duration::from_secs(20);

/// Serialises the tests: all of them use the first CPU.
static CPU: Mutex<()> = Mutex::new(());

/// A preemptible runtime of one vCPU, with exclusive use of the CPU.
struct Alone {
    runtime: Runtime,
    _cpu: MutexGuard<'static, ()>,
}

impl std::ops::Deref for Alone {
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

fn build(builder: Builder) -> Option<Alone> {
    let cpu = CPU.lock().unwrap_or_else(PoisonError::into_inner);
    watch_over_this_process();
    match builder.build() {
        Ok(runtime) => Some(Alone { runtime, _cpu: cpu }),
        Err(error) => {
            skipped(&error);
            None
        }
    }
}

fn runtime() -> Option<Alone> {
    build(builder())
}

/// Prints the reason of a skip where it is seen: not captured, unlike the output of `eprintln`.
fn skipped(why: &dyn std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "skipped: {why}");
}

/// Ends a process that hangs.
fn watch_over_this_process() {
    // SAFETY: no pointers. The default action of SIGALRM ends the process.
    unsafe { libc::alarm(300) };
}

/// Burns CPU until the flag is set. Returns false if it is not in time.
fn spin_until(flag: &AtomicBool) -> bool {
    let began = Instant::now();
    while !flag.load(Ordering::Relaxed) {
        if began.elapsed() > LIMIT {
            return false;
        }
        std::hint::spin_loop();
    }
    true
}

/// Waits, in the main coroutine, until the flag is set.
async fn reached(flag: &AtomicBool) {
    let began = Instant::now();
    while !flag.load(Ordering::Relaxed) {
        assert!(began.elapsed() < LIMIT, "the flag was not set in time");
        upshift::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Burns CPU for a time.
fn burn(time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        std::hint::spin_loop();
    }
}
