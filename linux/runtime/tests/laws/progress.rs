//! Tests that an urgent coroutine does not wait for less urgent ones, except for the current poll.
//! With preemption, it waits only for a few suspensions. This is the law *Progress* (see
//! `main.rs`).
//!
//! The vCPUs always have less urgent polls of the same length to run. An urgent coroutine becomes
//! ready in the middle of such a poll. The test counts the less urgent polls that begin or end from
//! the moment when the urgent coroutine is ready until it starts.

#[path = "../support/cpu.rs"]
mod cpu;

use std::io::Write;
use std::os::unix::net::UnixStream as StdStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use upshift::net::UnixStream;
use upshift::{Level, time, yield_now};

use crate::runtime;

const URGENT: Level = Level::at::<10>();
const LESS_URGENT: Level = Level::at::<40>();
/// Number of rounds for each [`WakeSource`].
const ROUNDS: usize = 10;
/// Rounds that must succeed for each [`WakeSource`], since a busy machine may spoil two.
const REQUIRED: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Begin,
    End,
}

/// The less urgent coroutines, and the log of their polls.
struct Background {
    events: Mutex<Vec<(Instant, Event)>>,
    stop: AtomicBool,
    poll: Duration,
}

impl Background {
    fn log(&self, event: Event) {
        // The time is read under the lock, so the log is sorted.
        let mut events = self.events.lock().unwrap();
        events.push((Instant::now(), event));
    }

    async fn compute(self: Arc<Background>) {
        while !self.stop.load(Ordering::Relaxed) {
            self.log(Event::Begin);
            cpu::burn(self.poll);
            self.log(Event::End);
            yield_now().await;
        }
    }

    /// Returns the events after `ready` and before `start`, latest first.
    fn between(&self, ready: Instant, start: Instant) -> Vec<Event> {
        let events = self.events.lock().unwrap();
        let after = events
            .iter()
            .rev()
            .take_while(|(time_of_event, _)| *time_of_event > ready);
        let between = after.filter(|(time_of_event, _)| *time_of_event < start);
        between.map(|(_, event)| *event).collect()
    }
}

#[derive(Clone, Copy, Debug)]
enum WakeSource {
    Spawn,
    Timer,
    Data,
}

/// Waits for `source`. Returns the events of the less urgent polls from the time at which the
/// urgent coroutine is ready until it starts.
async fn run_round(source: WakeSource, background: Arc<Background>) -> Vec<Event> {
    let middle = background.poll / 2 + Duration::from_millis(2);
    match source {
        WakeSource::Spawn => {
            let handle = upshift::Handle::current().unwrap();
            let (start_sender, start_receiver) = upshift::sync::oneshot::channel();
            let outside = thread::spawn(move || {
                thread::sleep(middle);
                let urgent = async move { start_sender.send(Instant::now()).unwrap() };
                handle.spawn(urgent, URGENT).unwrap().detach();
                Instant::now()
            });
            let start = start_receiver.await.unwrap();
            let ready = outside.join().unwrap();
            background.between(ready, start)
        }
        WakeSource::Timer => {
            let ready = Instant::now() + middle;
            time::sleep_until(ready).await;
            background.between(ready, Instant::now())
        }
        WakeSource::Data => {
            let (mut outside, inside) = StdStream::pair().unwrap();
            let mut inside = UnixStream::from_std(inside).unwrap();
            let outside = thread::spawn(move || {
                thread::sleep(middle);
                outside.write_all(b"!").unwrap();
                // The socket stays open until the end of the round.
                (Instant::now(), outside)
            });
            inside.recv().await.unwrap();
            let start = Instant::now();
            let (ready, _) = outside.join().unwrap();
            background.between(ready, start)
        }
    }
}

/// Asserts that, in [`REQUIRED`] rounds, at most `max_begins` less urgent polls begin before the
/// urgent coroutine starts and, if `max_ends` is given, at most `max_ends` less urgent polls end.
fn check_progress(
    vcpus: usize,
    preemption: bool,
    poll: Duration,
    max_begins: usize,
    max_ends: Option<usize>,
) {
    let Some(runtime) = runtime(vcpus, preemption) else {
        return;
    };
    let background = Arc::new(Background {
        events: Mutex::default(),
        stop: AtomicBool::new(false),
        poll,
    });
    runtime.block_on(async {
        let others: Vec<_> = (0..10 * vcpus)
            .map(|_| upshift::spawn(background.clone().compute(), LESS_URGENT))
            .collect();
        // The main coroutine starves meanwhile, so another coroutine runs the rounds.
        let all_rounds = async move {
            let mut all_rounds = Vec::new();
            for source in [WakeSource::Spawn, WakeSource::Timer, WakeSource::Data] {
                for _ in 0..ROUNDS {
                    all_rounds.push((source, run_round(source, background.clone()).await));
                }
            }
            background.stop.store(true, Ordering::Relaxed);
            all_rounds
        };
        let all_rounds = upshift::spawn(all_rounds, URGENT).await.unwrap();
        for rounds in all_rounds.chunks(ROUNDS) {
            let succeeds = |(_, events): &&(WakeSource, Vec<Event>)| {
                let count = |event| events.iter().filter(|other| **other == event).count();
                count(Event::Begin) <= max_begins
                    && max_ends.is_none_or(|max_ends| count(Event::End) <= max_ends)
            };
            let count = rounds.iter().filter(succeeds).count();
            println!("{vcpus} vCPUs, preemption {preemption}: {count} of {ROUNDS}");
            assert!(
                count >= REQUIRED,
                "{count} of {ROUNDS} rounds succeeded: {rounds:?}"
            );
        }
        for other in others {
            other.await.unwrap();
        }
    });
}

/// Ten less urgent polls are queued behind the current poll. The urgent coroutine must run before
/// all of them.
#[test]
fn progress_on_a_vcpu() {
    check_progress(1, false, Duration::from_millis(2), 0, None);
    // A poll of 50 ms has not ended when the urgent coroutine starts, but an equal poll may have
    // begun.
    check_progress(1, true, Duration::from_millis(50), 1, Some(0));
}

/// Each vCPU may begin one less urgent poll before one of them notices the timer or the data.
#[test]
fn progress_across_vcpus() {
    check_progress(2, false, Duration::from_millis(2), 2, None);
    check_progress(2, true, Duration::from_millis(50), 2, Some(0));
}
