//! Runs coroutines of different levels, called *parties*, and checks from a thread outside of the
//! runtime that all of them make progress.
//!
//! Each test runs for [`duration`], which is half a second, or `UPSHIFT_TORTURE_SECONDS` if that is
//! set (`cargo xtask soak` sets 60). A party counts its *steps*. The process aborts if a party
//! makes no step in [`MAX_STALLED_SAMPLES`] samples of its counter.

use std::future::Future;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use upshift::{Handle, Level, Preemption, Runtime, time};

/// Time between two samples of the parties' steps.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(20);

/// Number of samples, over at least 100 s, after which a party without a step counts as hung.
/// Beside programs that use the whole machine a process may get a hundredth of a CPU, so that 10 s
/// are a few steps. Samples are counted, because time also passes while the process is frozen.
const MAX_STALLED_SAMPLES: u32 = 5_000;

/// Returns the time for which a test runs its parties.
pub(crate) fn duration() -> Duration {
    let variable = std::env::var("UPSHIFT_TORTURE_SECONDS").ok();
    let seconds = variable.and_then(|text| text.parse().ok()).unwrap_or(0.5);
    Duration::from_secs_f64(seconds)
}

/// Waits until no other test of this process runs, since all of them use the first CPU.
pub(crate) fn lock_machine() -> MutexGuard<'static, ()> {
    static MACHINE: Mutex<()> = Mutex::new(());
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Builds a runtime with preemption. If the kernel permits none, prints the reason and returns
/// `None`.
pub(crate) fn preemptible(vcpus: usize) -> Option<Runtime> {
    let builder = Runtime::builder()
        .vcpus(vcpus)
        .preemption(Preemption::Required);
    match builder.build() {
        Ok(runtime) => Some(runtime),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "skipped: {error}");
            None
        }
    }
}

/// Ratio of a resting party's pause to the duration of its step.
pub(crate) const PAUSE_RATIO: u32 = 6;

pub(crate) const URGENT: Level = Level::at::<2>();
pub(crate) const MIDDLE: Level = Level::at::<20>();
pub(crate) const BACKGROUND: Level = Level::at::<40>();

#[derive(Default)]
pub(crate) struct Parties {
    steps: Vec<Arc<AtomicU64>>,
    stop: Arc<AtomicBool>,
}

impl Parties {
    /// Adds a party, and returns the counter of its steps.
    pub(crate) fn counter(&mut self) -> Arc<AtomicU64> {
        let steps = Arc::new(AtomicU64::new(0));
        self.steps.push(steps.clone());
        steps
    }

    /// Starts a coroutine that repeats `step`, and awaits a future of `pause` after each step.
    pub(crate) fn party<P: Future<Output = ()> + Send>(
        &mut self,
        runtime: &Runtime,
        level: Level,
        mut step: impl FnMut() + Send + 'static,
        mut pause: impl FnMut() -> P + Send + 'static,
    ) {
        let (steps, stop) = (self.counter(), self.stop.clone());
        let party = async move {
            while !stop.load(Ordering::Relaxed) {
                step();
                steps.fetch_add(1, Ordering::Relaxed);
                pause().await;
            }
        };
        runtime.handle().spawn(party, level).unwrap().detach();
    }

    /// Starts a thread that repeats `step`, and an urgent coroutine that waits for the steps in
    /// polls that are all short.
    pub(crate) fn outsider(&mut self, runtime: &Runtime, mut step: impl FnMut() + Send + 'static) {
        let (steps, stop) = (self.counter(), self.stop.clone());
        let progress = steps.clone();
        thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                step();
                steps.fetch_add(1, Ordering::Relaxed);
                thread::sleep(micros(200));
            }
        });
        let wait = move || {
            let progress = progress.clone();
            async move {
                let before = progress.load(Ordering::Relaxed);
                while progress.load(Ordering::Relaxed) == before {
                    upshift::yield_now().await;
                }
                time::sleep(micros(3_000)).await;
            }
        };
        self.party(runtime, URGENT, || (), wait);
    }

    /// Starts a party that pauses for [`PAUSE_RATIO`] times the duration of its last step, so that
    /// four of them leave time for the least urgent party in a build of any speed. (Levels are
    /// strict, so an urgent party that never pauses starves all less urgent parties.)
    pub(crate) fn resting_party(
        &mut self,
        runtime: &Runtime,
        level: Level,
        mut step: impl FnMut() + Send + 'static,
    ) {
        let step_us = Arc::new(AtomicU64::new(0));
        let last_step_us = step_us.clone();
        let timed = move || {
            let start = Instant::now();
            step();
            step_us.store(start.elapsed().as_micros() as u64, Ordering::Relaxed);
        };
        self.party(runtime, level, timed, move || {
            let last_step = micros(last_step_us.load(Ordering::Relaxed));
            time::sleep(micros(97).max(PAUSE_RATIO * last_step))
        });
    }

    /// Runs the parties until `observe` returns, and returns the steps of each. `observe` runs on
    /// another thread, so that it does not depend on the runtime.
    pub(crate) fn run(
        &self,
        runtime: &Runtime,
        observe: impl FnOnce(Observer) + Send + 'static,
    ) -> Vec<u64> {
        let observer = Observer {
            steps: self.steps.clone(),
            handle: runtime.handle(),
        };
        let observer_thread = thread::spawn(move || observe(observer));
        runtime.block_on(async {
            while !observer_thread.is_finished() {
                time::sleep(Duration::from_millis(5)).await;
            }
        });
        self.stop.store(true, Ordering::Relaxed);
        observer_thread.join().unwrap();
        step_counts(&self.steps)
    }
}

pub(crate) struct Observer {
    steps: Vec<Arc<AtomicU64>>,
    handle: Handle,
}

impl Observer {
    /// Returns when `time` has passed and each party has made at least `min_steps` steps. Aborts
    /// the process if a party stands still. Takes its samples without allocating, because a party
    /// may hold the lock of the allocator.
    pub(crate) fn wait_for(&self, time: Duration, min_steps: u64) {
        struct Progress {
            goal: u64,
            count: u64,
            /// Number of samples since the last step.
            stalled_samples: u32,
        }
        let start = Instant::now();
        let progress = |count| Progress {
            goal: count + min_steps,
            count,
            stalled_samples: 0,
        };
        let mut parties: Vec<_> = step_counts(&self.steps).into_iter().map(progress).collect();
        let lags = |party: &Progress| party.count < party.goal;
        while start.elapsed() < time || parties.iter().any(lags) {
            thread::sleep(SAMPLE_INTERVAL);
            for (number, (steps, party)) in self.steps.iter().zip(&mut parties).enumerate() {
                let count = steps.load(Ordering::Relaxed);
                let is_stalled = count == party.count;
                party.stalled_samples = if is_stalled {
                    party.stalled_samples + 1
                } else {
                    0
                };
                party.count = count;
                if party.stalled_samples == MAX_STALLED_SAMPLES {
                    self.abort(number);
                }
            }
        }
    }

    fn abort(&self, party: usize) -> ! {
        let stats = self.handle.preemption_stats();
        let _ = writeln!(
            std::io::stderr(),
            "party {party} stands still: steps {:?}; {stats:?}",
            step_counts(&self.steps)
        );
        std::process::abort();
    }
}

/// Spins for `time`.
pub(crate) fn burn(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

pub(crate) fn micros(n: u64) -> Duration {
    Duration::from_micros(n)
}

fn step_counts(steps: &[Arc<AtomicU64>]) -> Vec<u64> {
    let load = |counter: &Arc<AtomicU64>| counter.load(Ordering::Relaxed);
    steps.iter().map(load).collect()
}

/// Runs the parties that `add_parties` adds, on one vCPU and on two.
pub(crate) fn torture(add_parties: impl Fn(&Runtime, &mut Parties)) {
    let _lock = lock_machine();
    for vcpus in [1, 2] {
        let Some(runtime) = preemptible(vcpus) else {
            return;
        };
        let mut parties = Parties::default();
        add_parties(&runtime, &mut parties);
        let steps = parties.run(&runtime, |observer| observer.wait_for(duration(), 1));
        let stats = runtime.handle().preemption_stats();
        println!("{vcpus} vCPUs: steps {steps:?}; {stats:?}");
    }
}
