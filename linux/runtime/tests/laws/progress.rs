//! Progress: a ready coroutine waits for less urgent ones no longer than for the poll under way and
//! the bound of conservation; with preemption no longer than for a few suspensions.
//!
//! The vCPUs have more than enough less urgent polls of the same length. An urgent coroutine
//! becomes ready in the middle of one. The test counts the less urgent polls that begin, or end,
//! from then until the urgent one starts.

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
const OTHERS: Level = Level::at::<40>();
const ROUNDS: usize = 10;
/// Rounds to win: the machine may spoil two of each way.
const WON: usize = 8;

/// Events of the less urgent polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Begins,
    Ends,
}

struct Background {
    events: Mutex<Vec<(Instant, Event)>>,
    stop: AtomicBool,
    poll: Duration,
}

impl Background {
    fn log(&self, event: Event) {
        // The time is read under the lock, so the log is in order.
        let mut events = self.events.lock().unwrap();
        events.push((Instant::now(), event));
    }

    async fn compute(self: Arc<Background>) {
        while !self.stop.load(Ordering::Relaxed) {
            self.log(Event::Begins);
            cpu::burn(self.poll);
            self.log(Event::Ends);
            yield_now().await;
        }
    }

    /// Returns the events between two times.
    fn between(&self, ready: Instant, starts: Instant) -> Vec<Event> {
        let events = self.events.lock().unwrap();
        let after = events.iter().rev().take_while(|(at, _)| *at > ready);
        let meanwhile = after.filter(|(at, _)| *at < starts);
        meanwhile.map(|(_, event)| *event).collect()
    }
}

/// The way in which the urgent coroutine becomes ready.
#[derive(Clone, Copy, Debug)]
enum Way {
    Spawn,
    Timer,
    Data,
}

/// Waits in the given way. Returns the events of the less urgent polls from the time at which it is
/// ready until it starts.
async fn round(way: Way, background: Arc<Background>) -> Vec<Event> {
    let middle = background.poll / 2 + Duration::from_millis(2);
    match way {
        Way::Spawn => {
            let handle = upshift::Handle::current().unwrap();
            let (tell, told) = upshift::sync::oneshot::channel();
            let outside = thread::spawn(move || {
                thread::sleep(middle);
                let urgent = async move { tell.send(Instant::now()).unwrap() };
                handle.spawn(urgent, URGENT).unwrap().detach();
                Instant::now()
            });
            let starts = told.await.unwrap();
            let ready = outside.join().unwrap();
            background.between(ready, starts)
        }
        Way::Timer => {
            let ready = Instant::now() + middle;
            time::sleep_until(ready).await;
            background.between(ready, Instant::now())
        }
        Way::Data => {
            let (mut outside, inside) = StdStream::pair().unwrap();
            let mut inside = UnixStream::from_std(inside).unwrap();
            let outside = thread::spawn(move || {
                thread::sleep(middle);
                outside.write_all(b"!").unwrap();
                // The socket stays open until the end of the round.
                (Instant::now(), outside)
            });
            inside.recv().await.unwrap();
            let starts = Instant::now();
            let (ready, _) = outside.join().unwrap();
            background.between(ready, starts)
        }
    }
}

/// Asserts that at most `begins` less urgent polls begin, and, if bounded, that at most `ends` end,
/// before the urgent one starts.
fn holds(vcpus: usize, preemption: bool, poll: Duration, begins: usize, ends: Option<usize>) {
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
            .map(|_| upshift::spawn(background.clone().compute(), OTHERS))
            .collect();
        // The main coroutine starves meanwhile.
        let all = async move {
            let mut all = Vec::new();
            for way in [Way::Spawn, Way::Timer, Way::Data] {
                for _ in 0..ROUNDS {
                    all.push((way, round(way, background.clone()).await));
                }
            }
            background.stop.store(true, Ordering::Relaxed);
            all
        };
        let all = upshift::spawn(all, URGENT).await.unwrap();
        for rounds in all.chunks(ROUNDS) {
            let won = |(_, events): &&(Way, Vec<Event>)| {
                let count = |event| events.iter().filter(|it| **it == event).count();
                count(Event::Begins) <= begins && ends.is_none_or(|ends| count(Event::Ends) <= ends)
            };
            let count = rounds.iter().filter(won).count();
            println!("{vcpus} vCPUs, preemption {preemption}: {count} of {ROUNDS}");
            assert!(count >= WON, "{count} of {ROUNDS}: {rounds:?}");
        }
        for other in others {
            other.await.unwrap();
        }
    });
}

/// Ten polls wait behind the one that is under way, and after it comes the urgent one.
#[test]
fn progress_on_a_vcpu() {
    holds(1, false, Duration::from_millis(2), 0, None);
    // A poll of 50 ms has not ended when the urgent one starts; an equal may have had its first
    // quantum.
    holds(1, true, Duration::from_millis(50), 1, Some(0));
}

/// The other vCPU may begin a poll while the timer or the data has not been reaped yet.
#[test]
fn progress_across_vcpus() {
    holds(2, false, Duration::from_millis(2), 2, None);
    holds(2, true, Duration::from_millis(50), 2, Some(0));
}
