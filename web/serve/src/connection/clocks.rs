//! Implements the time-outs of a connection.
//!
//! No timer is armed per request. Instead, a connection notes the beginning of each wait in relaxed
//! atomics, in the time of a coarse clock that one coroutine advances
//! ([`sweep`](crate::server::sweep)). The same coroutine checks all connections four times a second
//! and closes the connections that have waited too long. So a time-out is at most a quarter of a
//! second late, and costs the hot path a load and a store.
//!
//! ```text
//!            accepted                     bytes of HTTP/1
//!  ┌──────┐ ◀────────             ┌─────────────────────────┐
//!  │ Head │ ─────────▶ Busy ──▶ Idle ◀── HTTP/2 is spoken   │
//!  └──────┘  request         last request ends              │
//!      ▲                                                    │
//!      └────────────────────────────────────────────────────┘
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use crate::config::Limits;

/// Minimum rate of a request's body, in bytes per second; a slower body is treated as an attack.
const MIN_BODY_RATE: u128 = 1024;
/// Time that a draining server gives a client to send a request that may be on its way. It begins
/// when the client has connected or received the last response. It also bounds how long unread
/// bytes are drained.
pub(crate) const REQUEST_GRACE: Duration = Duration::from_secs(1);

/// The stage of a connection, with the time at which its wait began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Busy,
    /// A head has begun to arrive, or the connection has just been accepted.
    Head(u64),
    Idle(u64),
}

impl Phase {
    fn to_bits(self) -> u64 {
        match self {
            Phase::Busy => 0,
            Phase::Head(since) => 2 * since + 1,
            Phase::Idle(since) => 2 * since,
        }
    }

    fn from_bits(bits: u64) -> Phase {
        match (bits / 2, bits % 2) {
            (0, _) => Phase::Busy,
            (since, 1) => Phase::Head(since),
            (since, _) => Phase::Idle(since),
        }
    }
}

/// The clocks of a connection. Times are ms of the coarse clock; 0 is "not waiting".
#[derive(Debug, Default)]
pub(crate) struct Clocks {
    clock: Arc<AtomicU64>,
    http2: AtomicBool,
    had_request: AtomicBool,
    /// Number of requests and tunnels in progress.
    active: AtomicU32,
    phase: AtomicU64,
    bodies: Bodies,
    /// Time since which a write has waited.
    write_since: AtomicU64,
    /// Set while the last write waits for the socket.
    write_pending: AtomicBool,
    /// Number of response bodies of HTTP/2 that wait until the client accepts their next part.
    offered: AtomicU32,
    /// Time at which such a body began to wait or resumed.
    offer_progress_at: AtomicU64,
    last_unsent: AtomicUsize,
    /// Set if the current HTTP/1 request is answered even if the client has closed its sending
    /// half.
    answers_after_eof: AtomicBool,
    has_unread_body: AtomicBool,
}

/// The clock of request bodies that a handler has waited for and that have not ended. All bodies of
/// a connection share one clock.
#[derive(Debug, Default)]
struct Bodies {
    open: AtomicU32,
    /// Time at which the current wait began.
    since: AtomicU64,
    /// Sum of the earlier waits, in ms; excludes the time that handlers take between two parts.
    waited: AtomicU64,
    /// Number of bytes that have arrived.
    bytes: AtomicU64,
}

impl Clocks {
    pub(super) fn new(clock: Arc<AtomicU64>) -> Clocks {
        let now = clock.load(Relaxed);
        let phase = AtomicU64::new(Phase::Head(now).to_bits());
        Clocks {
            clock,
            phase,
            ..Clocks::default()
        }
    }

    fn now(&self) -> u64 {
        self.clock.load(Relaxed)
    }

    #[inline]
    fn phase(&self) -> Phase {
        Phase::from_bits(self.phase.load(Relaxed))
    }

    #[inline]
    fn set(&self, phase: Phase) {
        self.phase.store(phase.to_bits(), Relaxed);
    }

    pub(super) fn end_handshake(&self) {
        self.set(Phase::Head(self.now()));
    }

    /// Switches to HTTP/2, where bytes between requests do not start the clock of a head.
    pub(super) fn set_http2(&self) {
        self.http2.store(true, Relaxed);
        self.set(Phase::Idle(self.now()));
    }

    pub(crate) fn is_http2(&self) -> bool {
        self.http2.load(Relaxed)
    }

    /// Returns whether a request is in progress that is answered even if the client has closed its
    /// sending half.
    pub(super) fn answers_after_eof(&self) -> bool {
        self.answers_after_eof.load(Relaxed) && !self.awaits_head()
    }

    pub(crate) fn note_unread_body(&self) {
        self.has_unread_body.store(true, Relaxed);
    }

    /// Returns whether the client may still be sending a body that is not read, or a head that was
    /// refused.
    pub(super) fn may_be_sending(&self) -> bool {
        self.has_unread_body.load(Relaxed) || matches!(self.phase(), Phase::Head(_))
    }

    pub(super) fn awaits_head(&self) -> bool {
        self.phase() != Phase::Busy
    }

    /// Returns whether the connection can be closed without losing a request that may be on its
    /// way. An HTTP/2 connection can be closed if its client has made a request. On an HTTP/1
    /// connection, the client must then also have sent nothing for `min_idle`.
    pub(super) fn can_close(&self, min_idle: Duration) -> bool {
        let is_idle = match self.phase() {
            Phase::Idle(since) => {
                u128::from(self.now().saturating_sub(since)) >= min_idle.as_millis()
            }
            _ => false,
        };
        self.had_request.load(Relaxed) && (self.is_http2() || is_idle)
    }

    /// Returns whether a part of a head has arrived while no request is being answered. The first
    /// head of a connection does not count, since a graceful shutdown of hyper waits for it.
    pub(super) fn is_within_head(&self) -> bool {
        self.had_request.load(Relaxed) && matches!(self.phase(), Phase::Head(_))
    }

    /// Notes that a request begins. `answers_after_eof` is set for an HTTP/1 request that is
    /// answered even if the client has closed its sending half. This applies to files. A service
    /// does not continue for such a client, which has most likely gone.
    pub(crate) fn begin_request(&self, answers_after_eof: bool) {
        self.had_request.store(true, Relaxed);
        self.active.fetch_add(1, Relaxed);
        self.set(Phase::Busy);
        self.answers_after_eof.store(answers_after_eof, Relaxed);
        self.has_unread_body.store(false, Relaxed);
    }

    pub(crate) fn end_request(&self) {
        if self.active.fetch_sub(1, Relaxed) == 1 {
            self.set(Phase::Idle(self.now()));
        }
    }

    pub(crate) fn begin_tunnel(&self) {
        self.active.fetch_add(1, Relaxed);
    }

    pub(crate) fn begin_body(&self) {
        if self.bodies.open.fetch_add(1, Relaxed) == 0 {
            self.bodies.waited.store(0, Relaxed);
            self.bodies.bytes.store(0, Relaxed);
        }
    }

    pub(crate) fn end_body(&self) {
        if self.bodies.open.fetch_sub(1, Relaxed) == 1 {
            self.bodies.since.store(0, Relaxed);
        }
    }

    pub(crate) fn begin_body_wait(&self) {
        if self.bodies.since.load(Relaxed) == 0 {
            self.bodies.since.store(self.now(), Relaxed);
        }
    }

    pub(crate) fn end_body_wait(&self) {
        let since = self.bodies.since.swap(0, Relaxed);
        if since != 0 {
            let waited = self.now().saturating_sub(since);
            self.bodies.waited.fetch_add(waited, Relaxed);
        }
    }

    /// Restarts the clock of a body when bytes arrive. This is necessary because a TLS record or an
    /// HTTP/2 frame reaches its reader only when it is complete, which may take long.
    #[inline]
    pub(super) fn note_body_bytes(&self, bytes: u64) {
        if self.bodies.open.load(Relaxed) == 0 {
            return;
        }
        self.bodies.bytes.fetch_add(bytes, Relaxed);
        let (since, now) = (self.bodies.since.load(Relaxed), self.now());
        if since != 0 && renew(&self.bodies.since, since, now) {
            let waited = now.saturating_sub(since);
            self.bodies.waited.fetch_add(waited, Relaxed);
        }
    }

    pub(crate) fn begin_offer(&self) {
        self.offered.fetch_add(1, Relaxed);
        self.offer_progress_at.store(self.now(), Relaxed);
    }

    pub(crate) fn end_offer(&self) {
        self.offered.fetch_sub(1, Relaxed);
        self.offer_progress_at.store(self.now(), Relaxed);
    }

    /// Notes that bytes have arrived. Returns `true` if they belong to a head of HTTP/1.
    #[inline]
    pub(super) fn note_read(&self) -> bool {
        match self.phase() {
            Phase::Busy => return false,
            Phase::Idle(_) if !self.is_http2() => self.set(Phase::Head(self.now())),
            _ => {}
        }
        !self.is_http2()
    }

    #[inline]
    pub(super) fn note_write(&self, pending: bool) {
        self.write_pending.store(pending, Relaxed);
        let since = self.write_since.load(Relaxed);
        if pending && since == 0 {
            self.write_since.store(self.now(), Relaxed);
        } else if !pending && since != 0 {
            self.write_since.store(0, Relaxed);
        }
    }

    pub(super) fn is_write_pending(&self) -> bool {
        self.write_pending.load(Relaxed)
    }

    pub(super) fn awaits_client(&self) -> bool {
        self.write_since.load(Relaxed) != 0 || self.offered.load(Relaxed) != 0
    }

    /// Restarts the clocks of writing while the client takes bytes. `unsent` is the length of the
    /// send queue. A pending write alone does not show that the client takes nothing, since the
    /// write waits until a third of the socket's buffer is free.
    pub(super) fn note_progress(&self, unsent: usize, now: u64) {
        let client_takes = self.last_unsent.swap(unsent, Relaxed) != unsent;
        let write_since = self.write_since.load(Relaxed);
        // With an empty queue the write waits only for this process.
        if write_since != 0 && (client_takes || unsent == 0) {
            renew(&self.write_since, write_since, now);
        }
        if client_takes && self.offered.load(Relaxed) != 0 {
            self.offer_progress_at.store(now, Relaxed);
        }
    }

    /// Returns the name of a time-out that has expired by the time `now`.
    pub(crate) fn overdue(&self, now: u64, limits: &Limits) -> Option<&'static str> {
        let exceeds = |since: u64, limit: Duration| {
            since != 0
                && !limit.is_zero()
                && u128::from(now.saturating_sub(since)) > limit.as_millis()
        };
        match self.phase() {
            Phase::Head(since) if exceeds(since, limits.header_timeout) => return Some("header"),
            Phase::Idle(since) if exceeds(since, limits.idle_timeout) => return Some("idle"),
            _ => {}
        }
        // One stream that makes progress is enough, because streams take turns on the connection.
        let offer_progress_at = if self.offered.load(Relaxed) != 0 {
            self.offer_progress_at.load(Relaxed)
        } else {
            0
        };
        for since in [self.write_since.load(Relaxed), offer_progress_at] {
            if exceeds(since, limits.write_timeout) {
                return Some("write");
            }
        }
        let since = self.bodies.since.load(Relaxed);
        if exceeds(since, limits.body_timeout) {
            return Some("body");
        }
        // After a total wait of `body_timeout`, the body has to arrive at the minimum rate.
        if since != 0 && !limits.body_timeout.is_zero() {
            let waited = self.bodies.waited.load(Relaxed) + now.saturating_sub(since);
            let beyond_timeout = u128::from(waited).saturating_sub(limits.body_timeout.as_millis());
            if u128::from(self.bodies.bytes.load(Relaxed)) < beyond_timeout * MIN_BODY_RATE / 1000 {
                return Some("body");
            }
        }
        None
    }
}

/// Restarts a clock that has run since `since`. Returns false if it has been stopped or restarted
/// meanwhile.
fn renew(clock: &AtomicU64, since: u64, now: u64) -> bool {
    let result = clock.compare_exchange(since, now, Relaxed, Relaxed);
    result.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clocks(now: u64) -> (Clocks, Arc<AtomicU64>) {
        let clock = Arc::new(AtomicU64::new(now));
        (Clocks::new(clock.clone()), clock)
    }

    #[test]
    fn each_wait_has_its_limit() {
        let limits = Limits::default();
        let (clocks, clock) = clocks(1);
        assert_eq!(clocks.overdue(10_000, &limits), None);
        assert_eq!(clocks.overdue(10_002, &limits), Some("header"));
        clocks.begin_request(false);
        assert_eq!(
            clocks.overdue(1_000_000, &limits),
            None,
            "handlers have no time limit"
        );
        clock.store(1000, Relaxed);
        clocks.begin_body_wait();
        assert_eq!(clocks.overdue(31_001, &limits), Some("body"));
        clocks.note_body_bytes(10);
        clocks.end_body_wait();
        clocks.note_write(true);
        assert_eq!(clocks.overdue(31_001, &limits), Some("write"));
        clocks.note_write(false);
        clocks.end_request();
        assert_eq!(clocks.overdue(76_001, &limits), Some("idle"));
        clocks.note_read();
        assert_eq!(clocks.overdue(11_001, &limits), Some("header"));
    }

    #[test]
    fn a_body_below_the_minimum_rate_is_overdue() {
        let limits = Limits::default();
        let (clocks, clock) = clocks(1);
        clocks.begin_request(false);
        clocks.begin_body();
        for second in 1..60u64 {
            clocks.begin_body_wait();
            clock.store(second * 1000, Relaxed);
            clocks.note_body_bytes(1);
            clocks.end_body_wait();
        }
        clocks.begin_body_wait();
        assert_eq!(clocks.overdue(60_000, &limits), Some("body"));
        clocks.note_body_bytes(1 << 20);
        clocks.end_body_wait();
        clocks.begin_body_wait();
        assert_eq!(clocks.overdue(60_000, &limits), None);
    }

    #[test]
    fn small_bodies_beside_a_long_response_are_not_overdue() {
        let limits = Limits::default();
        let (clocks, clock) = clocks(1);
        // A response on another stream never ends.
        clocks.begin_request(false);
        for minute in 1..60u64 {
            clock.store(minute * 60_000, Relaxed);
            clocks.begin_request(false);
            clocks.begin_body();
            clocks.begin_body_wait();
            assert_eq!(clocks.overdue(minute * 60_000 + 250, &limits), None);
            clocks.note_body_bytes(10);
            clocks.end_body_wait();
            clocks.end_body();
            clocks.end_request();
        }
    }

    #[test]
    fn a_body_that_its_handler_reads_slowly_is_not_overdue() {
        let limits = Limits::default();
        let (clocks, clock) = clocks(1);
        clocks.begin_request(false);
        clocks.begin_body();
        for minute in 1..60u64 {
            clock.store(minute * 60_000, Relaxed);
            clocks.begin_body_wait();
            assert_eq!(clocks.overdue(minute * 60_000 + 250, &limits), None);
            clocks.note_body_bytes(10);
            clocks.end_body_wait();
        }
    }

    #[test]
    fn unread_streams_are_overdue_unless_one_progresses() {
        let limits = Limits::default();
        let (clocks, clock) = clocks(1);
        clocks.set_http2();
        clocks.begin_request(false);
        clocks.begin_request(false);
        clocks.begin_offer();
        clocks.begin_offer();
        clock.store(20_000, Relaxed);
        clocks.end_offer();
        clocks.begin_offer();
        assert_eq!(clocks.overdue(50_000, &limits), None);
        assert_eq!(clocks.overdue(50_001, &limits), Some("write"));
        clocks.end_offer();
        clocks.end_offer();
        assert_eq!(
            clocks.overdue(1_000_000, &limits),
            None,
            "handlers have no time limit"
        );
    }
}
