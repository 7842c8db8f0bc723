//! A request from its head to its end.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderValue};
use http::{HeaderMap, Method, Request, Response, Uri, Version};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::Service;
use upshift::Level;
use upshift::hyper::{LevelBody, LevelFuture};

use crate::access_log::Record;
use crate::admission::Ticket;
use crate::body::{Body, BoxError};
use crate::clock;
use crate::config::Endpoint;
use crate::connection::Conn;
use crate::in_flight::Entry;
use crate::priority::Urgency;
use crate::refusal::Refusal;
use crate::request_body::RequestBody;
use crate::rules::Facts;
use crate::shared::{Answering, Live, Shared};
use crate::{builtin, host, reply};

/// What is sent at once: a larger one would keep the coroutine, and the connection of HTTP/2, for too long.
const PIECE: usize = 64 * 1024;

/// What a connection serves.
pub(crate) struct Http {
    pub(crate) shared: Arc<Shared>,
    pub(crate) conn: Arc<Conn>,
}

impl Service<Request<Incoming>> for Http {
    type Response = Response<LevelBody<Counted>>;
    type Error = BoxError;
    type Future = UnderWay;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let live = self.shared.live();
        let now = clock::nanos();
        let version = request.version();
        let facts = self.facts(&live, &request);
        let endpoint = builtin::endpoint_of(&live, facts.uri.path());
        let site = self.site(&live, &request);
        // A refusal is the same for every client.
        let place_of_site = *site.as_ref().unwrap_or(&0);
        let rule = live.rule_for(place_of_site, &facts);
        let vital = matches!(endpoint, Some(Endpoint::Healthz | Endpoint::Metrics));
        let stream = (version >= Version::HTTP_2).then(|| self.conn.streams.take());
        let updated = stream.as_ref().and_then(|(_, updated)| *updated);
        let asked = updated.unwrap_or_else(|| Urgency::of(request.headers()));
        let urgency = live.granted(asked);
        let own = if vital {
            // Monitoring must get an answer when the server is overloaded.
            self.shared.receive
        } else {
            urgency.level()
        };
        let level = rule.unwrap_or(own);
        self.conn.begin_request();
        let gated = !(vital && rule.is_none());
        let admitted =
            site.and_then(|site| Ok((site, self.admit(&live, &request, level, now, gated)?)));
        let (site, ticket) = match admitted {
            Ok((site, ticket)) => (Ok(site), ticket),
            Err(refusal) => {
                let pages = &live.sites.get(place_of_site).pages;
                (Err(pages.dress(refusal.response(version))), None)
            }
        };
        let in_flight = &self.shared.in_flight;
        let (place, entry) = in_flight.enter(facts, (urgency, own), level, now);
        let listed = entry.clone();
        if let Some((number, _)) = stream {
            self.conn.streams.open(number, place, &entry);
        }
        let exchange = Exchange {
            shared: self.shared.clone(),
            conn: self.conn.clone(),
            ticket,
            place,
            turn: self.conn.sending.enter(),
            rule: rule.is_some(),
            entry,
            version,
            status: 0,
            bytes: 0,
            waited: 0,
        };
        // A refusal costs a level nothing: it is sent from where the request was received.
        let receives = site.is_err() || vital && rule.is_none();
        let answer = match site {
            Ok(site) => self.answer(&live, site, endpoint, request),
            Err(response) => Answer::Ready(Some(response)),
        };
        let exchanging = Exchanging {
            exchange: Some(exchange),
            answer,
            begun: false,
        };
        let returns = version < Version::HTTP_2;
        UnderWay {
            listed: Some(listed),
            inner: if receives {
                LevelFuture::of_receiving(exchanging, returns)
            } else {
                LevelFuture::new(exchanging, level, returns)
            },
        }
    }
}

impl Http {
    fn facts(&self, live: &Live, request: &Request<Incoming>) -> Facts {
        let mut headers = HeaderMap::new();
        for name in &live.named {
            for value in request.headers().get_all(name) {
                headers.append(name, value.clone());
            }
        }
        // HTTP/2 has no field for it.
        if !live.sites.is_one()
            && let Some(authority) = request.uri().authority()
            && let Ok(value) = HeaderValue::from_str(authority.as_str())
        {
            headers.entry(HOST).or_insert(value);
        }
        Facts {
            method: request.method().clone(),
            uri: request.uri().clone(),
            peer: self.conn.peer.ip(),
            headers,
        }
    }

    /// The site that a request is for.
    fn site(&self, live: &Live, request: &Request<Incoming>) -> Result<usize, Refusal> {
        let named = host::of(request.version(), request.uri(), request.headers());
        let host = named.ok_or(Refusal::NoHost)?;
        if live.sites.is_one() {
            return Ok(0);
        }
        let site = live.sites.find(host);
        match self.conn.server_name() {
            Some(server) if live.sites.is_misdirected(site, server) => Err(Refusal::Misdirected),
            _ => Ok(site),
        }
    }

    /// Limits, rates, gates.
    fn admit(
        &self,
        live: &Live,
        request: &Request<Incoming>,
        level: Level,
        now: u64,
        gated: bool,
    ) -> Result<Option<Ticket>, Refusal> {
        let limits = &live.config.limits;
        let length = request.headers().get(CONTENT_LENGTH);
        let length = length.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        if length.is_some_and(|length| length > limits.body_bytes) {
            return Err(Refusal::TooLarge);
        }
        if !gated {
            return Ok(None);
        }
        let peer = self.conn.peer.ip();
        if !self.shared.rates.take(peer, limits.request_rate, now) {
            self.shared.metrics.throttled.fetch_add(1, Relaxed);
            return Err(Refusal::TooOften);
        }
        let admission = &live.config.admission;
        let gates = &self.shared.gates;
        gates
            .admit(
                level,
                gates.counted(now),
                admission.max_wait,
                admission.in_flight,
            )
            .map(Some)
            .map_err(|_| Refusal::Overloaded)
    }

    fn answer(
        &self,
        live: &Arc<Live>,
        site: usize,
        endpoint: Option<Endpoint>,
        request: Request<Incoming>,
    ) -> Answer {
        if endpoint.is_some() && !matches!(*request.method(), Method::GET | Method::HEAD) {
            return Answer::Ready(Some(reply::only_get("this can only be read\n")));
        }
        if let Some(response) =
            endpoint.and_then(|endpoint| builtin::at_once(&self.shared, endpoint))
        {
            return Answer::Ready(Some(response));
        }
        match &self.shared.app {
            Some(app) if endpoint.is_none() => {
                let limit = live.config.limits.body_bytes;
                let conn = self.conn.clone();
                let mut request = request;
                request.extensions_mut().insert(conn.facts());
                Answer::Later(app(request.map(|body| RequestBody::new(body, conn, limit))))
            }
            _ => {
                let (parts, _) = request.into_parts();
                Answer::Later(Box::pin(builtin::respond(live.clone(), site, parts)))
            }
        }
    }
}

/// A request under way: the coroutine that polls it first is the one to be moved, also while it
/// queues at its level.
pub(crate) struct UnderWay {
    listed: Option<Arc<Entry>>,
    inner: LevelFuture<Exchanging>,
}

impl Future for UnderWay {
    type Output = Result<Response<LevelBody<Counted>>, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(listed) = self.listed.take() {
            listed.begun();
        }
        Pin::new(&mut self.inner).poll(cx)
    }
}

enum Answer {
    Ready(Option<Response<Body>>),
    Later(Answering),
}

/// A request being answered.
pub(crate) struct Exchanging {
    exchange: Option<Exchange>,
    answer: Answer,
    begun: bool,
}

impl Future for Exchanging {
    type Output = Result<Response<Counted>, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if !this.begun {
            this.begun = true;
            if let Some(exchange) = &mut this.exchange {
                exchange.begin();
            }
        }
        let response = match &mut this.answer {
            Answer::Ready(response) => response.take(),
            Answer::Later(answering) => Some(ready!(answering.as_mut().poll(cx))),
        };
        let (Some(mut response), Some(mut exchange)) = (response, this.exchange.take()) else {
            return Poll::Ready(Err("a response was polled after its completion".into()));
        };
        if exchange.entry.facts.method == Method::HEAD {
            only_head(&mut response);
        }
        exchange.status = response.status().as_u16();
        exchange.follow(&response);
        if exchange.version < Version::HTTP_2 && exchange.conn.tls.get().is_none() {
            response.body_mut().go_past(&exchange.conn);
        }
        response.body_mut().read_piece();
        if exchange.version < Version::HTTP_2 && exchange.shared.is_leaving() {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(CONNECTION, close);
        }
        Poll::Ready(Ok(response.map(|inner| Counted::new(inner, exchange))))
    }
}

/// Takes the body away, whose length stays. Of HTTP/2 hyper leaves that to us.
fn only_head(response: &mut Response<Body>) {
    let length = response.body().size_hint().exact();
    if let Some(length) = length.filter(|length| *length != 0) {
        let fields = response.headers_mut();
        fields
            .entry(CONTENT_LENGTH)
            .or_insert_with(|| length.into());
    }
    *response.body_mut() = Body::empty();
}

/// A request and its response, from head to end; its drop is the end.
struct Exchange {
    shared: Arc<Shared>,
    conn: Arc<Conn>,
    ticket: Option<Ticket>,
    place: usize,
    /// Its place in the order of sending.
    turn: u64,
    /// A rule has said its level.
    rule: bool,
    entry: Arc<Entry>,
    version: Version,
    /// 0: the client went before there was one.
    status: u16,
    bytes: u64,
    waited: u64,
}

impl Exchange {
    fn begin(&mut self) {
        if let Some(ticket) = &mut self.ticket {
            let now = clock::nanos();
            ticket.begin(now);
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
    fn follow(&self, response: &Response<Body>) {
        let Some(field) = response.headers().get("priority") else {
            return;
        };
        let Ok(field) = field.to_str() else { return };
        let urgency = self.entry.urgency().merged(field);
        self.entry.asks(urgency, urgency.level());
        if !self.rule {
            let in_flight = &self.shared.in_flight;
            let level = urgency.level();
            in_flight.reprio_one(&self.shared.runtime, self.place, &self.entry, level);
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.shared.in_flight.leave(self.place);
        self.conn.end_request();
        if self.version >= Version::HTTP_2 {
            self.conn.streams.close(&self.entry);
            self.conn.sending.leave(&self.entry);
        }
        let took = Duration::from_nanos(clock::nanos().saturating_sub(self.entry.since));
        let level = self.entry.level();
        self.shared
            .metrics
            .request(level, self.status, self.bytes, took);
        if let Some(log) = &self.shared.log {
            log.push(Record {
                at: SystemTime::now(),
                peer: self.conn.peer,
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

/// The body of a response, whose bytes are counted; its drop is the end of the request.
pub(crate) struct Counted {
    inner: Body,
    /// Of a piece that was too large, what has not been handed out.
    rest: Bytes,
    exchange: Exchange,
    /// The client has to take what was handed out. Of HTTP/1 the socket tells.
    offers: bool,
}

impl Counted {
    fn new(inner: Body, exchange: Exchange) -> Counted {
        let mut this = Counted {
            inner,
            rest: Bytes::new(),
            exchange,
            offers: false,
        };
        this.offer(true);
        this
    }

    /// What comes next, at most a piece of it.
    #[inline]
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if !self.rest.is_empty() {
            let piece = self.rest.split_to(self.rest.len().min(PIECE));
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        Poll::Ready(match frame {
            Some(Ok(frame)) if frame.data_ref().is_some_and(|data| data.len() > PIECE) => {
                let mut data = frame.into_data().unwrap_or_default();
                self.rest = data.split_off(PIECE);
                Some(Ok(Frame::data(data)))
            }
            frame => frame,
        })
    }

    #[inline]
    fn offer(&mut self, offers: bool) {
        if self.exchange.version < Version::HTTP_2 || self.offers == offers {
            return;
        }
        self.offers = offers;
        if offers {
            self.exchange.conn.offers();
        } else {
            self.exchange.conn.offers_no_more();
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.offer(false);
    }
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = BoxError;

    #[inline]
    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.offer(false);
        let this = &mut *self;
        let two = this.exchange.version >= Version::HTTP_2;
        if two {
            let Exchange {
                conn, entry, turn, ..
            } = &mut this.exchange;
            if conn.sending.poll_turn(cx, entry, turn).is_pending() {
                // What was handed out may be stuck in streams that have no window, of which the library does not
                // tell the connection.
                conn.wake();
                return Poll::Pending;
            }
        }
        let more = !this.rest.is_empty() || !this.inner.is_at_hand();
        if more && upshift::task::poll_piece(cx).is_pending() {
            if two {
                let exchange = &this.exchange;
                let sending = &exchange.conn.sending;
                sending.keep_turn(cx, &exchange.entry, exchange.turn);
            }
            return Poll::Pending;
        }
        let frame = ready!(this.poll_piece(cx));
        if two && let Some(Ok(frame)) = &frame {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            if this.exchange.conn.sending.handed(bytes) {
                this.exchange.conn.wake();
            }
        }
        self.offer(frame.is_some());
        if let Some(Ok(frame)) = &frame {
            self.exchange.bytes += frame.data_ref().map_or(0, Bytes::len) as u64;
        }
        Poll::Ready(frame)
    }

    #[inline]
    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.inner.is_end_stream()
    }

    #[inline]
    fn size_hint(&self) -> SizeHint {
        let (inner, rest) = (self.inner.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + rest);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}
