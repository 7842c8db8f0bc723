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
//! MPI moves a long message in pieces, each by a look on either side, and does not say that it has moved one: whenever nothing has come for a
//! [`SPIN`], a piece is presumed to have come, as often as the outstanding bytes hold pieces ([`Pieces`]).

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
/// Bytes: half a fragment of Open MPI's shared memory, because a collective moves its bytes several times.
const PIECE: u64 = 16 << 10;

/// A look at all requests, a window at a time: is any complete?
async fn look(job: &Job) -> bool {
    let mut found = Found::default();
    let mut end = job.look_first(&mut found);
    while end > 0 {
        end = job.look_at(end, &mut found);
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
    found.events > 0
}

/// The pieces that may yet be waited for. Each is waited for once, as anything that comes is: so what looking takes is bounded by the bytes that
/// are moved.
///
/// Another rank may begin its part late, when all have been waited for in vain. A datagram may say so, and may be about something else:
/// it brings them back, half as many each time that they have been used up.
#[derive(Default)]
struct Pieces {
    outstanding: u64,
    left: u64,
    in_vain: u32,
}

impl Pieces {
    /// Bytes are outstanding.
    fn are(&mut self, bytes: u64) {
        let outstanding = bytes / PIECE;
        if outstanding > self.outstanding {
            self.left += outstanding - self.outstanding;
        }
        // What began or ended is about as long as the rest, not a short operation beside a long one whose sender computes.
        if 2 * outstanding.abs_diff(self.outstanding) >= outstanding.max(self.outstanding) {
            self.in_vain = 0;
        }
        self.left = self.left.min(outstanding);
        self.outstanding = outstanding;
    }

    /// Another rank has begun or ended something.
    fn come_back(&mut self) {
        let share = self.outstanding.checked_shr(self.in_vain).unwrap_or(0);
        self.left = self.left.max(share);
    }

    /// Nothing has come for a [`SPIN`]: is a piece presumed to have come?
    fn presume(&mut self) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        self.in_vain += u32::from(self.left == 0);
        true
    }
}

/// Looks until the job ends.
pub(crate) async fn progress(job: Arc<Job>) {
    // When something came last, and when it began to look without sleeping.
    let (mut last, mut awake) = (Instant::now(), Instant::now());
    let mut pieces = Pieces::default();
    while !job.has_ended() {
        if look(&job).await {
            last = Instant::now();
            yield_now().await;
            continue;
        }
        if job.with(|table| table.is_idle()) {
            kicked(&job).await;
            last = Instant::now();
            continue;
        }
        pieces.are(job.with(|table| table.bytes()));
        if last.elapsed() >= SPIN && pieces.presume() {
            last = Instant::now();
        }
        let waited = last.elapsed();
        if job.is_quiet() && (waited < SPIN || awake.elapsed() < ANSWER) {
            if job.node.crowded {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
            yield_now().await;
            continue;
        }
        job.node.sleep();
        if look(&job).await {
            last = Instant::now();
        } else {
            let pause = (waited.saturating_sub(SPIN) / 8).clamp(FLOOR, CEILING);
            if time::timeout(pause, kicked(&job)).await.is_ok() {
                pieces.come_back();
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

    fn presumed(pieces: &mut Pieces) -> u64 {
        std::iter::from_fn(|| pieces.presume().then_some(())).count() as u64
    }

    #[test]
    fn each_piece_is_presumed_once() {
        let mut pieces = Pieces::default();
        pieces.are(PIECE - 1);
        assert_eq!(presumed(&mut pieces), 0);
        for _ in 0..10 {
            pieces.are(100 * PIECE);
            pieces.are(100 * PIECE);
            assert_eq!(presumed(&mut pieces), 100);
            // Short ones come and go beside it.
            pieces.are(100 * PIECE + 8);
            assert_eq!(presumed(&mut pieces), 0);
            pieces.are(130 * PIECE);
            assert_eq!(presumed(&mut pieces), 30);
            pieces.are(0);
            assert_eq!(presumed(&mut pieces), 0);
        }
    }

    /// What completes takes its pieces with it.
    #[test]
    fn there_are_never_more_left_than_outstanding() {
        let mut pieces = Pieces::default();
        pieces.are(100 * PIECE);
        pieces.are(10 * PIECE);
        assert_eq!(presumed(&mut pieces), 10);
    }

    #[test]
    fn all_that_is_waited_for_in_vain_is_less_than_twice_the_pieces() {
        let mut pieces = Pieces::default();
        pieces.are(1000 * PIECE);
        let mut all = presumed(&mut pieces);
        for _ in 0..100 {
            pieces.come_back();
            all += presumed(&mut pieces);
        }
        assert!((1500..2000).contains(&all), "{all}");
        // Shorter ones beside it change nothing.
        for _ in 0..100 {
            pieces.are(1010 * PIECE);
            pieces.are(1000 * PIECE);
            pieces.come_back();
            all += presumed(&mut pieces);
        }
        assert!(all < 2000 + 100 * 10, "{all}");
        // Another as long begins: hope is new.
        pieces.are(2000 * PIECE);
        assert_eq!(presumed(&mut pieces), 1000);
        pieces.come_back();
        assert_eq!(presumed(&mut pieces), 1000);
    }
}
