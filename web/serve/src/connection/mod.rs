//! What is known of a connection, and for how long it has waited.
//!
//! No timer is armed per request: a connection notes what it waits for and since when, in
//! relaxed atomics and in the time of a coarse clock that one coroutine advances
//! ([`crate::server::sweep`]); the same coroutine looks at all connections four times a second and ends those
//! that have waited too long. So a time-out is at most a quarter of a second late, and costs the hot
//! path a load and a store.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use upshift::CoroutineId;
use upshift::net::SendQueue;

use crate::config::Limits;
use crate::connection::client::{Connection, Tls};
use crate::connection::direct::Direct;
use crate::connection::sending::Sending;
use crate::connection::streams::Streams;
use crate::request::in_flight::InFlight;

pub(crate) mod client;
pub(crate) mod conversation;
pub(crate) mod direct;
mod frames;
pub(crate) mod heads;
pub(crate) mod lend;
pub(crate) mod sending;
mod streams;
mod watched;

/// Below so many bytes per second a body is taken for an attack.
const SLOWEST_BODY: u128 = 1024;

/// One connection. Times are ms of the coarse clock; 0 is "not waiting".
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) peer: SocketAddr,
    pub(crate) coroutine: OnceLock<CoroutineId>,
    /// After the handshake.
    pub(crate) tls: OnceLock<Tls>,
    clock: Arc<AtomicU64>,
    two: AtomicBool,
    asked: AtomicBool,
    active: AtomicU32,
    /// A head has begun, or the connection has just been accepted.
    head_since: AtomicU64,
    idle_since: AtomicU64,
    write_since: AtomicU64,
    /// Request bodies that have been waited for and are not over; what follows is about all of them.
    bodies: AtomicU32,
    body_waits: AtomicU64,
    /// Waited for bodies before, in ms: handlers may take their time between two parts.
    body_waited: AtomicU64,
    body_bytes: AtomicU64,
    /// Response bodies of HTTP/2, the next part of which the client has to make room for.
    untaken: AtomicU32,
    /// Such a body came to wait, or went on.
    taken_at: AtomicU64,
    /// The send queue of the socket.
    pub(crate) queue: OnceLock<SendQueue>,
    /// Its length at the last look of [`note_progress`](Conn::note_progress).
    queued: AtomicUsize,
    /// The last write waits for the socket.
    full: AtomicBool,
    /// Set if the request under way, of HTTP/1, is answered even to a client that has closed its
    /// sending half.
    is_answered: AtomicBool,
    /// Set if the body of the last request, of HTTP/1, has not been read to its end.
    unread: AtomicBool,
    pub(crate) in_flight: InFlight,
    /// Of HTTP/2.
    pub(crate) streams: Streams,
    pub(crate) sending: Sending,
    /// Of HTTP/1 without TLS.
    pub(crate) direct: Direct,
}

impl Conn {
    pub(crate) fn new(peer: SocketAddr, clock: Arc<AtomicU64>) -> Conn {
        let now = clock.load(Relaxed);
        Conn {
            peer,
            coroutine: OnceLock::new(),
            tls: OnceLock::new(),
            clock,
            two: AtomicBool::new(false),
            asked: AtomicBool::new(false),
            active: AtomicU32::new(0),
            head_since: AtomicU64::new(now),
            idle_since: AtomicU64::new(0),
            write_since: AtomicU64::new(0),
            bodies: AtomicU32::new(0),
            body_waits: AtomicU64::new(0),
            body_waited: AtomicU64::new(0),
            body_bytes: AtomicU64::new(0),
            untaken: AtomicU32::new(0),
            taken_at: AtomicU64::new(0),
            queue: OnceLock::new(),
            queued: AtomicUsize::new(0),
            full: AtomicBool::new(false),
            is_answered: AtomicBool::new(false),
            unread: AtomicBool::new(false),
            in_flight: InFlight::default(),
            streams: Streams::default(),
            sending: Sending::default(),
            direct: Direct::default(),
        }
    }

    fn now(&self) -> u64 {
        self.clock.load(Relaxed)
    }

    /// Ends the time for the TLS handshake, and begins that for the first head.
    pub(crate) fn shook_hands(&self) {
        self.head_since.store(self.now(), Relaxed);
    }

    /// The connection speaks HTTP/2: what arrives between requests is no head.
    pub(crate) fn speaks_two(&self) {
        self.two.store(true, Relaxed);
        self.head_since.store(0, Relaxed);
        self.idle_since.store(self.now(), Relaxed);
    }

    pub(crate) fn is_two(&self) -> bool {
        self.two.load(Relaxed)
    }

    /// Says whether the request that has just begun, of HTTP/1, is answered even if its client has
    /// closed its sending half: files are; a service is not asked in vain.
    pub(crate) fn answers_half_closed(&self, answers: bool) {
        self.is_answered.store(answers, Relaxed);
        self.unread.store(false, Relaxed);
    }

    /// Is a request under way that is answered even to a client that has closed its sending half?
    pub(crate) fn is_answered(&self) -> bool {
        self.is_answered.load(Relaxed) && self.active.load(Relaxed) != 0
    }

    /// The body of a request of HTTP/1 has been left before its end.
    pub(crate) fn leaves_unread(&self) {
        self.unread.store(true, Relaxed);
    }

    /// May the client still be sending a body that is not read, or a head that was refused?
    pub(crate) fn is_sending(&self) -> bool {
        self.unread.load(Relaxed)
            || self.active.load(Relaxed) == 0 && self.head_since.load(Relaxed) != 0
    }

    /// Is a head expected, or on its way?
    pub(crate) fn is_between(&self) -> bool {
        self.active.load(Relaxed) == 0
    }

    /// What a service may know of it.
    pub(crate) fn facts(&self) -> Connection {
        Connection {
            peer: self.peer,
            tls: self.tls.get().cloned(),
        }
    }

    /// The name under which a client that speaks TLS asked for the server (SNI).
    pub(crate) fn server_name(&self) -> Option<&str> {
        self.tls.get()?.server_name.as_deref()
    }

    /// Can it be closed without a request that may be on its way? Of HTTP/1 once its client has asked, and then for nothing for so long.
    pub(crate) fn has_rested(&self, time: Duration) -> bool {
        let since = self.idle_since.load(Relaxed);
        let rested = u128::from(self.now().saturating_sub(since)) >= time.as_millis();
        self.asked.load(Relaxed) && (self.two.load(Relaxed) || since != 0 && rested)
    }

    /// Has a part of a request come, and none is answered? Of the first one hyper knows by itself.
    pub(crate) fn is_within_head(&self) -> bool {
        self.asked.load(Relaxed)
            && self.active.load(Relaxed) == 0
            && self.head_since.load(Relaxed) != 0
    }

    pub(crate) fn begin_request(&self) {
        self.asked.store(true, Relaxed);
        self.active.fetch_add(1, Relaxed);
        self.head_since.store(0, Relaxed);
        self.idle_since.store(0, Relaxed);
    }

    pub(crate) fn end_request(&self) {
        if self.active.fetch_sub(1, Relaxed) == 1 {
            self.idle_since.store(self.now(), Relaxed);
        }
    }

    pub(crate) fn begin_body(&self) {
        if self.bodies.fetch_add(1, Relaxed) == 0 {
            self.body_waited.store(0, Relaxed);
            self.body_bytes.store(0, Relaxed);
        }
    }

    pub(crate) fn end_body(&self) {
        if self.bodies.fetch_sub(1, Relaxed) == 1 {
            self.body_waits.store(0, Relaxed);
        }
    }

    pub(crate) fn waits_for_body(&self) {
        if self.body_waits.load(Relaxed) == 0 {
            self.body_waits.store(self.now(), Relaxed);
        }
    }

    pub(crate) fn has_body(&self) {
        let since = self.body_waits.swap(0, Relaxed);
        if since != 0 {
            let waited = self.now().saturating_sub(since);
            self.body_waited.fetch_add(waited, Relaxed);
        }
    }

    /// Renews the wait for a body when bytes arrive: a record of TLS or a frame of HTTP/2 reaches
    /// its reader only as a whole, and may take long.
    pub(crate) fn arrived(&self, bytes: u64) {
        if self.bodies.load(Relaxed) == 0 {
            return;
        }
        self.body_bytes.fetch_add(bytes, Relaxed);
        let (since, now) = (self.body_waits.load(Relaxed), self.now());
        if since != 0 && renew(&self.body_waits, since, now) {
            let waited = now.saturating_sub(since);
            self.body_waited.fetch_add(waited, Relaxed);
        }
    }

    /// A part of an HTTP/2 response is there, and waits for the client.
    pub(crate) fn offers(&self) {
        self.untaken.fetch_add(1, Relaxed);
        self.taken_at.store(self.now(), Relaxed);
    }

    /// The client has made room for it, or its stream is over.
    pub(crate) fn offers_no_more(&self) {
        self.untaken.fetch_sub(1, Relaxed);
        self.taken_at.store(self.now(), Relaxed);
    }

    /// Bytes have come. True: a head begins.
    pub(crate) fn received(&self) -> bool {
        if self.active.load(Relaxed) == 0
            && !self.two.load(Relaxed)
            && self.head_since.load(Relaxed) == 0
        {
            self.head_since.store(self.now(), Relaxed);
            self.idle_since.store(0, Relaxed);
            return true;
        }
        false
    }

    pub(crate) fn wrote(&self, pending: bool) {
        self.full.store(pending, Relaxed);
        let since = self.write_since.load(Relaxed);
        if pending && since == 0 {
            self.write_since.store(self.now(), Relaxed);
        } else if !pending && since != 0 {
            self.write_since.store(0, Relaxed);
        }
    }

    /// Returns how many sent bytes the client has not taken; `None` if that is not known.
    pub(crate) fn unsent(&self) -> Option<usize> {
        self.queue.get()?.bytes()
    }

    /// Renews the clocks of writing while the client takes bytes. A write of the server waits much
    /// longer: until a third of the socket's buffer is free.
    pub(crate) fn note_progress(&self, now: u64) {
        let writes = self.write_since.load(Relaxed);
        let offers = self.untaken.load(Relaxed) != 0;
        if writes == 0 && !offers {
            return;
        }
        let Some(queued) = self.unsent() else { return };
        let takes = self.queued.swap(queued, Relaxed) != queued;
        // With an empty queue the write waits for this process alone.
        if writes != 0 && (takes || queued == 0) {
            renew(&self.write_since, writes, now);
        }
        if offers && takes {
            self.taken_at.store(now, Relaxed);
        }
    }

    /// Has the connection polled.
    pub(crate) fn wake(&self) {
        if let Some(id) = self.coroutine.get() {
            // It may be over.
            let _ = upshift::wake(*id);
        }
    }

    /// It has been polled and waits. True: poll it again, for it stopped to hand out a request.
    pub(crate) fn polled(&self) -> bool {
        if !self.two.load(Relaxed) {
            return false;
        }
        self.sending.polled(!self.full.load(Relaxed));
        self.streams.stopped.swap(false, Relaxed)
    }

    /// What has lasted too long, if something has.
    pub(crate) fn overdue(&self, now: u64, limits: &Limits) -> Option<&'static str> {
        let over = |since: &AtomicU64, limit: Duration| {
            let since = since.load(Relaxed);
            since != 0
                && !limit.is_zero()
                && u128::from(now.saturating_sub(since)) > limit.as_millis()
        };
        if over(&self.head_since, limits.header_timeout) {
            return Some("header");
        }
        if over(&self.idle_since, limits.idle_timeout) {
            return Some("idle");
        }
        if over(&self.write_since, limits.write_timeout) {
            return Some("write");
        }
        // One stream that moves is enough: they share the connection in turn.
        if self.untaken.load(Relaxed) != 0 && over(&self.taken_at, limits.write_timeout) {
            return Some("write");
        }
        if over(&self.body_waits, limits.body_timeout) {
            return Some("body");
        }
        // A trickle: the first bytes may take as long as a pause, the rest has to keep up.
        let waits = self.body_waits.load(Relaxed);
        if waits != 0 && !limits.body_timeout.is_zero() {
            let waited = self.body_waited.load(Relaxed) + now.saturating_sub(waits);
            let late = u128::from(waited).saturating_sub(limits.body_timeout.as_millis());
            if u128::from(self.body_bytes.load(Relaxed)) < late * SLOWEST_BODY / 1000 {
                return Some("body");
            }
        }
        None
    }
}

/// Starts a clock anew that runs since then; false: it has been stopped or renewed meanwhile.
fn renew(clock: &AtomicU64, since: u64, now: u64) -> bool {
    let renewed = clock.compare_exchange(since, now, Relaxed, Relaxed);
    renewed.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conn(now: u64) -> (Conn, Arc<AtomicU64>) {
        let clock = Arc::new(AtomicU64::new(now));
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        (Conn::new(peer, clock.clone()), clock)
    }

    #[test]
    fn each_wait_has_its_limit() {
        let limits = Limits::default();
        let (conn, clock) = conn(1);
        assert_eq!(conn.overdue(10_000, &limits), None);
        assert_eq!(conn.overdue(10_002, &limits), Some("header"));
        conn.begin_request();
        assert_eq!(
            conn.overdue(1_000_000, &limits),
            None,
            "handlers may take their time"
        );
        clock.store(1000, Relaxed);
        conn.waits_for_body();
        assert_eq!(conn.overdue(31_001, &limits), Some("body"));
        conn.arrived(10);
        conn.has_body();
        conn.wrote(true);
        assert_eq!(conn.overdue(31_001, &limits), Some("write"));
        conn.wrote(false);
        conn.end_request();
        assert_eq!(conn.overdue(76_001, &limits), Some("idle"));
        conn.received();
        assert_eq!(conn.overdue(11_001, &limits), Some("header"));
    }

    #[test]
    fn a_trickling_body_is_overdue_however_often_it_drips() {
        let limits = Limits::default();
        let (conn, clock) = conn(1);
        conn.begin_request();
        conn.begin_body();
        for second in 1..60u64 {
            conn.waits_for_body();
            clock.store(second * 1000, Relaxed);
            conn.arrived(1);
            conn.has_body();
        }
        conn.waits_for_body();
        assert_eq!(conn.overdue(60_000, &limits), Some("body"));
        conn.arrived(1 << 20);
        conn.has_body();
        conn.waits_for_body();
        assert_eq!(conn.overdue(60_000, &limits), None);
    }

    #[test]
    fn small_bodies_beside_a_long_response_are_no_trickle() {
        let limits = Limits::default();
        let (conn, clock) = conn(1);
        // A response without end on another stream.
        conn.begin_request();
        for minute in 1..60u64 {
            clock.store(minute * 60_000, Relaxed);
            conn.begin_request();
            conn.begin_body();
            conn.waits_for_body();
            assert_eq!(conn.overdue(minute * 60_000 + 250, &limits), None);
            conn.arrived(10);
            conn.has_body();
            conn.end_body();
            conn.end_request();
        }
    }

    #[test]
    fn a_handler_that_reads_slowly_is_not_blamed_on_the_client() {
        let limits = Limits::default();
        let (conn, clock) = conn(1);
        conn.begin_request();
        conn.begin_body();
        for minute in 1..60u64 {
            clock.store(minute * 60_000, Relaxed);
            conn.waits_for_body();
            assert_eq!(conn.overdue(minute * 60_000 + 250, &limits), None);
            conn.arrived(10);
            conn.has_body();
        }
    }

    #[test]
    fn streams_that_are_not_read_are_overdue_unless_one_moves() {
        let limits = Limits::default();
        let (conn, clock) = conn(1);
        conn.speaks_two();
        conn.begin_request();
        conn.begin_request();
        conn.offers();
        conn.offers();
        clock.store(20_000, Relaxed);
        conn.offers_no_more();
        conn.offers();
        assert_eq!(conn.overdue(50_000, &limits), None);
        assert_eq!(conn.overdue(50_001, &limits), Some("write"));
        conn.offers_no_more();
        conn.offers_no_more();
        assert_eq!(
            conn.overdue(1_000_000, &limits),
            None,
            "handlers may take their time"
        );
    }
}
