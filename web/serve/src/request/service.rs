//! Decides the level, the admission and the answer of each request of a connection.

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
use crate::request::active::ActiveRequest;
use crate::request::body::BoxError;
use crate::request::in_flight::Entry;
use crate::request::priority::Urgency;
use crate::request::refusal::Refusal;
use crate::request::request_body::RequestBody;
use crate::request::response_future::{Answer, ResponseFuture};
use crate::request::rules::Facts;
use crate::request::{builtin, host, reply};
use crate::server::shared::{App, CachedSettings, Settings};

pub(crate) struct HttpService {
    conn: Arc<Conn>,
    settings: RefCell<Arc<CachedSettings>>,
}

impl Service<Request<Incoming>> for HttpService {
    type Response = Response<Box<ActiveRequest>>;
    type Error = BoxError;
    type Future = ResponseFuture;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let conn = &self.conn;
        let shared = &conn.shared;
        let settings = self.settings();
        let now = clock::nanos();
        let version = request.version();
        let facts = self.facts(&settings, &request);
        let endpoint = builtin::endpoint_of(&settings, facts.uri.path());
        let site = self.site(&settings, &request);
        // A request without a valid site uses the rules, fields and pages of the default site.
        let site_or_default = *site.as_ref().unwrap_or(&0);
        let rule = settings.rule_for(site_or_default, &facts);
        let headers = settings.sites.get(site_or_default).headers.clone();
        let location = match endpoint {
            None => self.redirect(&settings, &request),
            Some(_) => None,
        };
        // Monitoring is answered even when the server is overloaded.
        let is_vital = matches!(endpoint, Some(Endpoint::Healthz | Endpoint::Metrics));
        let (stream, early_update) = if version >= Version::HTTP_2 {
            conn.streams.take_next()
        } else {
            (None, None)
        };
        let requested = early_update.unwrap_or_else(|| Urgency::from_headers(request.headers()));
        let urgency = settings.clamped(requested);
        let default_level = if is_vital {
            shared.receive_level
        } else {
            urgency.level()
        };
        let level = rule.unwrap_or(default_level);
        conn.clocks
            .begin_request(shared.app.is_none() || endpoint.is_some());
        let class = match endpoint {
            _ if is_vital && rule.is_none() => AdmissionClass::Always,
            None if shared.app.is_some() && location.is_none() => AdmissionClass::Timed,
            Some(Endpoint::Matrix) => AdmissionClass::Timed,
            _ => AdmissionClass::Counted,
        };
        let admitted =
            site.and_then(|site| Ok((site, self.admit(&settings, &request, level, now, class)?)));
        let (site, ticket) = match admitted {
            Ok((site, ticket)) => (Ok(site), ticket),
            Err(refusal) => {
                let pages = &settings.sites.get(site_or_default).pages;
                (Err(pages.apply(refusal.response(version))), None)
            }
        };
        let entry = Entry::new(facts, stream, (urgency, default_level), level, now);
        // A refusal is sent at the level of receiving, so it does not queue among the requests of
        // its own level.
        let at_receive_level = site.is_err() || class == AdmissionClass::Always;
        let is_ruled = rule.is_some();
        let mut active = ActiveRequest::new(
            conn.clone(),
            entry,
            version,
            ticket,
            at_receive_level,
            is_ruled,
        );
        let site = match (site, location) {
            (Ok(_), Some(location)) => Err(reply::redirect(&location)),
            (site, _) => site,
        };
        let answer = match (site, &shared.app) {
            (Ok(_), Some(app)) if endpoint.is_none() => self.call_app(&settings, app, request),
            (site, _) => {
                let (parts, body) = request.into_parts();
                active.discard_body(body);
                match site {
                    Ok(site) => self.answer(&settings, site, endpoint, parts, now),
                    Err(response) => Answer::Ready(Some(response)),
                }
            }
        };
        ResponseFuture::new(active, answer, headers)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum AdmissionClass {
    Always,
    /// For files and texts in memory, only the number of requests in progress is checked, because
    /// such requests cost too little to make other requests wait.
    Counted,
    /// For computations, the number of requests in progress and the expected wait are checked.
    Timed,
}

impl HttpService {
    pub(crate) fn new(conn: Arc<Conn>) -> HttpService {
        let settings = RefCell::new(CachedSettings::load(&conn.shared));
        HttpService { conn, settings }
    }

    #[inline]
    fn settings(&self) -> Arc<CachedSettings> {
        let shared = &self.conn.shared;
        let mut cached = self.settings.borrow_mut();
        if !cached.is_current(shared) {
            *cached = CachedSettings::load(shared);
        }
        cached.clone()
    }

    fn facts(&self, settings: &Settings, request: &Request<Incoming>) -> Facts {
        let mut headers = HeaderMap::new();
        for name in &settings.saved_headers {
            for value in request.headers().get_all(name) {
                headers.append(name, value.clone());
            }
        }
        // HTTP/2 sends the host as a pseudo-header field.
        if !settings.sites.is_single()
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

    fn site(&self, settings: &Settings, request: &Request<Incoming>) -> Result<usize, Refusal> {
        if !host::is_valid_target(request.method(), request.uri()) {
            return Err(Refusal::InvalidTarget);
        }
        let host = host::of_request(request.version(), request.uri(), request.headers());
        let host = host.ok_or(Refusal::InvalidHost)?;
        if settings.sites.is_single() {
            return Ok(0);
        }
        let site = settings.sites.find(host);
        match self.conn.server_name() {
            Some(server) if settings.sites.is_misdirected(site, server) => {
                Err(Refusal::Misdirected)
            }
            _ => Ok(site),
        }
    }

    fn redirect(&self, settings: &Settings, request: &Request<Incoming>) -> Option<String> {
        let redirects = &settings.config.redirect;
        if redirects.is_empty() {
            return None;
        }
        let uri = request.uri();
        let host = host::of_request(request.version(), uri, request.headers())?;
        let path = uri.path_and_query()?.as_str();
        let (scheme, mut redirects) = (self.conn.scheme(), redirects.iter());
        redirects.find_map(|redirect| {
            let location = redirect.location(scheme, host, path);
            location.filter(|location| !host.is_empty() || location.starts_with('/'))
        })
    }

    fn admit(
        &self,
        settings: &Settings,
        request: &Request<Incoming>,
        level: Level,
        now: u64,
        class: AdmissionClass,
    ) -> Result<Option<Ticket>, Refusal> {
        let limits = &settings.config.limits;
        let (target_bytes, head_bytes) = head_sizes(request);
        if target_bytes >= limits.header_bytes {
            return Err(Refusal::LongUrl);
        }
        if head_bytes > limits.header_bytes {
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
        if class == AdmissionClass::Always {
            return Ok(None);
        }
        let shared = &self.conn.shared;
        if !shared
            .rate_limiter
            .take(self.conn.peer.ip(), limits.request_rate, now)
        {
            shared.metrics.throttled.fetch_add(1, Relaxed);
            return Err(Refusal::RateLimited);
        }
        let admission = &settings.config.admission;
        let max_wait = match class {
            AdmissionClass::Timed => admission.max_wait,
            _ => Duration::MAX,
        };
        let gates = &shared.gates;
        let counted_now = gates.counted(now);
        let ticket = gates.admit(level, counted_now, max_wait, admission.in_flight);
        ticket.map(Some).ok_or(Refusal::Overloaded)
    }

    fn answer(
        &self,
        settings: &Arc<CachedSettings>,
        site: usize,
        endpoint: Option<Endpoint>,
        parts: Parts,
        since: u64,
    ) -> Answer {
        if endpoint.is_some() && !matches!(parts.method, Method::GET | Method::HEAD) {
            return Answer::Ready(Some(reply::method_not_allowed("this can only be read\n")));
        }
        if let Some(response) =
            endpoint.and_then(|endpoint| builtin::respond_now(&self.conn.shared, endpoint))
        {
            return Answer::Ready(Some(response));
        }
        let (conn, settings) = (self.conn.clone(), settings.clone());
        Answer::Handler(Box::pin(async move {
            builtin::respond(&conn.shared, &settings, site, &parts, since).await
        }))
    }

    fn call_app(
        &self,
        settings: &Arc<CachedSettings>,
        app: &App,
        mut request: Request<Incoming>,
    ) -> Answer {
        let limit = settings.config.limits.body_bytes;
        let conn = self.conn.clone();
        request.extensions_mut().insert(conn.info());
        Answer::Handler(app(request.map(|body| RequestBody::new(body, conn, limit))))
    }
}

/// Returns the length of a request's target, and the approximate length of its complete head, in
/// bytes.
#[inline]
fn head_sizes(request: &Request<Incoming>) -> (u64, u64) {
    let uri = request.uri();
    let host = uri.authority().map_or(0, |host| host.as_str().len());
    let line = host + uri.path_and_query().map_or(0, |path| path.as_str().len());
    let fields = request.headers().iter();
    // The sum includes the colon, a space, and the end of the line.
    let fields = fields.map(|(name, value)| name.as_str().len() + value.len() + 4);
    (line as u64, line as u64 + fields.sum::<usize>() as u64)
}
