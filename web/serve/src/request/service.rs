//! The service of a connection: level, admission and answer of each request.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use http::header::{CONTENT_LENGTH, HOST, HeaderValue, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, Version};
use hyper::body::Incoming;
use hyper::service::Service;
use upshift::Level;

use crate::admission::Ticket;
use crate::clock;
use crate::config::Endpoint;
use crate::connection::conn::Conn;
use crate::request::answering::{Answer, Answering};
use crate::request::body::BoxError;
use crate::request::in_flight::Entry;
use crate::request::priority::Urgency;
use crate::request::refusal::Refusal;
use crate::request::request_body::RequestBody;
use crate::request::rules::Facts;
use crate::request::under_way::Request as UnderWay;
use crate::request::{builtin, host, reply};
use crate::server::shared::{App, CachedSettings, Live};

/// The service of a connection.
pub(crate) struct Http {
    conn: Arc<Conn>,
    seen: RefCell<Arc<CachedSettings>>,
}

impl Service<Request<Incoming>> for Http {
    type Response = Response<Box<UnderWay>>;
    type Error = BoxError;
    type Future = Answering;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let conn = &self.conn;
        let shared = &conn.shared;
        let live = self.live();
        let now = clock::nanos();
        let version = request.version();
        let facts = self.facts(&live, &request);
        let endpoint = builtin::endpoint_of(&live, facts.uri.path());
        let site = self.site(&live, &request);
        // A refusal is the same for every client.
        let place_of_site = *site.as_ref().unwrap_or(&0);
        let rule = live.rule_for(place_of_site, &facts);
        let headers = live.sites.get(place_of_site).headers.clone();
        let moved = match endpoint {
            None => self.moved(&live, &request),
            Some(_) => None,
        };
        // Monitoring must get an answer when the server is overloaded.
        let is_vital = matches!(endpoint, Some(Endpoint::Healthz | Endpoint::Metrics));
        let (stream, updated) = if version >= Version::HTTP_2 {
            conn.streams.take()
        } else {
            (None, None)
        };
        let asked = updated.unwrap_or_else(|| Urgency::of(request.headers()));
        let urgency = live.granted(asked);
        let own = if is_vital {
            shared.receive
        } else {
            urgency.level()
        };
        let level = rule.unwrap_or(own);
        conn.clocks
            .begin_request(shared.app.is_none() || endpoint.is_some());
        let gate = match endpoint {
            _ if is_vital && rule.is_none() => Gate::Open,
            None if shared.app.is_some() && moved.is_none() => Gate::Waits,
            Some(Endpoint::Matrix) => Gate::Waits,
            _ => Gate::Counts,
        };
        let admitted =
            site.and_then(|site| Ok((site, self.admit(&live, &request, level, now, gate)?)));
        let (site, ticket) = match admitted {
            Ok((site, ticket)) => (Ok(site), ticket),
            Err(refusal) => {
                let pages = &live.sites.get(place_of_site).pages;
                (Err(pages.dress(refusal.response(version))), None)
            }
        };
        let entry = Entry::new(facts, stream, (urgency, own), level, now);
        // A refusal costs its level nothing: it is sent at the level of receiving.
        let receives = site.is_err() || gate == Gate::Open;
        let is_ruled = rule.is_some();
        let mut under_way = UnderWay::new(conn.clone(), entry, version, ticket, receives, is_ruled);
        let site = match (site, moved) {
            (Ok(_), Some(location)) => Err(reply::moved(&location)),
            (site, _) => site,
        };
        let answer = match (site, &shared.app) {
            (Ok(_), Some(app)) if endpoint.is_none() => self.ask(&live, app, request),
            (site, _) => {
                let (parts, body) = request.into_parts();
                under_way.leaves(body);
                match site {
                    Ok(site) => self.answer(&live, site, endpoint, parts, now),
                    Err(response) => Answer::Ready(Some(response)),
                }
            }
        };
        Answering::new(under_way, answer, headers)
    }
}

/// The kind of admission of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gate {
    /// Always admitted: monitoring.
    Open,
    /// Admitted unless too many requests are under way. Serving a file or a text in memory would
    /// end the wait that a refusal is meant to avoid.
    Counts,
    /// Admitted unless too many requests are under way or would wait for too long: requests that
    /// compute.
    Waits,
}

impl Http {
    pub(crate) fn new(conn: Arc<Conn>) -> Http {
        let seen = RefCell::new(CachedSettings::now(&conn.shared));
        Http { conn, seen }
    }

    /// Returns the current settings.
    #[inline]
    fn live(&self) -> Arc<CachedSettings> {
        let shared = &self.conn.shared;
        let mut seen = self.seen.borrow_mut();
        if !seen.is_current(shared) {
            *seen = CachedSettings::now(shared);
        }
        seen.clone()
    }

    fn facts(&self, live: &Live, request: &Request<Incoming>) -> Facts {
        let mut headers = HeaderMap::new();
        for name in &live.named {
            for value in request.headers().get_all(name) {
                headers.append(name, value.clone());
            }
        }
        // HTTP/2 has no header field for the host.
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

    /// Returns the site that serves a request.
    fn site(&self, live: &Live, request: &Request<Incoming>) -> Result<usize, Refusal> {
        if !host::is_target(request.method(), request.uri()) {
            return Err(Refusal::NoTarget);
        }
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

    /// Returns the URL that the first matching redirect names.
    fn moved(&self, live: &Live, request: &Request<Incoming>) -> Option<String> {
        let redirects = &live.config.redirect;
        if redirects.is_empty() {
            return None;
        }
        let uri = request.uri();
        let host = host::of(request.version(), uri, request.headers())?;
        let path = uri.path_and_query()?.as_str();
        let (scheme, mut redirects) = (self.conn.scheme(), redirects.iter());
        redirects.find_map(|redirect| {
            let location = redirect.location(scheme, host, path);
            location.filter(|location| !host.is_empty() || location.starts_with('/'))
        })
    }

    /// Applies limits, rates and gates to a request.
    fn admit(
        &self,
        live: &Live,
        request: &Request<Incoming>,
        level: Level,
        now: u64,
        gate: Gate,
    ) -> Result<Option<Ticket>, Refusal> {
        let limits = &live.config.limits;
        let (line, head) = sizes(request);
        if line >= limits.header_bytes {
            return Err(Refusal::LongUrl);
        }
        if head > limits.header_bytes {
            return Err(Refusal::LongHead);
        }
        let mut codings = request.headers().get_all(TRANSFER_ENCODING).iter();
        let is_chunked = |coding: &HeaderValue| coding.as_bytes().eq_ignore_ascii_case(b"chunked");
        if codings.next().is_some_and(|coding| !is_chunked(coding)) || codings.next().is_some() {
            return Err(Refusal::UnknownCoding);
        }
        let length = request.headers().get(CONTENT_LENGTH);
        let length = length.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        if length.is_some_and(|length| length > limits.body_bytes) {
            return Err(Refusal::TooLarge);
        }
        if gate == Gate::Open {
            return Ok(None);
        }
        let shared = &self.conn.shared;
        if !shared
            .rates
            .take(self.conn.peer.ip(), limits.request_rate, now)
        {
            shared.metrics.throttled.fetch_add(1, Relaxed);
            return Err(Refusal::TooOften);
        }
        let admission = &live.config.admission;
        let max_wait = match gate {
            Gate::Waits => admission.max_wait,
            _ => Duration::MAX,
        };
        let gates = &shared.gates;
        let counted = gates.counted(now);
        let ticket = gates.admit(level, counted, max_wait, admission.in_flight);
        ticket.map(Some).ok_or(Refusal::Overloaded)
    }

    /// Answers with an endpoint or a file.
    fn answer(
        &self,
        live: &Arc<CachedSettings>,
        site: usize,
        endpoint: Option<Endpoint>,
        parts: Parts,
        since: u64,
    ) -> Answer {
        if endpoint.is_some() && !matches!(parts.method, Method::GET | Method::HEAD) {
            return Answer::Ready(Some(reply::only_get("this can only be read\n")));
        }
        if let Some(response) =
            endpoint.and_then(|endpoint| builtin::at_once(&self.conn.shared, endpoint))
        {
            return Answer::Ready(Some(response));
        }
        let (conn, live) = (self.conn.clone(), live.clone());
        Answer::Later(Box::pin(async move {
            builtin::respond(&conn.shared, &live, site, &parts, since).await
        }))
    }

    /// Lets a service answer.
    fn ask(&self, live: &Arc<CachedSettings>, app: &App, mut request: Request<Incoming>) -> Answer {
        let limit = live.config.limits.body_bytes;
        let conn = self.conn.clone();
        request.extensions_mut().insert(conn.facts());
        Answer::Later(app(request.map(|body| RequestBody::new(body, conn, limit))))
    }
}

/// Returns the length of a request's target, and about that of its whole head.
#[inline]
fn sizes(request: &Request<Incoming>) -> (u64, u64) {
    let uri = request.uri();
    let host = uri.authority().map_or(0, |host| host.as_str().len());
    let line = host + uri.path_and_query().map_or(0, |path| path.as_str().len());
    let fields = request.headers().iter();
    // Includes the colon, a space, and the end of the line.
    let fields = fields.map(|(name, value)| name.as_str().len() + value.len() + 4);
    (line as u64, line as u64 + fields.sum::<usize>() as u64)
}
