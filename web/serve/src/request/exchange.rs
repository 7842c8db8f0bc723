//! A request and its response, from head to end: what is noted of it, and where.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::{Response, Uri, Version};
use hyper::body::Incoming;

use crate::admission::Ticket;
use crate::clock;
use crate::operator::access_log::Record;
use crate::request::body::Body;
use crate::request::in_flight::Entry;
use crate::request::priority::PRIORITY;
use crate::request::upload;
use crate::server::shared::Entered;

/// A request and its response, from head to end; its drop is the end.
pub(crate) struct Exchange {
    pub(crate) entered: Arc<Entered>,
    ticket: Option<Ticket>,
    /// Its place in the order of sending, of HTTP/2.
    pub(crate) turn: u64,
    /// A rule has said its level.
    rule: bool,
    pub(crate) entry: Arc<Entry>,
    pub(crate) version: Version,
    /// 0: the client went before there was one.
    pub(crate) status: u16,
    pub(crate) bytes: u64,
    waited: u64,
    /// The body of a request of HTTP/2 that nobody reads.
    unread: Option<Incoming>,
}

impl Exchange {
    pub(crate) fn new(
        entered: Arc<Entered>,
        ticket: Option<Ticket>,
        entry: Arc<Entry>,
        turn: u64,
        rule: bool,
        version: Version,
    ) -> Exchange {
        Exchange {
            entered,
            ticket,
            turn,
            rule,
            entry,
            version,
            status: 0,
            bytes: 0,
            waited: 0,
            unread: None,
        }
    }

    /// Nobody reads the body of the request. Of HTTP/2 it is kept until the answer has been given,
    /// since without it the stream would be reset; HTTP/1 has to know at once.
    pub(crate) fn leaves(&mut self, body: Incoming) {
        if self.version >= Version::HTTP_2 {
            self.unread = Some(body);
        } else {
            upload::leave(body, &self.entered.conn);
        }
    }

    /// It begins.
    pub(crate) fn begin(&mut self) {
        if let Some(ticket) = &mut self.ticket {
            let now = clock::nanos();
            self.entered.shared.gates.begin(ticket, now);
            self.waited = now.saturating_sub(self.entry.since);
        }
        // The operator may have changed it while the request waited.
        if let (Some(id), Some(level)) = (upshift::get_cid(), upshift::current_level())
            && self.ticket.is_some()
            && level != self.entry.level()
        {
            let _ = upshift::reprio(id, self.entry.level());
        }
    }

    /// The service may know better how urgent its response is (RFC 9218, section 8).
    pub(crate) fn follow(&self, response: &Response<Body>) {
        let Some(field) = response.headers().get(&PRIORITY) else {
            return;
        };
        let Ok(field) = field.to_str() else { return };
        let urgency = self.entry.urgency().merged(field);
        self.entry.asks(urgency, urgency.level());
        if !self.rule {
            let Entered { shared, conn, .. } = &*self.entered;
            let mine = |one: &Entry| std::ptr::eq(one, &*self.entry);
            conn.in_flight
                .reprio(&shared.runtime, |one| mine(one).then(|| urgency.level()));
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let Entered { shared, conn, .. } = &*self.entered;
        if let Some(body) = self.unread.take() {
            upload::leave(body, conn);
        }
        if let Some(ticket) = self.ticket.take() {
            shared.gates.end(ticket);
        }
        conn.in_flight.leave(&self.entry);
        conn.end_request();
        if self.version >= Version::HTTP_2 {
            conn.sending.leave(&self.entry);
        }
        let took = Duration::from_nanos(clock::nanos().saturating_sub(self.entry.since));
        let level = self.entry.level();
        shared.metrics.request(level, self.status, self.bytes, took);
        if let Some(log) = &shared.log {
            log.push(Record {
                at: SystemTime::now(),
                peer: conn.peer,
                method: self.entry.facts.method.clone(),
                host: self.entry.facts.host().map(Into::into),
                path: path_of(&self.entry.facts.uri),
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

/// Path and query, or what is there instead of them: `*`, or the host of CONNECT.
fn path_of(uri: &Uri) -> Box<str> {
    match uri.path_and_query() {
        Some(path) => path.as_str().into(),
        None => uri.to_string().into(),
    }
}
