//! Parties that must all make progress: coroutines of different levels, observed from outside.
//!
//! Each combination runs for [`seconds`]: half a second, or `UPSHIFT_TORTURE_SECONDS`
//! (`cargo xtask soak` takes 60). A party that stands still for [`STILL`] looks ends the process.

use std::future::Future;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use upshift::{Handle, Level, Preemption, Runtime, time};

/// Time between two looks at the parties.
const LOOK: Duration = Duration::from_millis(20);

/// Number of looks, at least 100 s, after which a party without a step hangs. Beside programs that
/// use the whole machine a process may get a hundredth of a CPU, so that 10 s are a few steps.
/// Looks are counted, because time also passes while the process is frozen.
const STILL: u32 = 5_000;

/// Returns how long a combination runs.
pub(crate) fn seconds() -> Duration {
    let given = std::env::var("UPSHIFT_TORTURE_SECONDS").ok();
    let seconds = given.and_then(|text| text.parse().ok()).unwrap_or(0.5);
    Duration::from_secs_f64(seconds)
}

/// Waits for the right to run a combination: they all want the first CPU.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static MACHINE: Mutex<()> = Mutex::new(());
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Builds a runtime with preemption, or prints why there is none.
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

/// Factor by which a party rests longer than its step took.
pub(crate) const REST: u32 = 6;

pub(crate) const URGENT: Level = Level::at::<2>();
pub(crate) const MIDDLE: Level = Level::at::<20>();
pub(crate) const LAZY: Level = Level::at::<40>();

/// Progress of the parties of a combination.
#[derive(Default)]
pub(crate) struct Parties {
    steps: Vec<Arc<AtomicU64>>,
    stop: Arc<AtomicBool>,
}

impl Parties {
    /// Returns the counter of steps of one more party.
    pub(crate) fn counter(&mut self) -> Arc<AtomicU64> {
        let steps = Arc::new(AtomicU64::new(0));
        self.steps.push(steps.clone());
        steps
    }

    /// Starts a coroutine that makes step after step, and awaits a future of `pause` in between.
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

    /// Starts a thread that makes step after step, and an urgent coroutine that waits for its
    /// steps, in polls that are all short.
    pub(crate) fn outsider(&mut self, runtime: &Runtime, mut step: impl FnMut() + Send + 'static) {
        let (steps, stop) = (self.counter(), self.stop.clone());
        let seen = steps.clone();
        thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                step();
                steps.fetch_add(1, Ordering::Relaxed);
                thread::sleep(micros(200));
            }
        });
        let wait = move || {
            let seen = seen.clone();
            async move {
                let before = seen.load(Ordering::Relaxed);
                while seen.load(Ordering::Relaxed) == before {
                    upshift::yield_now().await;
                }
                time::sleep(micros(3_000)).await;
            }
        };
        self.party(runtime, URGENT, || (), wait);
    }

    /// Starts a party that pauses for [`REST`] times as long as its step took: four of them leave
    /// time for the least urgent one, however slow the build is. (Levels are strict: an urgent
    /// party that never rests starves the others, by right.)
    pub(crate) fn resting_party(
        &mut self,
        runtime: &Runtime,
        level: Level,
        mut step: impl FnMut() + Send + 'static,
    ) {
        let took = Arc::new(AtomicU64::new(0));
        let last = took.clone();
        let timed = move || {
            let began = Instant::now();
            step();
            took.store(began.elapsed().as_micros() as u64, Ordering::Relaxed);
        };
        self.party(runtime, level, timed, move || {
            let took = micros(last.load(Ordering::Relaxed));
            time::sleep(micros(97).max(REST * took))
        });
    }

    /// Runs the parties until `observe` returns, and returns the steps of each. `observe` is called
    /// in a thread of its own, since it must not depend on the runtime.
    pub(crate) fn run(
        &self,
        runtime: &Runtime,
        observe: impl FnOnce(Observer) + Send + 'static,
    ) -> Vec<u64> {
        let observer = Observer {
            steps: self.steps.clone(),
            handle: runtime.handle(),
        };
        let watcher = thread::spawn(move || observe(observer));
        runtime.block_on(async {
            while !watcher.is_finished() {
                time::sleep(Duration::from_millis(5)).await;
            }
        });
        self.stop.store(true, Ordering::Relaxed);
        watcher.join().unwrap();
        all(&self.steps)
    }
}

/// The steps of all parties, seen from outside of the runtime.
pub(crate) struct Observer {
    steps: Vec<Arc<AtomicU64>>,
    handle: Handle,
}

impl Observer {
    /// Returns after `time`, once each party has made at least `steps` more steps. A party that
    /// stands still ends the process. Nothing is allocated meanwhile: a party may hold the lock of
    /// the allocator.
    pub(crate) fn until(&self, time: Duration, more: u64) {
        struct Seen {
            wanted: u64,
            count: u64,
            /// Number of looks since the count has changed.
            looks: u32,
        }
        let began = Instant::now();
        let seen = |count| Seen {
            wanted: count + more,
            count,
            looks: 0,
        };
        let mut parties: Vec<_> = all(&self.steps).into_iter().map(seen).collect();
        let lags = |party: &Seen| party.count < party.wanted;
        while began.elapsed() < time || parties.iter().any(lags) {
            thread::sleep(LOOK);
            for (number, (steps, party)) in self.steps.iter().zip(&mut parties).enumerate() {
                let count = steps.load(Ordering::Relaxed);
                let stands = count == party.count;
                party.looks = if stands { party.looks + 1 } else { 0 };
                party.count = count;
                if party.looks == STILL {
                    self.give_up(number);
                }
            }
        }
    }

    fn give_up(&self, party: usize) -> ! {
        let stats = self.handle.preemption_stats();
        let _ = writeln!(
            std::io::stderr(),
            "party {party} stands still: steps {:?}; {stats:?}",
            all(&self.steps)
        );
        std::process::abort();
    }
}

pub(crate) fn burn(time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        std::hint::spin_loop();
    }
}

pub(crate) fn micros(n: u64) -> Duration {
    Duration::from_micros(n)
}

fn all(steps: &[Arc<AtomicU64>]) -> Vec<u64> {
    let one = |party: &Arc<AtomicU64>| party.load(Ordering::Relaxed);
    steps.iter().map(one).collect()
}

/// Runs the parties that `start` starts, on one vCPU and on two.
pub(crate) fn torture(start: impl Fn(&Runtime, &mut Parties)) {
    let _alone = alone();
    for vcpus in [1, 2] {
        let Some(runtime) = preemptible(vcpus) else {
            return;
        };
        let mut parties = Parties::default();
        start(&runtime, &mut parties);
        let steps = parties.run(&runtime, |observer| observer.until(seconds(), 1));
        let stats = runtime.handle().preemption_stats();
        println!("{vcpus} vCPUs: steps {steps:?}; {stats:?}");
    }
}
