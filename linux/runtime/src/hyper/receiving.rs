//! The CPU time that a connection may take at the level at which it receives.
//!
//! That level goes before all requests, so the work done at it has to be bounded, also for clients
//! that mean harm: frames that ask for nothing, heads that are refused, health checks one after the
//! other. One rule does it: a connection is polled [`FREE_POLLS`] times at the level of receiving
//! for each time that it is polled for a request at a level of its own. Further polls are paid for
//! from a [`TokenBucket`] of CPU time, by their duration. The bucket receives one part in
//! [`CONNECTION_SHARE`] of the time, or less where all buckets together would receive more than one
//! part in [`TOTAL_SHARE`], holds [`BUCKET_CAPACITY`] at most, owes [`BUCKET_CAPACITY`] at most,
//! and is full at first.
//!
//! While it owes time the connection is *throttled*: it receives at another level, until it holds
//! [`MAX_POLL_TIME`] again or has been polled for a request. A coroutine at the level of receiving
//! waits for that, since one that is throttled may not be polled at all, least of all behind a
//! request of its own. A connection returns from its request to the level of receiving, also if it
//! was throttled before.
//!
//! So, while work of level *L* is ready, connections without a request of *L* or of a more urgent
//! level take from it, by receiving, at most [`FREE_POLLS`] + 1 polls and 2 [`BUCKET_CAPACITY`]
//! each, and a tenth of the time all together. A client whose requests are answered is not
//! throttled, however often the machine interrupts its polls, while it needs at most [`FREE_POLLS`]
//! of them for a request.
//!
//! Cost: per poll some 20 instructions; at the level of receiving a reading of the clock.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;
use upshift_core::{CoroutineId, Level, Priority, TokenBucket};

use crate::coroutine::budget;
use crate::host;
use crate::time;
use crate::time::clock;

/// The reciprocal of a connection's share of the time.
const CONNECTION_SHARE: u64 = 1000;
/// The reciprocal of the share that all connections have together, at most.
const TOTAL_SHARE: u64 = 10;
/// Polls at the level of receiving for each poll of a request: one for the request, one for its
/// reply, and some more for requests in pieces.
const FREE_POLLS: u32 = 5;
/// The longest time that a poll of reading takes.
const MAX_POLL_TIME: Duration = budget::SHARE;
/// The contents of a full bucket: enough for a hundred streams of HTTP/2 that begin at once.
const BUCKET_CAPACITY: Duration = MAX_POLL_TIME.saturating_mul(FREE_POLLS);

/// The coroutine that is polled is at a level of its request's own.
const AT_REQUEST_LEVEL: u8 = 1;
/// A part of the poll was at the level of a request, which it got in the middle.
const AT_BOTH_LEVELS: u8 = 2;

thread_local! {
    /// Bits that say at which levels the poll under way works.
    static REQUEST_STATE: Cell<u8> = const { Cell::new(0) };
    /// The level of receiving of the connection that is polled.
    static RECEIVE_LEVEL: Cell<Option<Level>> = const { Cell::new(None) };
}

/// Guard of a poll of a connection, which may panic.
struct ReceiveGuard;

impl ReceiveGuard {
    #[inline]
    fn begin(level: Level) -> ReceiveGuard {
        RECEIVE_LEVEL.set(Some(level));
        ReceiveGuard
    }
}

impl Drop for ReceiveGuard {
    #[inline]
    fn drop(&mut self) {
        RECEIVE_LEVEL.set(None);
    }
}

/// Returns the level to which a coroutine that is at `level` returns after a request at a level of
/// its own: the connection that is polled may be throttled, and the request
/// frees its next polls.
#[inline]
pub(super) fn level_after(level: Level) -> Level {
    RECEIVE_LEVEL.get().unwrap_or(level)
}

/// Records that the coroutine that is being polled works on a request at a level of its own.
/// `at_once`: within the same poll.
#[inline]
pub(super) fn begin_request(at_once: bool) {
    REQUEST_STATE.set(AT_REQUEST_LEVEL | if at_once { AT_BOTH_LEVELS } else { 0 });
}

/// Records that the coroutine receives again.
#[inline]
pub(super) fn end_request() {
    REQUEST_STATE.set(REQUEST_STATE.get() & AT_BOTH_LEVELS);
}

/// The levels at which a server receives, and the number of connections that share.
#[derive(Debug)]
pub struct Receiving {
    level: Level,
    throttled: Level,
    open: AtomicU64,
    /// [`BUCKET_CAPACITY`] in ticks.
    most: u64,
    /// [`MAX_POLL_TIME`] in ticks.
    poll: u64,
}

impl Receiving {
    /// Creates the levels of a server: `level`, and `throttled` for a connection that has used up
    /// its [`Allowance`], which must not be more urgent.
    #[must_use]
    pub fn new(level: Level, throttled: Level) -> Arc<Receiving> {
        Arc::new(Receiving {
            level,
            throttled: throttled.max(level),
            open: AtomicU64::new(0),
            most: clock::to_ticks(BUCKET_CAPACITY).max(1),
            poll: clock::to_ticks(MAX_POLL_TIME).max(1),
        })
    }

    /// Returns the allowance of a new connection.
    #[must_use]
    pub fn open(self: &Arc<Receiving>) -> Arc<Allowance> {
        self.open.fetch_add(1, Relaxed);
        Arc::new(Allowance {
            free: AtomicU32::new(FREE_POLLS),
            bucket: Mutex::new(TokenBucket::new(
                CONNECTION_SHARE,
                self.most,
                clock::ticks(),
            )),
            receiving: self.clone(),
        })
    }

    /// Returns the reciprocal of the share of the time that each connection receives.
    fn share(&self) -> u64 {
        (self.open.load(Relaxed) * TOTAL_SHARE).max(CONNECTION_SHARE)
    }
}

/// The CPU time that a connection may still take at the level of receiving.
///
/// Two coroutines of it that are polled on two vCPUs may take one free poll.
pub struct Allowance {
    receiving: Arc<Receiving>,
    /// Polls that are not paid for.
    free: AtomicU32,
    /// Ticks of polls that are paid for.
    bucket: Mutex<TokenBucket>,
}

impl Allowance {
    /// Wraps a part of the connection's work that is spawned at the level of receiving: its polls
    /// there are paid for.
    pub fn hold<F>(self: &Arc<Allowance>, future: F) -> Held<F> {
        Held {
            inner: future,
            allowance: self.clone(),
            requests: false,
            throttled: None,
        }
    }

    /// Returns the executor for the streams of an HTTP/2 connection.
    #[must_use]
    pub fn spawner(self: &Arc<Allowance>) -> StreamSpawner {
        StreamSpawner {
            allowance: self.clone(),
        }
    }

    /// Takes one of the free polls, if one is left.
    #[inline]
    fn take_free(&self) -> bool {
        let free = self.free.load(Relaxed);
        self.free.store(free.saturating_sub(1), Relaxed);
        free != 0
    }

    /// Locks the bucket, which is refilled at the share that a connection has now.
    fn bucket(&self, now: u64) -> MutexGuard<'_, TokenBucket> {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.set_rate((1, self.receiving.share()), now);
        bucket
    }

    /// Pays for a poll from tick `began` to tick `now`.
    fn pay(&self, began: u64, now: u64) {
        let took = now.saturating_sub(began).max(1);
        self.bucket(now).spend(took, now);
    }

    /// Frees the next polls, for a poll of a request.
    #[inline]
    fn free(&self) {
        if self.free.load(Relaxed) != FREE_POLLS {
            self.free.store(FREE_POLLS, Relaxed);
        }
    }

    /// Returns the ticks from `now` until the bucket holds a poll.
    fn wait(&self, now: u64) -> u64 {
        self.bucket(now).wait(self.receiving.poll, now)
    }
}

impl Drop for Allowance {
    fn drop(&mut self) {
        self.receiving.open.fetch_sub(1, Relaxed);
    }
}

impl fmt::Debug for Allowance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allowance").finish_non_exhaustive()
    }
}

pin_project! {
    /// The future of [`Allowance::hold`].
    #[must_use = "futures do nothing unless awaited"]
    pub struct Held<F> {
        #[pin]
        inner: F,
        allowance: Arc<Allowance>,
        // The coroutine is at the level of a request.
        requests: bool,
        // It is throttled, unless it has gone to another one since.
        throttled: Option<Arc<AtomicBool>>,
    }
}

impl<F: Future> Future for Held<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let Some(level) = host::current_level() else {
            return this.inner.poll(cx);
        };
        let receiving = &*this.allowance.receiving;
        let requested = *this.requests;
        let receives = !requested && level <= receiving.level;
        if receives && let Some(throttled) = this.throttled.take() {
            throttled.store(false, Relaxed);
        }
        let pays = receives && !this.allowance.take_free();
        let began = if pays { clock::ticks() } else { 0 };
        if pays && this.allowance.bucket(began).owes(began) {
            *this.throttled = throttle(this.allowance);
            if this.throttled.is_some() {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
        REQUEST_STATE.set(if requested { AT_REQUEST_LEVEL } else { 0 });
        let at = ReceiveGuard::begin(receiving.level);
        let polled = this.inner.poll(cx);
        drop(at);
        let request = REQUEST_STATE.replace(0);
        *this.requests = request & AT_REQUEST_LEVEL != 0;
        if *this.requests
            && let Some(throttled) = this.throttled.take()
        {
            // Its level is that of the request now.
            throttled.store(false, Relaxed);
        }
        if requested || request & AT_BOTH_LEVELS != 0 {
            this.allowance.free();
        } else if pays {
            this.allowance.pay(began, clock::ticks());
        }
        polled
    }
}

/// Throttles the running coroutine, and spawns one that ends that.
/// `None`: there is no memory for that.
#[cold]
fn throttle(allowance: &Arc<Allowance>) -> Option<Arc<AtomicBool>> {
    let receiving = &allowance.receiving;
    let id = host::current_id()?;
    let throttled = Arc::new(AtomicBool::new(true));
    let back = unthrottle(allowance.clone(), id, throttled.clone());
    let spawned = crate::try_spawn(back, Priority::At(receiving.level));
    spawned.ok()?.detach();
    // It is alive.
    let _ = crate::reprio(id, receiving.throttled);
    Some(throttled)
}

/// Takes a coroutine back to the level of receiving when its bucket holds a poll again. A coroutine
/// that begins a request on another vCPU at this very moment is received at that level until the
/// request ends.
async fn unthrottle(allowance: Arc<Allowance>, id: CoroutineId, throttled: Arc<AtomicBool>) {
    while throttled.load(Relaxed) {
        match allowance.wait(clock::ticks()) {
            0 => break,
            ticks => time::sleep(clock::from_ticks(ticks)).await,
        }
    }
    if throttled.swap(false, Relaxed) {
        // It may have ended.
        let _ = crate::reprio(id, allowance.receiving.level);
    }
}

impl<F> fmt::Debug for Held<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").finish_non_exhaustive()
    }
}

/// hyper's executor for the streams of a connection: coroutines at the level of receiving, within
/// its [`Allowance`].
#[derive(Clone, Debug)]
pub struct StreamSpawner {
    allowance: Arc<Allowance>,
}

impl<F> ::hyper::rt::Executor<F> for StreamSpawner
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        let level = Priority::At(self.allowance.receiving.level);
        if let Ok(handle) = crate::try_spawn(self.allowance.hold(future), level) {
            handle.detach();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receiving() -> Arc<Receiving> {
        Receiving::new(Level::at::<2>(), Level::at::<28>())
    }

    #[test]
    fn a_connection_that_overspends_waits_until_it_holds_a_poll() {
        let receiving = receiving();
        let allowance = receiving.open();
        let Receiving { poll, most, .. } = *receiving;
        let now = clock::ticks();
        allowance.pay(now - most, now);
        assert!(!allowance.bucket(now).owes(now));
        assert_eq!(allowance.wait(now), CONNECTION_SHARE * poll);
        allowance.pay(now - 10 * most, now);
        assert!(allowance.bucket(now).owes(now));
        assert_eq!(allowance.wait(now), CONNECTION_SHARE * (poll + most));
    }

    #[test]
    fn each_poll_of_a_request_frees_some_of_receiving() {
        let allowance = receiving().open();
        for _ in 0..3 {
            assert!((0..FREE_POLLS).all(|_| allowance.take_free()));
            assert!(!allowance.take_free());
            allowance.free();
        }
    }

    #[test]
    fn many_connections_share_a_tenth_of_the_time() {
        let receiving = receiving();
        let hundred: Vec<_> = (0..CONNECTION_SHARE / TOTAL_SHARE)
            .map(|_| receiving.open())
            .collect();
        assert_eq!(receiving.share(), CONNECTION_SHARE);
        let more: Vec<_> = hundred.iter().map(|_| receiving.open()).collect();
        assert_eq!(receiving.share(), 2 * CONNECTION_SHARE);
        drop((hundred, more));
        assert_eq!(receiving.share(), CONNECTION_SHARE);
    }
}
