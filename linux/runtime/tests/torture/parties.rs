//! Parties that must all get on: coroutines of different levels on one vCPU and on two, with preemption, watched from outside.
//!
//! Each combination runs for [`seconds`]: half a second, or `UPSHIFT_TORTURE_SECONDS` (`cargo xtask soak` takes 60). A party that stands
//! still for [`STILL`] fails it.

use std::future::Future;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use upshift::{Level, Preemption, Runtime, time};

/// A party that has not got on for so long hangs. Beside others that use the whole machine some take their time.
const STILL: Duration = Duration::from_secs(10);

fn seconds() -> Duration {
    let given = std::env::var("UPSHIFT_TORTURE_SECONDS").ok();
    let seconds = given.and_then(|text| text.parse().ok()).unwrap_or(0.5);
    Duration::from_secs_f64(seconds)
}

/// One combination at a time: they all want the first CPU.
static MACHINE: Mutex<()> = Mutex::new(());

pub(crate) const URGENT: Level = Level::at::<2>();
pub(crate) const MIDDLE: Level = Level::at::<20>();
pub(crate) const LAZY: Level = Level::at::<40>();

/// How far the parties of a combination have come.
#[derive(Default)]
pub(crate) struct Parties {
    steps: Vec<Arc<AtomicU64>>,
    stop: Arc<AtomicBool>,
}

impl Parties {
    /// A party: a coroutine that does a step again and again, and waits for what `pause` makes in between.
    pub(crate) fn party<P: Future<Output = ()> + Send>(
        &mut self,
        runtime: &Runtime,
        level: Level,
        mut step: impl FnMut() + Send + 'static,
        mut pause: impl FnMut() -> P + Send + 'static,
    ) {
        let (steps, stop) = (Arc::new(AtomicU64::new(0)), self.stop.clone());
        self.steps.push(steps.clone());
        let party = async move {
            while !stop.load(Ordering::Relaxed) {
                step();
                steps.fetch_add(1, Ordering::Relaxed);
                pause().await;
            }
        };
        runtime.handle().spawn(party, level).unwrap().detach();
    }

    /// A party that is a thread of its own; and an urgent one that waits for its steps, in polls that are all short.
    pub(crate) fn outsider(&mut self, runtime: &Runtime, mut step: impl FnMut() + Send + 'static) {
        let (steps, stop) = (Arc::new(AtomicU64::new(0)), self.stop.clone());
        self.steps.push(steps.clone());
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

    /// A party that pauses for [`REST`] times as long as its step took: four of them leave time for the least urgent one, however slow
    /// the build is. (Levels are strict: what is more urgent and never rests starves the others, by right.)
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
            time::sleep(micros(97.max(REST * last.load(Ordering::Relaxed))))
        });
    }
}

const REST: u64 = 6;

pub(crate) async fn pause() {
    time::sleep(Duration::from_micros(97)).await;
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

/// Runs what `start` starts, on one vCPU and on two.
pub(crate) fn torture(start: impl Fn(&Runtime, &mut Parties)) {
    let _alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    for vcpus in [1, 2] {
        let builder = Runtime::builder()
            .vcpus(vcpus)
            .preemption(Preemption::Required);
        let runtime = match builder.build() {
            Ok(runtime) => runtime,
            Err(error) => {
                let _ = writeln!(std::io::stderr(), "skipped: {error}");
                return;
            }
        };
        let mut parties = Parties::default();
        start(&runtime, &mut parties);
        let (steps, handle) = (parties.steps.clone(), runtime.handle());
        // Outside of the runtime: it must not depend on what it watches.
        let monitor = thread::spawn(move || {
            let began = Instant::now();
            let mut seen: Vec<_> = steps.iter().map(|_| (0, Instant::now())).collect();
            while began.elapsed() < seconds() || seen.iter().any(|(count, _)| *count == 0) {
                thread::sleep(Duration::from_millis(20));
                for (number, (party, (count, when))) in steps.iter().zip(&mut seen).enumerate() {
                    let now = party.load(Ordering::Relaxed);
                    if now != *count {
                        (*count, *when) = (now, Instant::now());
                    } else if when.elapsed() > STILL {
                        let stats = handle.preemption_stats();
                        let _ = writeln!(
                            std::io::stderr(),
                            "party {number} stands still: steps {:?}; {vcpus} vCPUs; {stats:?}",
                            all(&steps)
                        );
                        std::process::abort();
                    }
                }
            }
        });
        runtime.block_on(async {
            while !monitor.is_finished() {
                time::sleep(Duration::from_millis(5)).await;
            }
        });
        parties.stop.store(true, Ordering::Relaxed);
        monitor.join().unwrap();
        let stats = runtime.handle().preemption_stats();
        println!("{vcpus} vCPUs: steps {:?}; {stats:?}", all(&parties.steps));
    }
}
