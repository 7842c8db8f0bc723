//! Runs the progress coroutine, which asks MPI for completions.
//!
//! A *look* tests all outstanding requests once, and probes for messages. The coroutine runs at the
//! level of the most urgent pending operation. The cost of the looks is bounded as follows:
//!
//! * If no operation is outstanding, the coroutine sleeps until an operation is started.
//! * For [`SPIN`] after the last completion (about the cost of a sleep and a wake-up), it looks
//!   continuously if this rank has no other work. If ranks share CPUs, it calls `sched_yield`
//!   meanwhile, so that a rank on which other ranks depend can run, even if all ranks are elevated
//!   (have real-time priority).
//! * Otherwise it sleeps between looks for an eighth of the time since the last completion. So a
//!   completion is noticed late by about an eighth of the time waited for it, or by [`MIN_SLEEP`],
//!   and a rank without completions looks once every [`MAX_SLEEP`]. Another rank of the same node
//!   ends the sleep by a datagram.
//!
//! MPI transfers a long message in pieces. Each piece needs a look on either side, and MPI does not
//! report the arrival of a piece. So after each [`SPIN`] without a completion, a piece is presumed
//! to have arrived. This counts like a completion, and happens at most once for each piece of the
//! outstanding bytes ([`Pieces`]).

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use upshift::{time, yield_if_needed, yield_now};

use crate::job::Job;
use crate::table::LookResults;

/// Time after a completion during which the coroutine looks without sleeping.
const SPIN: Duration = Duration::from_micros(100);
/// Time after a sleep during which the coroutine looks without sleeping, because another rank that
/// waited for this rank's look replies within this time.
const ANSWER: Duration = Duration::from_micros(25);
/// Minimum sleep between two looks.
const MIN_SLEEP: Duration = Duration::from_micros(50);
/// Maximum sleep, which bounds the CPU time of a rank without completions.
const MAX_SLEEP: Duration = Duration::from_millis(20);
/// Size of a piece in bytes. It is half a fragment of Open MPI's shared-memory transport, because a
/// collective moves its bytes several times.
const PIECE: u64 = 16 << 10;

/// Looks at all requests, one window at a time. Returns whether a request has completed.
async fn look(job: &Job) -> bool {
    let mut results = LookResults::default();
    let mut end = job.begin_look(&mut results);
    while end > 0 {
        end = job.look_at_window(end, &mut results);
        for waker in results.wakers.drain(..) {
            waker.wake();
        }
        if end > 0 {
            yield_if_needed().await;
        }
    }
    results.wakers.into_iter().for_each(std::task::Waker::wake);
    for peers in &results.peers {
        job.node.wake_sleepers(peers);
    }
    results.events > 0
}

/// The pieces of long messages whose arrival may still be presumed. Each is presumed once, so the
/// cost of looking is bounded by the number of transferred bytes.
///
/// Another rank may begin its part late, after all pieces have been presumed in vain. A datagram
/// may announce such a late beginning, or have another cause. So the first datagram restores half
/// of the pieces, the second a quarter, and so on. An operation that begins or completes renews the
/// pieces that datagrams may restore.
#[derive(Default)]
struct Pieces {
    /// Number of pieces of all operations that have begun since the start of the job.
    begun: u64,
    /// Number of pieces of the running operations.
    outstanding: u64,
    /// Number of pieces whose arrival may still be presumed.
    remaining: u64,
    /// Number of pieces that datagrams may restore.
    restorable: u64,
}

impl Pieces {
    /// Updates the pieces from the outstanding bytes, and the bytes of all operations that have
    /// begun since the start of the job.
    fn update(&mut self, (bytes, begun): (u64, u64)) {
        let (outstanding, begun) = (bytes / PIECE, begun / PIECE);
        let fresh = begun - self.begun;
        let completed = (self.outstanding + fresh).saturating_sub(outstanding);
        self.remaining = (self.remaining + fresh).min(outstanding);
        self.restorable = (self.restorable + fresh + completed).min(outstanding);
        (self.begun, self.outstanding) = (begun, outstanding);
    }

    /// Handles a datagram, by which another rank announces that it has begun or ended an operation.
    fn restore_some(&mut self) {
        let restored = (self.restorable / 2).min(self.outstanding - self.remaining);
        self.remaining += restored;
        self.restorable -= restored;
    }

    /// Presumes a piece after a [`SPIN`] without a completion, if any remains. Returns whether
    /// a piece was presumed.
    fn presume_one(&mut self) -> bool {
        if self.remaining == 0 {
            return false;
        }
        self.remaining -= 1;
        true
    }
}

/// Runs the progress coroutine until the job ends.
pub(crate) async fn progress(job: Arc<Job>) {
    // Times of the last completion and of the end of the last sleep.
    let (mut last_completion, mut last_wakeup) = (Instant::now(), Instant::now());
    let mut pieces = Pieces::default();
    while !job.has_ended() {
        if look(&job).await {
            last_completion = Instant::now();
            yield_now().await;
            continue;
        }
        if job.with(|table| table.is_idle()) {
            wait_for_request(&job).await;
            last_completion = Instant::now();
            continue;
        }
        pieces.update(job.with(|table| table.bytes()));
        let mut waited = last_completion.elapsed();
        if waited >= SPIN && pieces.presume_one() {
            (last_completion, waited) = (Instant::now(), Duration::ZERO);
        }
        if job.is_otherwise_idle() && (waited < SPIN || last_wakeup.elapsed() < ANSWER) {
            if job.node.is_crowded {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
            yield_now().await;
            continue;
        }
        job.node.sleep();
        if look(&job).await {
            last_completion = Instant::now();
        } else {
            let pause = (waited.saturating_sub(SPIN) / 8).clamp(MIN_SLEEP, MAX_SLEEP);
            if time::timeout(pause, wait_for_request(&job)).await.is_ok() {
                pieces.restore_some();
                last_completion = Instant::now();
            }
            last_wakeup = Instant::now();
        }
        job.node.wake();
    }
}

/// Waits until an operation is started, a destructor leaves work, or a datagram arrives.
async fn wait_for_request(job: &Job) {
    let wait = poll_fn(|cx| {
        if job.has_ended() {
            return Poll::Ready(());
        }
        job.with(|table| {
            if std::mem::take(&mut table.look_requested) {
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

    /// Presumes pieces until none remains. Returns their number.
    fn presume_all(pieces: &mut Pieces) -> u64 {
        std::iter::from_fn(|| pieces.presume_one().then_some(())).count() as u64
    }

    /// Bytes of operations, for [`Pieces::update`].
    #[derive(Default)]
    struct Operations {
        begun: u64,
        bytes: u64,
    }

    impl Operations {
        fn begin(&mut self, pieces: u64) -> (u64, u64) {
            self.begun += pieces * PIECE;
            self.bytes += pieces * PIECE;
            (self.bytes, self.begun)
        }

        fn end(&mut self, pieces: u64) -> (u64, u64) {
            self.bytes -= pieces * PIECE;
            (self.bytes, self.begun)
        }
    }

    #[test]
    fn each_piece_is_presumed_once() {
        let (mut pieces, mut operations) = (Pieces::default(), Operations::default());
        for _ in 0..10 {
            pieces.update(operations.begin(100));
            pieces.update(operations.begin(0));
            assert_eq!(presume_all(&mut pieces), 100);
            pieces.update(operations.begin(30));
            assert_eq!(presume_all(&mut pieces), 30);
            pieces.update(operations.end(130));
            assert_eq!(presume_all(&mut pieces), 0);
        }
    }

    /// Each operation has its own pieces, even if no look happens between the end of one operation
    /// and the beginning of the next.
    #[test]
    fn an_operation_does_not_use_the_pieces_of_the_next() {
        let (mut pieces, mut operations) = (Pieces::default(), Operations::default());
        pieces.update(operations.begin(100));
        for _ in 0..10 {
            assert_eq!(presume_all(&mut pieces), 100);
            operations.end(100);
            pieces.update(operations.begin(100));
        }
    }

    #[test]
    fn no_more_pieces_are_left_than_outstanding() {
        let (mut pieces, mut operations) = (Pieces::default(), Operations::default());
        pieces.update(operations.begin(100));
        pieces.update(operations.end(90));
        assert_eq!(presume_all(&mut pieces), 10);
    }

    #[test]
    fn waits_in_vain_are_fewer_than_twice_the_pieces() {
        let (mut pieces, mut operations) = (Pieces::default(), Operations::default());
        pieces.update(operations.begin(1000));
        let mut presumed = presume_all(&mut pieces);
        for _ in 0..100 {
            pieces.restore_some();
            presumed += presume_all(&mut pieces);
        }
        // The first wait presumes 1,000 pieces, and each datagram restores half of the rest.
        assert!((1900..2000).contains(&presumed), "{presumed}");
        // Shorter operations in the meantime restore three times as many pieces as they have.
        for _ in 0..100 {
            pieces.update(operations.begin(10));
            pieces.update(operations.end(10));
            pieces.restore_some();
            presumed += presume_all(&mut pieces);
        }
        assert!(presumed <= 2000 + 100 * 30, "{presumed}");
    }
}
