//! Keeps a CPU from halting, without delaying other threads there, with a thread that spins under
//! SCHED_IDLE.
//!
//! An idle virtual CPU halts, and the first wake after that takes tens of µs, which hides the
//! effects that a study of scheduling measures. The spinning thread runs only when no other thread
//! wants the CPU. Reports of measurements with such a thread must say so.

use crate::os;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Iterations between two checks of the flag and the clock: about 20 µs.
const ITERATIONS_PER_CHECK: u32 = 20_000;

/// A CPU that does not halt; dropping the value ends the thread.
#[derive(Debug)]
pub struct Awake {
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

/// State that the thread and its handle share.
#[derive(Debug, Default)]
struct State {
    stop: AtomicBool,
    /// CPU time of the thread, in ns.
    used: AtomicU64,
}

impl Awake {
    /// Keeps `cpu` awake.
    ///
    /// # Errors
    ///
    /// This process may not use the CPU, or a thread cannot be started.
    pub fn on(cpu: usize) -> io::Result<Awake> {
        Awake::start(cpu, os::idle_policy)
    }

    /// Keeps `cpu` busy with a thread of the caller's own scheduling policy, which competes with
    /// the other threads there.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Awake::on`].
    pub fn competing(cpu: usize) -> io::Result<Awake> {
        Awake::start(cpu, || Ok(()))
    }

    fn start(cpu: usize, policy: fn() -> io::Result<()>) -> io::Result<Awake> {
        let state = Arc::new(State::default());
        let thread_state = state.clone();
        let (sender, ready) = std::sync::mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("upshift-awake".into())
            .spawn(move || {
                let prepared = os::pin(cpu).and_then(|()| policy());
                let is_prepared = prepared.is_ok();
                // The receiver still exists, because it waits below.
                let _ = sender.send(prepared);
                if is_prepared {
                    thread_state.spin();
                }
            })?;
        let awake = Awake {
            state,
            thread: Some(thread),
        };
        ready
            .recv()
            .map_err(|_| io::Error::other("the thread that keeps a CPU awake ended"))??;
        Ok(awake)
    }

    /// Returns the CPU time that the thread has used, with a resolution of about 20 µs.
    pub fn used(&self) -> Duration {
        Duration::from_nanos(self.state.used.load(Ordering::Relaxed))
    }
}

impl State {
    fn spin(&self) {
        let mut x = 1u64;
        while !self.stop.load(Ordering::Relaxed) {
            // There is no pause instruction, because hypervisors may halt the CPU at such an
            // instruction.
            for _ in 0..ITERATIONS_PER_CHECK {
                x = std::hint::black_box(x.wrapping_mul(3));
            }
            let used = os::thread_clock().as_nanos() as u64;
            self.used.store(used, Ordering::Relaxed);
        }
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread cannot panic; on a busy CPU it sees the flag later.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_that_does_not_exist_is_refused() {
        let error = Awake::on(4095).unwrap_err();
        assert!(error.to_string().contains("CPU 4095"), "{error}");
    }
}
