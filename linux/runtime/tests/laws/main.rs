//! The laws of `ARCHITECTURE.md` ("The laws, over several vCPUs") on real threads: Order,
//! Conservation, Progress and Truth, each on one vCPU and across two, without preemption and with
//! it. Tests and modules have the names of the properties in `scheduler/sim/tests/laws.rs`.
//!
//! The machine delays real threads at any instruction, so no test asserts a time. Each counts the
//! order of events in many rounds, and allows for a share of rounds that the machine has spoilt. A
//! broken law spoils nearly all rounds. Every wait is bounded by [`LIMIT`].
//!
//! Where the kernel cannot preempt polls, a test says so and skips that half.

mod conservation;
mod conservation_across_vcpus;
mod order;
mod progress;
mod truth;

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use upshift::{Level, Preemption, Runtime};

/// Bound of every wait, far beyond every bound of the laws.
const LIMIT: Duration = Duration::from_secs(20);

/// Serialises the tests: each uses both CPUs.
static MACHINE: Mutex<()> = Mutex::new(());

/// A runtime with exclusive use of the machine.
struct Alone {
    runtime: Runtime,
    _machine: MutexGuard<'static, ()>,
}

impl std::ops::Deref for Alone {
    type Target = Runtime;
    fn deref(&self) -> &Runtime {
        &self.runtime
    }
}

fn alone() -> MutexGuard<'static, ()> {
    let machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    // A test that hangs is ended.
    // SAFETY: no pointers. The default action of SIGALRM ends the process.
    unsafe { libc::alarm(300) };
    machine
}

/// Builds a runtime whose main coroutine has the least urgent level: it lends nothing to coroutines
/// that it waits for, and delays none.
fn runtime(vcpus: usize, preemption: bool) -> Option<Alone> {
    let machine = alone();
    let builder = Runtime::builder()
        .vcpus(vcpus)
        .main_level(Level::LEAST_URGENT);
    if !preemption {
        return Some(Alone {
            runtime: builder.build().unwrap(),
            _machine: machine,
        });
    }
    match builder.preemption(Preemption::Required).build() {
        Ok(runtime) => Some(Alone {
            runtime,
            _machine: machine,
        }),
        Err(error) => {
            // Not captured, unlike the output of `eprintln`.
            let _ = writeln!(std::io::stderr(), "skipped: {error}");
            None
        }
    }
}

/// Burns CPU until the condition holds. Returns false if it does not in time.
fn spin_until(is_so: impl Fn() -> bool) -> bool {
    let began = Instant::now();
    while !is_so() {
        if began.elapsed() > LIMIT {
            return false;
        }
        std::hint::spin_loop();
    }
    true
}

/// Burns CPU until the flag is set. Returns false if it is not in time.
fn spin_until_set(flag: &AtomicBool) -> bool {
    spin_until(|| flag.load(Ordering::Acquire))
}

/// Burns CPU for a time.
fn burn(time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        std::hint::spin_loop();
    }
}
