//! Tests of the scheduler's laws on real threads. The laws are Order, Conservation, Progress and
//! Truth, and `ARCHITECTURE.md` defines them ("The laws, over several vCPUs"). Each is tested on
//! one vCPU and on two, without and with preemption. Tests and modules have the names of the
//! properties in `scheduler/sim/tests/laws.rs`.
//!
//! The operating system may delay a real thread at any instruction, so no test asserts a time. Each
//! test observes the order of events in many rounds, and accepts a few rounds in which such a delay
//! caused another order. A broken law changes the order in nearly all rounds. Every wait is bounded
//! by [`LIMIT`].
//!
//! If the kernel cannot preempt polls, a test skips its second half and prints the reason.

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

/// Lock that serialises the tests, because each of them uses both CPUs.
static MACHINE: Mutex<()> = Mutex::new(());

/// A runtime with exclusive use of the machine.
struct ExclusiveRuntime {
    runtime: Runtime,
    _machine: MutexGuard<'static, ()>,
}

impl std::ops::Deref for ExclusiveRuntime {
    type Target = Runtime;
    fn deref(&self) -> &Runtime {
        &self.runtime
    }
}

/// Waits until no other test runs. Limits the process to 300 s.
fn lock_machine() -> MutexGuard<'static, ()> {
    let machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    // SIGALRM ends a test that hangs.
    // SAFETY: `alarm` takes no pointer.
    unsafe { libc::alarm(300) };
    machine
}

/// Builds a runtime whose main coroutine has the least urgent level, so that it lends no level to
/// the coroutines that it awaits, and delays none. Returns `None` if the kernel cannot preempt
/// polls.
fn runtime(vcpus: usize, preemption: bool) -> Option<ExclusiveRuntime> {
    let machine = lock_machine();
    let builder = Runtime::builder()
        .vcpus(vcpus)
        .main_level(Level::LEAST_URGENT);
    if !preemption {
        return Some(ExclusiveRuntime {
            runtime: builder.build().unwrap(),
            _machine: machine,
        });
    }
    match builder.preemption(Preemption::Required).build() {
        Ok(runtime) => Some(ExclusiveRuntime {
            runtime,
            _machine: machine,
        }),
        Err(error) => {
            // Unlike `eprintln`, this output is not captured.
            let _ = writeln!(std::io::stderr(), "skipped: {error}");
            None
        }
    }
}

/// Computes until the condition holds. Returns false if it does not hold within [`LIMIT`].
fn spin_until(holds: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !holds() {
        if start.elapsed() > LIMIT {
            return false;
        }
        std::hint::spin_loop();
    }
    true
}

/// Computes until the flag is set. Returns false if it is not set within [`LIMIT`].
fn spin_until_set(flag: &AtomicBool) -> bool {
    spin_until(|| flag.load(Ordering::Acquire))
}

fn burn(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}
