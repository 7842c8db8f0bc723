//! Measures how long a ready task waits while one of two workers computes and the other is idle.
//!
//! In each iteration one task, the *neighbour*, makes the *other* task wait on the neighbour's
//! worker. The neighbour spawns the other task and sleeps, so that both workers park. It repeats
//! these two steps, at most 20 times, until both tasks were last polled by the same thread. The
//! neighbour then makes the other task ready and computes for [`COMPUTE`] without yielding. The
//! measured time lasts from the spawn, wake, deadline or write until the other task runs. Each
//! iteration has a new neighbour, so that a runtime cannot have learnt how long the neighbour's
//! polls are.
//!
//! Prints a line for each kind, with all samples in ns:
//! `{"bench":"spawn","peer":"smol","samples":[4100,…]}`.

use std::future::Future;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use crate::micro::TokenSlot;

/// Number of iterations of each kind; an additional first iteration is discarded.
pub const ITERATIONS: usize = 35;
/// Time for which the neighbour computes.
pub const COMPUTE: Duration = Duration::from_millis(20);
/// Time within which both workers park.
pub const SETTLE: Duration = Duration::from_millis(2);
/// Duration of the timer, which is due about 8 ms after the neighbour has begun to compute.
pub const TIMER: Duration = Duration::from_millis(10);
/// Computing time of the neighbour after which the byte is written.
pub const WRITE: Duration = Duration::from_millis(5);

/// Interface of a runtime with two workers. Every function is called from inside the runtime.
pub trait Conserve: 'static {
    /// Starts a neighbour.
    fn spawn<F: Future<Output = ()> + Send + 'static>(future: F);

    /// Starts the other task.
    fn spawn_other<F: Future<Output = ()> + Send + 'static>(future: F);

    /// Returns a timer.
    fn sleep(time: Duration) -> impl Future<Output = ()> + Send;

    /// Waits for a byte from a fresh socket.
    fn read(socket: UnixStream) -> impl Future<Output = ()> + Send;
}

/// The way in which the other task becomes ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The neighbour spawns the other task.
    Spawn,
    /// The neighbour wakes the other task.
    Wake,
    /// The neighbour wakes the other task, and then a further one, so that the other task does not
    /// remain in a LIFO slot from which no worker steals.
    WakeTwo,
    /// The timer is due while the neighbour computes.
    Timer,
    /// Another thread writes to the socket while the neighbour computes.
    Data,
}

const KINDS: [(Kind, &str); 5] = [
    (Kind::Spawn, "spawn"),
    (Kind::Wake, "wake"),
    (Kind::WakeTwo, "wake, first of two"),
    (Kind::Timer, "timer"),
    (Kind::Data, "data"),
];

/// Measures all kinds. Must run as the main task of the runtime.
pub async fn conserve<H: Conserve>(peer: &str) {
    for (kind, name) in KINDS {
        let mut samples = Vec::with_capacity(ITERATIONS + 1);
        for _ in 0..=ITERATIONS {
            let (wait, end) = (Arc::new(Mutex::default()), Arc::new(TokenSlot::default()));
            let (wait_of_task, end_of_task) = (wait.clone(), end.clone());
            H::spawn(async move {
                let wait = neighbour::<H>(kind).await;
                *wait_of_task.lock().expect("no panic while locked") = wait.as_nanos();
                end_of_task.put();
            });
            end.take().await;
            samples.push(*wait.lock().expect("no panic while locked"));
        }
        print_samples(name, peer, &samples[1..]);
    }
}

/// Prints a line with all samples of a kind, in ns.
pub fn print_samples(kind: &str, peer: &str, samples: &[u128]) {
    println!(r#"{{"bench":"{kind}","peer":"{peer}","samples":{samples:?}}}"#);
}

/// Runs one iteration and returns the wait of the other task.
async fn neighbour<H: Conserve>(kind: Kind) -> Duration {
    H::sleep(SETTLE).await;
    let other = if kind == Kind::Spawn {
        let other = Arc::new(Other::default());
        other.set_ready(Instant::now());
        let child = other.clone();
        H::spawn_other(async move { child.set_ran() });
        other
    } else {
        let (other, release) = side_by_side::<H>(kind).await;
        release.release();
        other
    };
    let start_time = Instant::now();
    while start_time.elapsed() < COMPUTE {
        std::hint::spin_loop();
    }
    other.end.take().await;
    let times = other.times.lock().expect("no panic while locked");
    match *times {
        Times {
            ready: Some(ready),
            ran: Some(ran),
            ..
        } => ran.saturating_duration_since(ready),
        _ => unreachable!("the task ends after both times are set"),
    }
}

/// State of the other task, shared with the neighbour.
#[derive(Default)]
struct Other {
    times: Mutex<Times>,
    /// Token that the task waits for if it is woken.
    token: TokenSlot,
    /// Token that the task puts when it ends.
    end: TokenSlot,
}

#[derive(Default)]
struct Times {
    /// Thread of the poll in which the task began to wait.
    waits_on: Option<ThreadId>,
    /// Time from which the task is ready.
    ready: Option<Instant>,
    /// Time at which the ready task runs.
    ran: Option<Instant>,
}

impl Other {
    /// Records that the task waits on the calling thread.
    fn set_waiting_here(&self) {
        self.times.lock().expect("no panic while locked").waits_on = Some(thread::current().id());
    }

    /// Records the time from which the task is ready.
    fn set_ready(&self, time: Instant) {
        self.times.lock().expect("no panic while locked").ready = Some(time);
    }

    /// Records that the task runs now, and ends it.
    fn set_ran(&self) {
        let now = Instant::now();
        self.times.lock().expect("no panic while locked").ran = Some(now);
        self.end.put();
    }
}

/// Means to end the wait of the other task.
enum Release {
    /// Gives each of these tasks its token.
    Fill(Vec<Arc<Other>>),
    /// Does nothing, because the timer of the task becomes due.
    Due,
    /// Writes to the socket, after [`WRITE`] and from another thread.
    Write(Arc<Other>, UnixStream),
}

impl Release {
    fn release(self) {
        match self {
            Release::Fill(others) => {
                for other in others {
                    other.set_ready(Instant::now());
                    other.token.put();
                }
            }
            Release::Due => {}
            Release::Write(other, mut socket) => {
                thread::spawn(move || {
                    thread::sleep(WRITE);
                    other.set_ready(Instant::now());
                    let _ = socket.write_all(b"!");
                    // The socket stays open until the byte has been read.
                    thread::sleep(2 * COMPUTE);
                });
            }
        }
    }
}

/// Starts the other task so that it waits on the worker of the calling task, if 20 attempts
/// suffice. Tasks that wait on the other worker are released.
async fn side_by_side<H: Conserve>(kind: Kind) -> (Arc<Other>, Release) {
    let mut attempts = 20;
    loop {
        let other = Arc::new(Other::default());
        let release = start::<H>(kind, &other);
        H::sleep(SETTLE).await;
        let waits_on = other.times.lock().expect("no panic while locked").waits_on;
        attempts -= 1;
        if attempts == 0 || waits_on == Some(thread::current().id()) {
            return (other, release);
        }
        release.release();
    }
}

fn start<H: Conserve>(kind: Kind, other: &Arc<Other>) -> Release {
    let waiting = other.clone();
    match kind {
        Kind::Spawn => unreachable!("a child does not wait"),
        Kind::Wake => {
            H::spawn_other(token(waiting));
            Release::Fill(vec![other.clone()])
        }
        Kind::WakeTwo => {
            let second = Arc::new(Other::default());
            H::spawn_other(token(waiting));
            H::spawn_other(token(second.clone()));
            Release::Fill(vec![other.clone(), second])
        }
        Kind::Timer => {
            H::spawn_other(async move {
                waiting.set_waiting_here();
                waiting.set_ready(Instant::now() + TIMER);
                H::sleep(TIMER).await;
                waiting.set_ran();
            });
            Release::Due
        }
        Kind::Data => {
            let (outside, inside) = UnixStream::pair().expect("a pair of sockets");
            H::spawn_other(async move {
                waiting.set_waiting_here();
                H::read(inside).await;
                waiting.set_ran();
            });
            Release::Write(other.clone(), outside)
        }
    }
}

async fn token(other: Arc<Other>) {
    other.set_waiting_here();
    other.token.take().await;
    other.set_ran();
}
