//! Limits the CPU time that a connection may use while it receives requests.
//!
//! The level at which connections receive (the *level of receiving*) is more urgent than all
//! requests. So the work that a connection does at this level has to be bounded, even for malicious
//! clients, which send frames without a request, heads that are refused, or endless health checks.
//! A connection has [`FREE_POLLS`] free polls at the level of receiving for each poll at the level
//! of a request. Further polls are charged, by their duration, to a [`TokenBucket`] of CPU time.
//! The bucket is refilled at 1/[`SHARE_DIVISOR`] of the time, or less if all buckets together would
//! be refilled at more than 1/[`TOTAL_DIVISOR`]. It is full at first and holds at most
//! [`BUCKET_CAPACITY`]. Its debt never exceeds that amount either.
//!
//! A connection whose bucket owes time is *throttled*. The server then receives from it at a less
//! urgent level, until the bucket holds [`POLL_TIME`] again or the connection is polled for a
//! request. A second coroutine, at the level of receiving, waits until the bucket is refilled,
//! since a throttled coroutine may not be polled at all. A connection returns from its request to
//! the level of receiving even if it was throttled before.
//!
//! So a connection that has no request of level *L* or of a more urgent level can delay ready work
//! of level *L*, by receiving, for at most [`FREE_POLLS`] + 1 polls and twice [`BUCKET_CAPACITY`].
//! Beyond that, all such connections together delay the work for at most a tenth of the time. A
//! client whose requests are answered is not throttled while it needs at most [`FREE_POLLS`] polls
//! for a request, regardless of their durations.
//!
//! The accounting costs about 20 instructions per poll, and two readings of the clock per charged
//! poll.

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

/// Reciprocal of the share of the time at which the bucket of a connection is refilled.
const SHARE_DIVISOR: u64 = 1000;
/// Reciprocal of the largest share of the time at which all buckets together are refilled.
const TOTAL_DIVISOR: u64 = 10;
/// Number of free polls for each poll of a request: one for the request, one for its reply, and a
/// few more for requests that arrive in pieces.
const FREE_POLLS: u32 = 5;
/// Length of a poll that reads until its share of time is used.
const POLL_TIME: Duration = budget::SHARE;
/// Capacity of a bucket: enough for a hundred streams of HTTP/2 that begin at once.
const BUCKET_CAPACITY: Duration = POLL_TIME.saturating_mul(FREE_POLLS);

/// Flag: the polled coroutine is at the level of a request.
const AT_REQUEST_LEVEL: u8 = 1;
/// Flag: the coroutine took the level of a request in the middle of the poll.
const MIXED: u8 = 2;

thread_local! {
    /// Flags of the polled coroutine: [`AT_REQUEST_LEVEL`] and [`MIXED`].
    static REQUEST_FLAGS: Cell<u8> = const { Cell::new(0) };
    /// The level of receiving of the polled connection.
    static RECEIVE_LEVEL: Cell<Option<Level>> = const { Cell::new(None) };
}

/// Sets [`RECEIVE_LEVEL`] during a poll, and resets it even if the poll panics.
struct ReceiveGuard;

impl ReceiveGuard {
    #[inline]
    fn enter(level: Level) -> ReceiveGuard {
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

/// Returns the level to which a coroutine at `level` returns after a request. This is the level of
/// receiving even if the polled connection is throttled, since the request restores the
/// connection's free polls.
#[inline]
pub(super) fn return_level(level: Level) -> Level {
    RECEIVE_LEVEL.get().unwrap_or(level)
}

/// Records that the polled coroutine takes the level of a request. `at_once` is set if the request
/// continues in the same poll.
#[inline]
pub(super) fn begin_request(at_once: bool) {
    REQUEST_FLAGS.set(AT_REQUEST_LEVEL | if at_once { MIXED } else { 0 });
}

/// Records that the polled coroutine returns to the level of receiving.
#[inline]
pub(super) fn end_request() {
    REQUEST_FLAGS.set(REQUEST_FLAGS.get() & MIXED);
}

/// The levels at which a server receives, and the number of the server's connections.
#[derive(Debug)]
pub struct ReceiveLevels {
    level: Level,
    throttled_level: Level,
    connections: AtomicU64,
    /// [`BUCKET_CAPACITY`] in ticks.
    capacity: u64,
    /// [`POLL_TIME`] in ticks.
    poll_ticks: u64,
}

impl ReceiveLevels {
    /// Creates the levels of a server: `level`, and `throttled` for a connection that has used up
    /// its [`Allowance`]. If `throttled` is more urgent than `level`, it counts as `level`.
    #[must_use]
    pub fn new(level: Level, throttled: Level) -> Arc<ReceiveLevels> {
        Arc::new(ReceiveLevels {
            level,
            throttled_level: throttled.max(level),
            connections: AtomicU64::new(0),
            capacity: clock::to_ticks(BUCKET_CAPACITY).max(1),
            poll_ticks: clock::to_ticks(POLL_TIME).max(1),
        })
    }

    /// Returns the allowance of a new connection.
    #[must_use]
    pub fn open(self: &Arc<ReceiveLevels>) -> Arc<Allowance> {
        self.connections.fetch_add(1, Relaxed);
        Arc::new(Allowance {
            free_polls: AtomicU32::new(FREE_POLLS),
            bucket: Mutex::new(TokenBucket::new(
                SHARE_DIVISOR,
                self.capacity,
                clock::ticks(),
            )),
            receive_levels: self.clone(),
        })
    }

    /// Returns the reciprocal of the current share of each connection.
    fn share_divisor(&self) -> u64 {
        (self.connections.load(Relaxed) * TOTAL_DIVISOR).max(SHARE_DIVISOR)
    }
}

/// The CPU time that a connection may still take at the level of receiving.
///
/// Two coroutines of a connection that are polled at the same time on two vCPUs may take the same
/// free poll.
pub struct Allowance {
    receive_levels: Arc<ReceiveLevels>,
    free_polls: AtomicU32,
    /// Bucket to which the duration of other polls is charged, in ticks.
    bucket: Mutex<TokenBucket>,
}

impl Allowance {
    /// Wraps a part of the connection's work that is spawned at the level of receiving, so that its
    /// polls there are charged to the allowance.
    pub fn charge<F>(self: &Arc<Allowance>, future: F) -> Charged<F> {
        Charged {
            inner: future,
            allowance: self.clone(),
            at_request_level: false,
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

    #[inline]
    fn take_free_poll(&self) -> bool {
        let free = self.free_polls.load(Relaxed);
        self.free_polls.store(free.saturating_sub(1), Relaxed);
        free != 0
    }

    /// Locks the bucket and sets its rate to the current share of a connection.
    fn bucket(&self, now: u64) -> MutexGuard<'_, TokenBucket> {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.set_rate((1, self.receive_levels.share_divisor()), now);
        bucket
    }

    fn charge_poll(&self, began: u64, now: u64) {
        let duration = now.saturating_sub(began).max(1);
        self.bucket(now).spend(duration, now);
    }

    #[inline]
    fn reset_free_polls(&self) {
        if self.free_polls.load(Relaxed) != FREE_POLLS {
            self.free_polls.store(FREE_POLLS, Relaxed);
        }
    }

    /// Returns the ticks from `now` until the bucket holds [`POLL_TIME`].
    fn ticks_until_poll(&self, now: u64) -> u64 {
        self.bucket(now).wait(self.receive_levels.poll_ticks, now)
    }
}

impl Drop for Allowance {
    fn drop(&mut self) {
        self.receive_levels.connections.fetch_sub(1, Relaxed);
    }
}

impl fmt::Debug for Allowance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allowance").finish_non_exhaustive()
    }
}

pin_project! {
    /// The future of [`Allowance::charge`].
    #[must_use = "futures do nothing unless awaited"]
    pub struct Charged<F> {
        #[pin]
        inner: F,
        allowance: Arc<Allowance>,
        // Set while the coroutine is at the level of a request.
        at_request_level: bool,
        // Flag shared with the coroutine that ends the throttling; cleared when the throttled
        // coroutine has taken another level.
        throttled: Option<Arc<AtomicBool>>,
    }
}

impl<F: Future> Future for Charged<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let Some(level) = host::current_level() else {
            return this.inner.poll(cx);
        };
        let receive_levels = &*this.allowance.receive_levels;
        let was_at_request_level = *this.at_request_level;
        let is_receiving = !was_at_request_level && level <= receive_levels.level;
        if is_receiving && let Some(throttled) = this.throttled.take() {
            throttled.store(false, Relaxed);
        }
        let is_charged = is_receiving && !this.allowance.take_free_poll();
        let began = if is_charged { clock::ticks() } else { 0 };
        if is_charged && this.allowance.bucket(began).owes(began) {
            *this.throttled = throttle(this.allowance);
            if this.throttled.is_some() {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
        REQUEST_FLAGS.set(if was_at_request_level {
            AT_REQUEST_LEVEL
        } else {
            0
        });
        let guard = ReceiveGuard::enter(receive_levels.level);
        let polled = this.inner.poll(cx);
        drop(guard);
        let flags = REQUEST_FLAGS.replace(0);
        *this.at_request_level = flags & AT_REQUEST_LEVEL != 0;
        if *this.at_request_level
            && let Some(throttled) = this.throttled.take()
        {
            // The coroutine has the level of the request now.
            throttled.store(false, Relaxed);
        }
        if was_at_request_level || flags & MIXED != 0 {
            this.allowance.reset_free_polls();
        } else if is_charged {
            this.allowance.charge_poll(began, clock::ticks());
        }
        polled
    }
}

/// Moves the running coroutine to the throttled level, and spawns a coroutine that ends the
/// throttling. Returns `None` if that coroutine cannot be spawned.
#[cold]
fn throttle(allowance: &Arc<Allowance>) -> Option<Arc<AtomicBool>> {
    let receive_levels = &allowance.receive_levels;
    let id = host::current_id()?;
    let throttled = Arc::new(AtomicBool::new(true));
    let task = return_when_refilled(allowance.clone(), id, throttled.clone());
    let spawned = crate::try_spawn(task, Priority::At(receive_levels.level));
    spawned.ok()?.detach();
    // A running coroutine is alive.
    let _ = crate::reprio(id, receive_levels.throttled_level);
    Some(throttled)
}

/// Returns a coroutine to the level of receiving when its bucket holds [`POLL_TIME`] again. If the
/// coroutine begins a request on another vCPU at the same time, it runs at the level of receiving
/// until the request ends.
async fn return_when_refilled(
    allowance: Arc<Allowance>,
    id: CoroutineId,
    throttled: Arc<AtomicBool>,
) {
    while throttled.load(Relaxed) {
        match allowance.ticks_until_poll(clock::ticks()) {
            0 => break,
            ticks => time::sleep(clock::from_ticks(ticks)).await,
        }
    }
    if throttled.swap(false, Relaxed) {
        // The coroutine may have ended.
        let _ = crate::reprio(id, allowance.receive_levels.level);
    }
}

impl<F> fmt::Debug for Charged<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Charged").finish_non_exhaustive()
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
        let level = Priority::At(self.allowance.receive_levels.level);
        if let Ok(handle) = crate::try_spawn(self.allowance.charge(future), level) {
            handle.detach();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive_levels() -> Arc<ReceiveLevels> {
        ReceiveLevels::new(Level::at::<2>(), Level::at::<28>())
    }

    #[test]
    fn a_connection_that_owes_time_waits_until_its_bucket_holds_a_poll() {
        let receive_levels = receive_levels();
        let allowance = receive_levels.open();
        let ReceiveLevels {
            poll_ticks,
            capacity,
            ..
        } = *receive_levels;
        let now = clock::ticks();
        allowance.charge_poll(now - capacity, now);
        // The bucket is empty, and gets one tick in `SHARE_DIVISOR` ticks.
        assert!(!allowance.bucket(now).owes(now));
        assert_eq!(allowance.ticks_until_poll(now), SHARE_DIVISOR * poll_ticks);
        allowance.charge_poll(now - 10 * capacity, now);
        // The debt is limited to the capacity.
        assert!(allowance.bucket(now).owes(now));
        assert_eq!(
            allowance.ticks_until_poll(now),
            SHARE_DIVISOR * (poll_ticks + capacity)
        );
    }

    #[test]
    fn each_poll_of_a_request_restores_the_free_polls() {
        let allowance = receive_levels().open();
        for _ in 0..3 {
            assert!((0..FREE_POLLS).all(|_| allowance.take_free_poll()));
            assert!(!allowance.take_free_poll());
            allowance.reset_free_polls();
        }
    }

    #[test]
    fn many_connections_share_a_tenth_of_the_time() {
        let receive_levels = receive_levels();
        let connections: Vec<_> = (0..SHARE_DIVISOR / TOTAL_DIVISOR)
            .map(|_| receive_levels.open())
            .collect();
        assert_eq!(receive_levels.share_divisor(), SHARE_DIVISOR);
        let more_connections: Vec<_> = connections.iter().map(|_| receive_levels.open()).collect();
        assert_eq!(receive_levels.share_divisor(), 2 * SHARE_DIVISOR);
        drop((connections, more_connections));
        assert_eq!(receive_levels.share_divisor(), SHARE_DIVISOR);
    }
}
