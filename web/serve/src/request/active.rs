//! The state of a request in progress.

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

/// A request from its head to the end of its response. Dropping this value ends the request.
pub(crate) struct ActiveRequest {
    pub(super) conn: Arc<Conn>,
    pub(super) entry: Arc<Entry>,
    pub(super) version: Version,
    pub(super) stage: Stage,
    /// Guard that moves the coroutine to the level of the request, and back.
    pub(super) level: RequestLevel,
    /// Ticket for the gate of its level, if the request must pass a gate.
    pub(super) ticket: Option<Ticket>,
    /// Set if a rule has set the level.
    pub(super) is_ruled: bool,
    /// Position among the streams of an HTTP/2 connection.
    pub(super) position: u64,
    /// Time between arrival and begin, in ns.
    waited: u64,
    /// 0 if the client left before there was a response.
    status: u16,
    pub(super) bytes: u64,
    /// Unread body of an HTTP/2 request, which is dropped after the response.
    unread: Option<Incoming>,
    pub(super) body: Body,
    /// Remainder of a body piece that was too large to be handed out at once.
    pub(super) rest: Bytes,
    /// Set while handed-out bytes wait for the client. Used only in HTTP/2; in HTTP/1 a pending
    /// write to the socket shows this.
    offering: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Received,
    /// The coroutine that runs the request is known.
    Queued,
    Begun,
}

impl ActiveRequest {
    /// Adds a request to its connection. With `at_receive_level` the request is answered at the
    /// level of receiving, otherwise at the level of `entry`.
    pub(super) fn new(
        conn: Arc<Conn>,
        entry: Arc<Entry>,
        version: Version,
        ticket: Option<Ticket>,
        at_receive_level: bool,
        is_ruled: bool,
    ) -> Box<ActiveRequest> {
        conn.in_flight.insert(&entry);
        let is_http2 = version >= Version::HTTP_2;
        let position = if is_http2 {
            conn.sending.next_position()
        } else {
            0
        };
        let level = if at_receive_level {
            RequestLevel::for_receiving(!is_http2)
        } else {
            RequestLevel::new(entry.level(), !is_http2)
        };
        Box::new(ActiveRequest {
            conn,
            entry,
            version,
            stage: Stage::Received,
            level,
            ticket,
            is_ruled,
            position,
            waited: 0,
            status: 0,
            bytes: 0,
            unread: None,
            body: Body::empty(),
            rest: Bytes::new(),
            offering: false,
        })
    }

    #[inline]
    pub(super) fn is_http2(&self) -> bool {
        self.version >= Version::HTTP_2
    }

    /// Discards the body of the request. In HTTP/1 this happens at once; in HTTP/2 after the
    /// response, because dropping the body earlier would reset the stream.
    pub(super) fn discard_body(&mut self, body: Incoming) {
        if self.is_http2() {
            self.unread = Some(body);
        } else {
            request_body::discard(body, &self.conn);
        }
    }

    /// Waits for the turn of the request at its level, then begins it. Further calls return ready.
    pub(super) fn poll_begin(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.stage == Stage::Received {
            // From now on the operator can move the request to another level.
            self.entry.set_coroutine();
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

    /// Applies the priority of a response, because the service may know the urgency better than the
    /// client (RFC 9218, section 8).
    pub(super) fn apply_response(&mut self, response: &Response<Body>) {
        let status = response.status();
        self.status = status.as_u16();
        let is_tunnel = self.entry.facts.method == Method::CONNECT && status.is_success();
        if !self.is_http2() && (status == StatusCode::SWITCHING_PROTOCOLS || is_tunnel) {
            self.conn.clocks.begin_tunnel();
        }
        let Some(field) = response.headers().get(&PRIORITY) else {
            return;
        };
        let Ok(field) = field.to_str() else { return };
        let urgency = self.entry.urgency().merged(field);
        self.entry.set_urgency(urgency, urgency.level());
        if !self.is_ruled {
            let is_own = |other: &Entry| std::ptr::eq(other, &*self.entry);
            self.conn
                .in_flight
                .reprio(&self.conn.shared.runtime, |other| {
                    is_own(other).then(|| urgency.level())
                });
        }
    }

    #[inline]
    pub(super) fn set_offering(&mut self, offering: bool) {
        if !self.is_http2() || self.offering == offering {
            return;
        }
        self.offering = offering;
        if offering {
            self.conn.clocks.begin_offer();
        } else {
            self.conn.clocks.end_offer();
        }
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.set_offering(false);
        let (conn, entry) = (&self.conn, &self.entry);
        let shared = &conn.shared;
        if let Some(body) = self.unread.take() {
            request_body::discard(body, conn);
        }
        if let Some(ticket) = self.ticket.take() {
            shared.gates.end(ticket);
        }
        conn.in_flight.remove(entry);
        conn.clocks.end_request();
        if self.is_http2() {
            conn.sending.remove(entry);
        }
        let took = Duration::from_nanos(clock::nanos().saturating_sub(entry.since));
        let level = entry.level();
        shared
            .metrics
            .add_request(level, self.status, self.bytes, took);
        if let Some(log) = &shared.log {
            let field = |name: HeaderName| {
                let value = entry.facts.headers.get(name)?;
                Some(String::from_utf8_lossy(value.as_bytes()).into())
            };
            log.push(Record {
                ended_at: SystemTime::now(),
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

/// Returns path and query, or the target that replaces them: `*`, or the host of CONNECT.
fn path_of(uri: &Uri) -> Box<str> {
    match uri.path_and_query() {
        Some(path) => path.as_str().into(),
        None => uri.to_string().into(),
    }
}
