//! What a connection may take of the CPU at the level at which it receives.
//!
//! That level goes before all requests, so what is done at it has to be bounded, whatever a client sends: frames that ask
//! for nothing, heads that are refused, health checks one after the other. One rule does it. A connection has an account of CPU time at the level of
//! receiving. Its polls at that level are paid from it, and into it goes
//!
//! * one part in [`SHARE`] of the time; where more than [`MANY`] connections are open, of these shares together one part in [`ALL`],
//! * [`POLL`] with each poll of its requests at a level of their own: what has come of receiving pays for it.
//!
//! A poll is paid at what it takes, at most half of what an account can hold: one that takes longer was most likely kept from the CPU by others. So a client
//! with a request answered for each such poll is not received beyond, however busy the machine; a full account lasts for one more of them.
//!
//! An account holds [`MOST`] at most, and is full at first. When it is empty the connection is received at a level *beyond*, until it holds [`POLL`] again:
//! a coroutine at the level of receiving waits for that, since one that is beyond may not be polled at all, least of all behind a request of its own.
//!
//! So, while something of level *L* is ready, the connections that have no request of *L* or of a more urgent level take from it, by receiving, at most
//! 2 [`MOST`] and a poll each, and a tenth of the time all together.
//!
//! Cost: per poll some 20 instructions; at the level of receiving a reading of the clock.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;
use upshift_core::{CoroutineId, Level, Priority};

use crate::budget;
use crate::clock;
use crate::host;
use crate::time;

/// The reciprocal of a connection's share of the time.
const SHARE: u64 = 1000;
/// The reciprocal of what all shares are together, at most.
const ALL: u64 = 10;
/// More connections have a smaller share each.
const MANY: u64 = SHARE / ALL;
/// What an account holds at most.
const MOST: Duration = Duration::from_micros(500);
/// What a poll of reading takes at most, and a poll of a request pays.
const POLL: Duration = budget::SHARE;

/// The coroutine that is polled is at a level of its request's own.
const OWN: u8 = 1;
/// A part of the poll was at the level of a request, which it got in the middle.
const BOTH: u8 = 2;

thread_local! {
    static REQUEST: Cell<u8> = const { Cell::new(0) };
}

/// The coroutine that is being polled now does the work of a request at a level of its own. `at_once`: without a new poll.
#[inline]
pub(super) fn begin_request(at_once: bool) {
    REQUEST.set(OWN | if at_once { BOTH } else { 0 });
}

/// It receives again.
#[inline]
pub(super) fn end_request() {
    REQUEST.set(REQUEST.get() & BOTH);
}

/// How a server receives: the levels, and how many connections share.
#[derive(Debug)]
pub struct Receiving {
    level: Level,
    beyond: Level,
    open: AtomicU64,
    most: u64,
    poll: u64,
}

impl Receiving {
    /// At `level`; a connection that has used up its [`Allowance`] at `beyond`, which is taken to be no more urgent.
    #[must_use]
    pub fn new(level: Level, beyond: Level) -> Arc<Receiving> {
        Arc::new(Receiving {
            level,
            beyond: beyond.max(level),
            open: AtomicU64::new(0),
            most: clock::to_ticks(MOST).max(1),
            poll: clock::to_ticks(POLL).max(1),
        })
    }

    /// The account of a new connection.
    #[must_use]
    pub fn open(self: &Arc<Receiving>) -> Arc<Allowance> {
        self.open.fetch_add(1, Relaxed);
        Arc::new(Allowance {
            held: AtomicU64::new(self.most),
            at: AtomicU64::new(clock::ticks()),
            receiving: self.clone(),
        })
    }

    /// One part of the time in how many goes to each connection.
    fn share(&self) -> u64 {
        (self.open.load(Relaxed) * ALL).max(ALL * MANY)
    }
}

/// What a connection may still take at the level of receiving.
///
/// Its coroutines on several vCPUs may lose a payment to each other, or a price.
pub struct Allowance {
    receiving: Arc<Receiving>,
    /// Ticks.
    held: AtomicU64,
    /// Up to when the share of the time has been paid in.
    at: AtomicU64,
}

impl Allowance {
    /// `future`, a part of the connection's work that is spawned at the level of receiving: its polls there are paid for.
    pub fn hold<F>(self: &Arc<Allowance>, future: F) -> Held<F> {
        Held {
            inner: future,
            allowance: self.clone(),
            requests: false,
            beyond: None,
        }
    }

    /// For the streams of a connection of HTTP/2.
    #[must_use]
    pub fn spawner(self: &Arc<Allowance>) -> StreamSpawner {
        StreamSpawner {
            allowance: self.clone(),
        }
    }

    /// Pays for a poll that took so long.
    #[inline]
    fn pay(&self, took: u64) {
        let price = took.clamp(1, (self.receiving.most / 2).max(1));
        let held = self.held.load(Relaxed);
        self.held.store(held.saturating_sub(price), Relaxed);
    }

    #[inline]
    fn earn(&self) {
        let Receiving { most, poll, .. } = *self.receiving;
        let held = self.held.load(Relaxed);
        if held < most {
            self.held.store((held + poll).min(most), Relaxed);
        }
    }

    /// Does it hold so much, with what has been earned by time?
    #[cold]
    fn holds(&self, price: u64, now: u64) -> bool {
        let share = self.receiving.share();
        let at = self.at.load(Relaxed);
        let income = now.saturating_sub(at) / share;
        let held = self.held.load(Relaxed).saturating_add(income);
        self.held.store(held.min(self.receiving.most), Relaxed);
        self.at.store(at + income * share, Relaxed);
        held >= price
    }

    /// How long until it holds so much.
    fn wait(&self, price: u64) -> Duration {
        let lacks = price.saturating_sub(self.held.load(Relaxed)).max(1);
        clock::from_ticks(lacks * self.receiving.share())
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
        // It is received beyond its level, unless it has gone to another one since.
        beyond: Option<Arc<AtomicBool>>,
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
        // What was picked at the level of receiving is paid for.
        let pays = !requested && level <= receiving.level;
        if (pays || requested)
            && let Some(beyond) = this.beyond.take()
        {
            beyond.store(false, Relaxed);
        }
        if pays
            && this.allowance.held.load(Relaxed) == 0
            && !this.allowance.holds(receiving.poll, clock::ticks())
        {
            *this.beyond = go_beyond(this.allowance);
            if this.beyond.is_some() {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
        let began = if pays { clock::ticks() } else { 0 };
        REQUEST.set(if requested { OWN } else { 0 });
        let polled = this.inner.poll(cx);
        let request = REQUEST.replace(0);
        *this.requests = request & OWN != 0;
        if requested {
            this.allowance.earn();
        } else if pays && request & BOTH == 0 {
            this.allowance.pay(clock::ticks().saturating_sub(began));
        }
        polled
    }
}

/// The coroutine that is polled is received beyond its level from now on, and one that takes it back is on its way. `None`: there is no memory for that.
#[cold]
fn go_beyond(allowance: &Arc<Allowance>) -> Option<Arc<AtomicBool>> {
    let receiving = &allowance.receiving;
    let id = host::current_id()?;
    let beyond = Arc::new(AtomicBool::new(true));
    let back = take_back(allowance.clone(), id, beyond.clone());
    let spawned = crate::try_spawn(back, Priority::At(receiving.level));
    spawned.ok()?.detach();
    // It is alive.
    let _ = crate::reprio(id, receiving.beyond);
    Some(beyond)
}

/// Takes a coroutine back to the level of receiving when its account holds a poll again. One that begins a request on another vCPU at this very moment is
/// at that level until the request ends.
async fn take_back(allowance: Arc<Allowance>, id: CoroutineId, beyond: Arc<AtomicBool>) {
    let price = allowance.receiving.poll;
    while beyond.load(Relaxed) && !allowance.holds(price, clock::ticks()) {
        time::sleep(allowance.wait(price)).await;
    }
    if beyond.swap(false, Relaxed) {
        // It may have ended.
        let _ = crate::reprio(id, allowance.receiving.level);
    }
}

impl<F> fmt::Debug for Held<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").finish_non_exhaustive()
    }
}

/// hyper's executor for the streams of a connection: coroutines at the level of receiving, within its [`Allowance`].
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
    fn an_account_gets_its_share_of_the_time_and_a_poll_for_a_poll() {
        let receiving = receiving();
        let allowance = receiving.open();
        let (most, poll) = (receiving.most, receiving.poll);
        let start = allowance.at.load(Relaxed);
        allowance.held.store(1, Relaxed);
        assert!(allowance.holds(1, start) && !allowance.holds(2, start));
        allowance.pay(1);
        assert!(!allowance.holds(1, start + SHARE - 1));
        assert!(allowance.holds(1, start + SHARE));
        assert!(!allowance.holds(poll, start + (poll - 1) * SHARE));
        assert!(allowance.holds(poll, start + poll * SHARE));
        allowance.held.store(0, Relaxed);
        allowance.earn();
        assert_eq!(allowance.held.load(Relaxed), poll);
        for _ in 0..100 {
            allowance.earn();
        }
        assert_eq!(allowance.held.load(Relaxed), most);
    }

    /// Each of its polls may be kept from the CPU for long.
    #[test]
    fn a_client_whose_requests_are_answered_is_never_without() {
        let receiving = receiving();
        let allowance = receiving.open();
        let kept = 100 * receiving.most;
        allowance.pay(kept);
        for _ in 0..1_000 {
            assert!(allowance.held.load(Relaxed) != 0);
            allowance.pay(kept);
            allowance.earn();
        }
    }

    #[test]
    fn many_connections_share_a_tenth_of_the_time() {
        let receiving = receiving();
        let mut open: Vec<_> = (0..MANY).map(|_| receiving.open()).collect();
        assert_eq!(receiving.share(), SHARE);
        open.extend((0..MANY).map(|_| receiving.open()));
        assert_eq!(receiving.share(), 2 * SHARE);
        drop(open);
        assert_eq!(receiving.share(), SHARE);
    }
}
