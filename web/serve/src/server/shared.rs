//! The state that all connections of a server share, and the operator's handle to it.

use std::fmt;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use http::header::{HOST, REFERER, USER_AGENT};
use http::{HeaderName, Request, Response};
use upshift::Level;
use upshift::hyper::ReceiveLevels;
use upshift::sync::Notify;

use crate::admission::Gates;
use crate::admission::rates::RateLimiter;
use crate::config::Config;
use crate::files::RecentFiles;
use crate::operator::access_log::AccessLog;
use crate::operator::metrics::Metrics;
use crate::operator::notice;
use crate::request::body::Body;
use crate::request::in_flight::Entry;
use crate::request::priority::Urgency;
use crate::request::request_body::RequestBody;
use crate::request::rules::{Facts, Rule};
use crate::request::{host, rules};
use crate::server::connections::Connections;
use crate::sites::Sites;

pub(crate) struct Settings {
    pub(crate) config: Config,
    /// Names of the header fields that are saved with a request. These are the fields in rules, the
    /// logged fields, and with several sites the host.
    pub(crate) saved_headers: Vec<HeaderName>,
    pub(crate) sites: Sites,
}

impl Settings {
    pub(crate) fn new(config: Config) -> Result<Settings, String> {
        config.check()?;
        Ok(Settings {
            saved_headers: saved_headers(&config),
            sites: Sites::open(&config)?,
            config,
        })
    }

    pub(crate) fn rule_for(&self, site: usize, facts: &Facts) -> Option<Level> {
        let (rules, site_rules) = (&self.config.priority, &self.sites.get(site).rules);
        if rules.is_empty() && site_rules.is_empty() {
            return None;
        }
        let normalized = rules::normalize(facts.uri.path());
        let matches = |rule: &&Rule| rule.matches(facts, &normalized);
        let mut rules = rules.iter().chain(site_rules);
        rules.find(matches).map(|rule| rule.level)
    }

    /// Returns the level that the current rules assign to a request in progress.
    pub(crate) fn current_rule_for(&self, facts: &Facts) -> Option<Level> {
        let host = host::of_saved(&facts.method, &facts.uri, &facts.headers);
        let site = self.sites.find(host);
        self.rule_for(site, facts)
    }

    pub(crate) fn clamped(&self, urgency: Urgency) -> Urgency {
        urgency.clamped(self.config.ceiling)
    }
}

fn saved_headers(config: &Config) -> Vec<HeaderName> {
    let site_rules = config.site.iter().flat_map(|site| &site.priority);
    let rules = config.priority.iter().chain(site_rules);
    let headers = rules.filter_map(|rule| rule.header.as_ref());
    let mut names: Vec<_> = headers.map(|(name, _)| name.clone()).collect();
    if !config.site.is_empty() {
        names.push(HOST);
    }
    if config.access_log.is_some() {
        names.extend([REFERER, USER_AGENT]);
    }
    let mut seen = std::collections::HashSet::new();
    names.retain(|name| seen.insert(name.clone()));
    names
}

pub(crate) type HandlerFuture = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;
pub(crate) type App = Arc<dyn Fn(Request<RequestBody>) -> HandlerFuture + Send + Sync>;
pub(crate) type ReadConfig = Box<dyn Fn() -> Result<Config, String> + Send + Sync>;

pub(crate) struct Shared {
    pub(crate) settings: RwLock<Arc<Settings>>,
    /// Number of times that the settings were replaced.
    pub(crate) epoch: AtomicU64,
    pub(crate) initial_config: Config,
    /// Level at which requests are read.
    pub(crate) receive_level: Level,
    pub(crate) receive_levels: Arc<ReceiveLevels>,
    pub(crate) gates: Gates,
    pub(crate) rate_limiter: RateLimiter,
    pub(crate) recent_files: RecentFiles,
    pub(crate) metrics: Metrics,
    pub(crate) connections: Connections,
    pub(crate) runtime: upshift::Handle,
    pub(crate) app: Option<App>,
    pub(crate) log: Option<AccessLog>,
    /// Time of the last sweep, in ms of the [`clock`](crate::clock).
    pub(crate) coarse_clock: Arc<AtomicU64>,
    pub(crate) read_config: Option<ReadConfig>,
    /// Set when the server is about to end. Responses then ask clients to reconnect.
    pub(crate) leaving: AtomicBool,
    /// Set when the server accepts no more connections.
    pub(crate) draining: AtomicBool,
    /// Set when the server no longer waits for clients that have not sent a request.
    pub(crate) closing: AtomicBool,
    /// Notified when `leaving` is set.
    pub(crate) drain: Notify,
}

impl Shared {
    pub(crate) fn settings(&self) -> Arc<Settings> {
        self.settings
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::SeqCst)
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Applies new settings, also to the requests in progress. Returns the number of requests whose
    /// level has changed.
    fn install(&self, settings: Settings) -> usize {
        let settings = Arc::new(settings);
        *self
            .settings
            .write()
            .unwrap_or_else(PoisonError::into_inner) = settings.clone();
        self.epoch.fetch_add(1, Ordering::Release);
        self.reprio(|entry| {
            Some(
                settings
                    .current_rule_for(&entry.facts)
                    .unwrap_or(entry.default_level()),
            )
        })
    }

    /// Moves requests in progress to the levels that `new_level` returns. Returns the number of
    /// requests whose level has changed.
    fn reprio(&self, new_level: impl Fn(&Entry) -> Option<Level>) -> usize {
        let mut moved = 0;
        self.connections
            .for_each(|conn| moved += conn.in_flight.reprio(&self.runtime, &new_level));
        moved
    }
}

/// The settings that a connection loaded last. The requests of the connection hold references to
/// this value instead of the settings, so that connections do not share a reference count.
pub(crate) struct CachedSettings {
    epoch: u64,
    settings: Arc<Settings>,
}

impl CachedSettings {
    pub(crate) fn load(shared: &Shared) -> Arc<CachedSettings> {
        // The epoch is read before the settings, because newer settings with an old epoch are
        // merely loaded once more.
        let epoch = shared.epoch.load(Ordering::Acquire);
        let settings = shared.settings();
        Arc::new(CachedSettings { epoch, settings })
    }

    #[inline]
    pub(crate) fn is_current(&self, shared: &Shared) -> bool {
        self.epoch == shared.epoch.load(Ordering::Acquire)
    }
}

impl Deref for CachedSettings {
    type Target = Settings;

    #[inline]
    fn deref(&self) -> &Settings {
        &self.settings
    }
}

/// The result of a reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reloaded {
    /// Number of requests in progress whose level has changed.
    pub moved: usize,
    /// Changed settings that take effect only after a restart.
    pub restart: Vec<&'static str>,
}

impl fmt::Display for Reloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} requests under way have another level", self.moved)?;
        if !self.restart.is_empty() {
            let names = self.restart.join(", ");
            write!(f, "; changed, but applied only after a restart: {names}")?;
        }
        Ok(())
    }
}

/// A handle that controls a server. It is `Clone`, and usable from any thread.
#[derive(Clone)]
pub struct Control {
    pub(crate) shared: Arc<Shared>,
}

impl Control {
    /// Stops accepting after [`Config::drain_delay`], answers the requests in progress, and lets
    /// [`run`](crate::Started::run) return.
    pub fn drain(&self) {
        self.shared.leaving.store(true, Ordering::SeqCst);
        self.shared.drain.notify_one();
    }

    /// Reads the configuration and the certificate again. Requests in progress continue, at the
    /// level that the new rules assign. The access log continues in the file that now has its name.
    ///
    /// # Errors
    /// Returns the faults of the configuration; the old configuration stays in force.
    pub fn reload(&self) -> Result<Reloaded, String> {
        let config = match &self.shared.read_config {
            Some(read) => read()?,
            None => self.shared.settings().config.clone(),
        };
        let restart = self.shared.initial_config.changed_start_settings(&config);
        let settings = Settings::new(config)?;
        notice::warn(&settings.sites.warnings);
        let moved = self.shared.install(settings);
        if let Some(log) = &self.shared.log {
            log.reopen();
        }
        Ok(Reloaded { moved, restart })
    }

    /// Inserts a rule before all other rules, until the next reload.
    ///
    /// # Errors
    /// Fails if a folder can no longer be opened or a certificate can no longer be read.
    pub fn add_rule(&self, rule: Rule) -> Result<Reloaded, String> {
        let mut config = self.shared.settings().config.clone();
        config.priority.insert(0, rule);
        let moved = self.shared.install(Settings::new(config)?);
        Ok(Reloaded {
            moved,
            restart: Vec::new(),
        })
    }

    /// Moves the request with this number (from [`requests`](Control::requests)) to another level.
    /// Returns false if there is no such request.
    #[must_use]
    pub fn reprio(&self, request: u64, level: Level) -> bool {
        let found = std::cell::Cell::new(false);
        self.shared.reprio(|entry| {
            (request != 0 && entry.number() == request).then(|| {
                found.set(true);
                level
            })
        });
        found.get()
    }

    /// Returns the requests in progress, oldest first: number, level, ms since arrival, method and
    /// path.
    #[must_use]
    pub fn requests(&self) -> Vec<(u64, Level, u64, String, String)> {
        let now = crate::clock::nanos();
        let mut entries = Vec::new();
        self.shared
            .connections
            .for_each(|conn| conn.in_flight.list(&mut entries));
        entries.sort_by_key(|entry| entry.since);
        entries
            .iter()
            .map(|entry| {
                let age = now.saturating_sub(entry.since) / 1_000_000;
                let facts = &entry.facts;
                (
                    entry.assign_number(),
                    entry.level(),
                    age,
                    facts.method.to_string(),
                    facts.uri.path().to_owned(),
                )
            })
            .collect()
    }

    /// Returns the number of open connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.connections.count()
    }

    /// Returns the number of requests answered so far.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.shared.metrics.requests()
    }
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control")
            .field("connections", &self.connections())
            .field("draining", &self.shared.is_leaving())
            .finish()
    }
}
