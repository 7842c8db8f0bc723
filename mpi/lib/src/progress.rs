//! The progress coroutine: the only place where MPI is asked what is complete.
//!
//! It runs at the level of the most urgent operation that is awaited, and bounds what it takes:
//!
//! * nothing outstanding: it sleeps until something is started;
//! * something has come within the last [`SPIN`], which is about what a sleep and a wake cost, and this rank has nothing else to do: it
//!   looks all the time. It calls `sched_yield` meanwhile if ranks share CPUs, so a rank that has what the
//!   others wait for comes to run, also if all of them are elevated;
//! * otherwise it sleeps between looks, for an eighth of the time for which nothing has come: so what is waited for is late by
//!   an eighth of its time, or by [`FLOOR`], and a rank where nothing comes looks once in [`CEILING`]. A rank of the same node ends the
//!   sleep by a datagram.
//!
//! MPI moves a long message in pieces, each by a look on either side, and does not say that it has moved one. The time that the look takes
//! does ([`Pace`]). A piece is something that has come.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use upshift::{time, yield_if_needed, yield_now};

use crate::job::Job;
use crate::table::Found;

/// How long it looks without sleeping.
const SPIN: Duration = Duration::from_micros(100);
/// The same after a sleep in which nothing came: until a rank that has waited for this one's look has answered.
const ANSWER: Duration = Duration::from_micros(25);
/// The shortest sleep: that of a rank that computes.
const FLOOR: Duration = Duration::from_micros(50);
/// The longest: a rank where nothing comes takes well under 1 % of a CPU.
const CEILING: Duration = Duration::from_millis(20);

/// A look at all requests, a window at a time.
async fn look(job: &Job) -> Look {
    let mut found = Found::default();
    let began = Instant::now();
    let mut end = job.look_first(&mut found);
    let requests = end;
    let mut taken = began.elapsed();
    while end > 0 {
        let began = Instant::now();
        end = job.look_at(end, &mut found);
        taken += began.elapsed();
        for waker in found.wakers.drain(..) {
            waker.wake();
        }
        if end > 0 {
            yield_if_needed().await;
        }
    }
    found.wakers.into_iter().for_each(std::task::Waker::wake);
    for peers in &found.peers {
        job.node.ring(peers);
    }
    Look {
        events: found.events,
        requests,
        taken,
    }
}

struct Look {
    /// Operations that are complete.
    events: usize,
    /// Requests that were looked at.
    requests: usize,
    /// Time in MPI.
    taken: Duration,
}

/// Tells looks that have moved a piece from those that have not: they take longer than [`LONGER`](Self::LONGER) times the quickest since the
/// sleep before the last. That one has ended because looks brought nothing, so the quickest is the price of such a look, whatever machine,
/// transport and number of requests make of it.
///
/// After a sleep the caches are cold and every look takes long. The first one says nothing then, unless this rank has other things
/// to do: those cool the caches between any two looks. What is mistaken for pieces is bounded: between two completions there are no more
/// pieces than outstanding bytes hold [`PIECE`](Self::PIECE).
struct Pace {
    requests: usize,
    before: Duration,
    now: Duration,
    cold: bool,
    pieces: u64,
}

impl Pace {
    const LONGER: u32 = 4;
    /// Bytes: an eighth of the pieces of Open MPI's shared memory, because a collective moves its bytes several times.
    const PIECE: u64 = 4096;

    fn new() -> Pace {
        Pace {
            requests: 0,
            before: Duration::MAX,
            now: Duration::MAX,
            cold: true,
            pieces: 0,
        }
    }

    fn sleeps(&mut self) {
        self.before = std::mem::replace(&mut self.now, Duration::MAX);
        self.cold = true;
    }

    /// Something was completed or started: its bytes count anew.
    fn arrives(&mut self) {
        self.pieces = 0;
        self.cold = false;
    }

    /// Has this look, which completed nothing, moved a piece?
    fn moved(&mut self, look: &Look, bytes: u64, quiet: bool) -> bool {
        if look.requests > self.requests {
            (self.before, self.now) = (Duration::MAX, Duration::MAX);
        }
        self.requests = look.requests;
        let quickest = self.before.min(self.now);
        let counts = !(std::mem::take(&mut self.cold) && quiet);
        self.now = self.now.min(look.taken);
        let longer = look.taken > quickest.saturating_mul(Pace::LONGER);
        if !(counts && longer && self.pieces < bytes / Pace::PIECE) {
            return false;
        }
        self.pieces += 1;
        true
    }
}

/// Looks until the job ends.
pub(crate) async fn progress(job: Arc<Job>) {
    // When something came last, and when it began to look without sleeping.
    let (mut last, mut awake) = (Instant::now(), Instant::now());
    let mut pace = Pace::new();
    while !job.has_ended() {
        let found = look(&job).await;
        if found.events > 0 {
            pace.arrives();
            last = Instant::now();
            yield_now().await;
            continue;
        }
        if job.with(|table| table.is_idle()) {
            kicked(&job).await;
            pace.arrives();
            last = Instant::now();
            continue;
        }
        let quiet = job.is_quiet();
        if pace.moved(&found, job.with(|table| table.bytes()), quiet) {
            last = Instant::now();
            yield_now().await;
            continue;
        }
        let waited = last.elapsed();
        if quiet && (waited < SPIN || awake.elapsed() < ANSWER) {
            if job.node.crowded {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
            yield_now().await;
            continue;
        }
        job.node.sleep();
        let found = look(&job).await;
        if found.events > 0 {
            pace.arrives();
            last = Instant::now();
        } else if pace.moved(&found, job.with(|table| table.bytes()), quiet) {
            last = Instant::now();
        } else {
            let pause = (waited.saturating_sub(SPIN) / 8).clamp(FLOOR, CEILING);
            pace.sleeps();
            if time::timeout(pause, kicked(&job)).await.is_ok() {
                pace.arrives();
                last = Instant::now();
            }
            awake = Instant::now();
        }
        job.node.wake();
    }
}

/// Something has been started, or left by a destructor, or a datagram has come.
async fn kicked(job: &Job) {
    let wait = poll_fn(|cx| {
        if job.has_ended() {
            return Poll::Ready(());
        }
        job.with(|table| {
            if std::mem::take(&mut table.kicked) {
                return Poll::Ready(());
            }
            table.sleeper = Some(cx.waker().clone());
            Poll::Pending
        })
    });
    pin!(wait).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn took(nanos: u64) -> Look {
        Look {
            events: 0,
            requests: 1,
            taken: Duration::from_nanos(nanos),
        }
    }

    #[test]
    fn a_look_that_copies_moves_and_an_empty_one_does_not() {
        let mut pace = Pace::new();
        pace.arrives();
        assert!(!pace.moved(&took(300), MIB, true));
        for _ in 0..100 {
            assert!(pace.moved(&took(9000), MIB, true));
            assert!(!pace.moved(&took(310), MIB, true));
        }
    }

    #[test]
    fn the_first_look_after_a_sleep_counts_beside_other_work_only() {
        let mut pace = Pace::new();
        pace.arrives();
        assert!(!pace.moved(&took(300), MIB, true));
        pace.sleeps();
        assert!(!pace.moved(&took(9000), MIB, true));
        assert!(pace.moved(&took(9000), MIB, true));
        assert!(!pace.moved(&took(300), MIB, true));
        pace.sleeps();
        assert!(pace.moved(&took(9000), MIB, false));
    }

    #[test]
    fn outstanding_bytes_bound_the_pieces() {
        let mut pace = Pace::new();
        pace.arrives();
        assert!(!pace.moved(&took(300), MIB, true));
        let pieces = (0..1000).filter(|_| pace.moved(&took(9000), MIB, true));
        assert_eq!(pieces.count() as u64, MIB / Pace::PIECE);
        assert!(!pace.moved(&took(9000), 8, true));
        pace.arrives();
        assert!(pace.moved(&took(9000), MIB, true));
        assert!(!pace.moved(&took(9000), 8, true));
    }

    /// A machine that has become slower, or more requests: every look takes longer, and none is a piece.
    #[test]
    fn the_quickest_look_is_forgotten_after_two_sleeps() {
        let mut pace = Pace::new();
        pace.arrives();
        assert!(!pace.moved(&took(300), MIB, true));
        for _ in 0..2 {
            pace.sleeps();
            for _ in 0..3 {
                pace.moved(&took(2000), MIB, true);
            }
        }
        pace.sleeps();
        for _ in 0..10 {
            assert!(!pace.moved(&took(2100), MIB, true));
        }
        let many = Look {
            requests: 5000,
            ..took(100_000)
        };
        for _ in 0..10 {
            assert!(!pace.moved(&many, MIB, true));
        }
    }
}
