//! The state of a request that is under way, and its end.

use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{HeaderName, REFERER, USER_AGENT};
use http::{Method, Response, StatusCode, Uri, Version};
use hyper::body::Incoming;
use upshift::hyper::RequestLevel;

use crate::admission::Ticket;
use crate::clock;
use crate::connection::conn::Conn;
use crate::operator::access_log::Record;
use crate::request::body::Body;
use crate::request::in_flight::Entry;
use crate::request::priority::PRIORITY;
use crate::request::request_body;

/// A request from its head to the end of its response; its drop is the end.
pub(crate) struct Request {
    pub(super) conn: Arc<Conn>,
    pub(super) entry: Arc<Entry>,
    pub(super) version: Version,
    pub(super) stage: Stage,
    /// Guard that moves the coroutine to the level of the request, and back.
    pub(super) level: RequestLevel,
    /// Ticket of the gate of its level, if the request has to pass one.
    pub(super) ticket: Option<Ticket>,
    /// Set if a rule has set the level.
    pub(super) is_ruled: bool,
    /// Place in the order of sending, of HTTP/2.
    pub(super) turn: u64,
    /// Wait before the request began, in nanoseconds.
    waited: u64,
    /// Status of the response; 0 if the client left before there was one.
    status: u16,
    /// Number of bytes of the response body so far.
    pub(super) bytes: u64,
    /// Unread body of an HTTP/2 request.
    unread: Option<Incoming>,
    pub(super) body: Body,
    /// Part of a piece of the body that was too large to be handed out with it.
    pub(super) rest: Bytes,
    /// Set while the client has to take bytes that were handed out. In HTTP/1 the socket tells
    /// this.
    offers: bool,
}

/// The stage of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Received,
    /// The coroutine that runs the request is known.
    Queued,
    Begun,
}

impl Request {
    /// Enters a request at the level of `entry`. With `receives` the request is answered at the
    /// level of receiving, and costs its own level nothing.
    pub(super) fn new(
        conn: Arc<Conn>,
        entry: Arc<Entry>,
        version: Version,
        ticket: Option<Ticket>,
        receives: bool,
        is_ruled: bool,
    ) -> Box<Request> {
        conn.in_flight.enter(&entry);
        let is_two = version >= Version::HTTP_2;
        let turn = if is_two { conn.sending.enter() } else { 0 };
        let level = if receives {
            RequestLevel::of_receiving(!is_two)
        } else {
            RequestLevel::new(entry.level(), !is_two)
        };
        Box::new(Request {
            conn,
            entry,
            version,
            stage: Stage::Received,
            level,
            ticket,
            is_ruled,
            turn,
            waited: 0,
            status: 0,
            bytes: 0,
            unread: None,
            body: Body::empty(),
            rest: Bytes::new(),
            offers: false,
        })
    }

    #[inline]
    pub(super) fn is_two(&self) -> bool {
        self.version >= Version::HTTP_2
    }

    /// Leaves the body of the request unread. In HTTP/2 the body is kept until the answer was
    /// given, since the stream would be reset without it; HTTP/1 has to know at once.
    pub(super) fn leaves(&mut self, body: Incoming) {
        if self.is_two() {
            self.unread = Some(body);
        } else {
            request_body::leave(body, &self.conn);
        }
    }

    /// Begins the request in its turn; ready from then on.
    pub(super) fn poll_begin(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.stage == Stage::Received {
            // From now on the request can be moved to another level, also while it queues.
            self.entry.begun();
            self.stage = Stage::Queued;
        }
        if self.stage == Stage::Queued {
            ready!(self.level.poll_begin(cx));
            self.stage = Stage::Begun;
            self.begin();
        }
        Poll::Ready(())
    }

    fn begin(&mut self) {
        let Some(ticket) = &mut self.ticket else {
            return;
        };
        let now = clock::nanos();
        self.conn.shared.gates.begin(ticket, now);
        self.waited = now.saturating_sub(self.entry.since);
        // The operator may have changed the level while the request waited.
        if let (Some(id), Some(level)) = (upshift::get_cid(), upshift::current_level())
            && level != self.entry.level()
        {
            let _ = upshift::reprio(id, self.entry.level());
        }
    }

    /// Applies the priority of a response: the service may know the urgency better (RFC 9218,
    /// section 8).
    pub(super) fn follow(&mut self, response: &Response<Body>) {
        let status = response.status();
        self.status = status.as_u16();
        let is_tunnel = self.entry.facts.method == Method::CONNECT && status.is_success();
        if !self.is_two() && (status == StatusCode::SWITCHING_PROTOCOLS || is_tunnel) {
            self.conn.clocks.becomes_a_tunnel();
        }
        let Some(field) = response.headers().get(&PRIORITY) else {
            return;
        };
        let Ok(field) = field.to_str() else { return };
        let urgency = self.entry.urgency().merged(field);
        self.entry.asks(urgency, urgency.level());
        if !self.is_ruled {
            let mine = |one: &Entry| std::ptr::eq(one, &*self.entry);
            self.conn
                .in_flight
                .reprio(&self.conn.shared.runtime, |one| {
                    mine(one).then(|| urgency.level())
                });
        }
    }

    /// Notes whether the client has to make room for bytes that are handed out.
    #[inline]
    pub(super) fn offer(&mut self, offers: bool) {
        if !self.is_two() || self.offers == offers {
            return;
        }
        self.offers = offers;
        if offers {
            self.conn.clocks.offers();
        } else {
            self.conn.clocks.offers_no_more();
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.offer(false);
        let (conn, entry) = (&self.conn, &self.entry);
        let shared = &conn.shared;
        if let Some(body) = self.unread.take() {
            request_body::leave(body, conn);
        }
        if let Some(ticket) = self.ticket.take() {
            shared.gates.end(ticket);
        }
        conn.in_flight.leave(entry);
        conn.clocks.end_request();
        if self.is_two() {
            conn.sending.leave(entry);
        }
        let took = Duration::from_nanos(clock::nanos().saturating_sub(entry.since));
        let level = entry.level();
        shared.metrics.request(level, self.status, self.bytes, took);
        if let Some(log) = &shared.log {
            let field = |name: HeaderName| {
                let value = entry.facts.headers.get(name)?;
                Some(String::from_utf8_lossy(value.as_bytes()).into())
            };
            log.push(Record {
                at: SystemTime::now(),
                peer: conn.peer,
                method: entry.facts.method.clone(),
                host: entry.facts.host().map(Into::into),
                path: path_of(&entry.facts.uri),
                referer: field(REFERER),
                user_agent: field(USER_AGENT),
                version: self.version,
                status: if self.status == 0 { 499 } else { self.status },
                bytes: self.bytes,
                level: level.get(),
                waited: Duration::from_nanos(self.waited),
                took,
            });
        }
    }
}

/// Returns path and query, or the text in their place: `*`, or the host of CONNECT.
fn path_of(uri: &Uri) -> Box<str> {
    match uri.path_and_query() {
        Some(path) => path.as_str().into(),
        None => uri.to_string().into(),
    }
}
