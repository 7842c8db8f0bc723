//! Runs a server: it listens, accepts connections, and drains them when it ends.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use http_body::Body as HttpBody;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tower_service::Service;
use upshift::hyper::ReceiveLevels;
use upshift::sync::Notify;
use upshift::{Level, time};

use crate::admission::Gates;
use crate::admission::rates::RateLimiter;
use crate::clock;
use crate::config::Config;
use crate::connection::clocks::REQUEST_GRACE;
use crate::connection::conn::Conn;
use crate::files::{CACHED_FILES, RecentFiles};
use crate::operator::access_log::AccessLog;
use crate::operator::control::CommandSocket;
use crate::operator::metrics::Metrics;
use crate::operator::notice;
use crate::operator::notice::Notices;
use crate::request::body::{Body, BoxError};
use crate::request::priority::Urgency;
use crate::request::reply;
use crate::request::request_body::RequestBody;
use crate::server::bind::{Accepted, Listener};
use crate::server::connections::Connections;
use crate::server::shared::{Control, Settings, Shared};

pub(crate) mod bind;
mod check;
pub(crate) mod connections;
pub(crate) mod shared;
pub(crate) mod sweep;

/// Number of descriptors that preemption opens for each vCPU while the server runs.
const PREEMPTION_DESCRIPTORS: usize = 3;
/// Pause between attempts to accept when descriptors or memory have run out.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(20);
/// Level at which connections are accepted and time-outs are checked. It is more urgent than all
/// requests.
const ACCEPT_LEVEL: Level = Level::at::<1>();

/// A listening server.
pub struct Server {
    shared: Shared,
    listeners: Vec<Listener>,
}

impl Server {
    /// Opens all resources that the settings name, and listens. Must run inside a runtime. Raises
    /// `RLIMIT_NOFILE` to the hard limit.
    ///
    /// # Errors
    /// Returns the resource that cannot be opened, with a remedy.
    pub fn bind(config: Config) -> Result<Server, String> {
        Server::bind_to(config, Vec::new())
    }

    /// Checks all resources that [`bind`](Server::bind) would open: folders, certificates,
    /// addresses, the access log and the control socket. Does not listen and creates no file. A
    /// port that another `upshift` or systemd holds is no fault, since the holder may be the server
    /// that will read these settings. Returns warnings.
    ///
    /// # Errors
    /// Returns the faults, one per line.
    pub fn check(config: &Config) -> Result<Vec<String>, String> {
        check::check(config)
    }

    /// Creates a server like [`bind`](Server::bind), but on sockets that already listen, if
    /// `sockets` is not empty: TCP or Unix sockets of a service manager (`LISTEN_FDS`), which keeps
    /// them open while one server replaces another. The addresses in the settings then only
    /// determine which of the sockets are [plain](crate::Address::plain).
    ///
    /// # Errors
    /// Returns the errors of [`bind`](Server::bind).
    pub fn bind_to(config: Config, sockets: Vec<OwnedFd>) -> Result<Server, String> {
        let runtime = upshift::Handle::current().map_err(|error| error.to_string())?;
        let descriptors = raise_descriptors();
        let log = match &config.access_log {
            None => None,
            Some(path) => Some(
                AccessLog::open(path, runtime.vcpus())
                    .map_err(|error| format!("access log {}: {error}", path.display()))?,
            ),
        };
        let settings = Settings::new(config)?;
        notice::warn(&settings.sites.warnings);
        let listeners: io::Result<Vec<_>> = if sockets.is_empty() {
            settings.config.listen.iter().map(Listener::open).collect()
        } else {
            let sockets = sockets.into_iter();
            let addresses = &settings.config.listen;
            sockets
                .map(|socket| Listener::adopt(socket, addresses))
                .collect()
        };
        let listeners = listeners.map_err(|error| error.to_string())?;
        let connections = Connections::with_limit(
            descriptors,
            (CACHED_FILES + PREEMPTION_DESCRIPTORS) * runtime.vcpus(),
        );
        let receive_level =
            Level::new(settings.config.receive_level).map_err(|error| error.to_string())?;
        Ok(Server {
            shared: Shared {
                receive_level,
                // A client that sends too much is read at the default level of requests, whose
                // queue admission control bounds.
                receive_levels: ReceiveLevels::new(receive_level, Urgency::default().level()),
                initial_config: settings.config.clone(),
                settings: RwLock::new(Arc::new(settings)),
                epoch: AtomicU64::new(0),
                gates: Gates::new(runtime.vcpus()),
                rate_limiter: RateLimiter::default(),
                recent_files: RecentFiles::new(runtime.vcpus()),
                metrics: Metrics::new(runtime.vcpus()),
                connections,
                runtime,
                app: None,
                log,
                coarse_clock: Arc::new(AtomicU64::new(clock::millis())),
                read_config: None,
                leaving: AtomicBool::new(false),
                draining: AtomicBool::new(false),
                closing: AtomicBool::new(false),
                drain: Notify::new(),
            },
            listeners,
        })
    }

    /// Serves a tower service, such as an axum `Router`, instead of files. The built-in endpoints
    /// stay; disable them in the settings if the service has the same paths.
    #[must_use]
    pub fn with_service<S, B>(mut self, service: S) -> Server
    where
        S: Service<Request<RequestBody>, Response = Response<B>> + Clone + Send + Sync + 'static,
        S::Future: Send + 'static,
        S::Error: Into<BoxError>,
        B: HttpBody<Data = bytes::Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        self.shared.app = Some(Arc::new(move |request| {
            let mut service = service.clone();
            Box::pin(async move {
                let ready = poll_fn(|cx| service.poll_ready(cx).map_err(Into::into)).await;
                let answer = match ready {
                    Ok(()) => service.call(request).await.map_err(Into::into),
                    Err(error) => Err(error),
                };
                answer.map_or_else(service_error, |response| response.map(Body::new))
            })
        }));
        self
    }

    /// Sets the function that returns the settings for a reload.
    #[must_use]
    pub fn with_reload(
        mut self,
        read: impl Fn() -> Result<Config, String> + Send + Sync + 'static,
    ) -> Server {
        self.shared.read_config = Some(Box::new(read));
        self
    }

    /// Returns the addresses on which the server listens, with their ports.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().filter_map(Listener::ip).collect()
    }

    /// Returns the Unix sockets on which the server listens.
    #[must_use]
    pub fn paths(&self) -> Vec<PathBuf> {
        self.listeners.iter().filter_map(Listener::path).collect()
    }

    /// Returns the URLs under which the server answers, and `unix:PATH` for Unix sockets.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        let has_certificate = self.shared.settings().sites.tls.is_some();
        let url = |listener: &Listener| match (listener.ip(), listener.path()) {
            (Some(address), _) if has_certificate && !listener.plain => {
                Some(format!("https://{address}"))
            }
            (Some(address), _) => Some(format!("http://{address}")),
            (None, Some(path)) => Some(format!("unix:{}", path.display())),
            (None, None) => None,
        };
        self.listeners.iter().filter_map(url).collect()
    }

    /// Opens the control socket, if there is one, and prepares the server to run.
    ///
    /// # Errors
    /// Fails if the control socket cannot be created.
    pub fn start(self) -> Result<Started, String> {
        let shared = Arc::new(self.shared);
        let control = shared.settings().config.control.clone();
        let commands = control
            .map(|path| CommandSocket::listen(&path, &shared))
            .transpose()?;
        Ok(Started {
            shared,
            listeners: self.listeners,
            commands,
        })
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("addresses", &self.addresses())
            .finish_non_exhaustive()
    }
}

/// A server that is ready to run.
pub struct Started {
    shared: Arc<Shared>,
    listeners: Vec<Listener>,
    commands: Option<CommandSocket>,
}

impl Started {
    /// Returns a handle with which the operator controls the server.
    #[must_use]
    pub fn control(&self) -> Control {
        Control {
            shared: self.shared.clone(),
        }
    }

    /// Serves until the server is [drained](Control::drain). Returns the number of connections that
    /// were cut off because they did not end within the time for draining.
    pub async fn run(self) -> usize {
        let shared = self.shared;
        let _commands = self.commands;
        let sweeper = upshift::spawn(sweep::sweep(shared.clone()), ACCEPT_LEVEL);
        let acceptors: Vec<_> = self
            .listeners
            .into_iter()
            .map(|listener| upshift::spawn(accept(listener, shared.clone()), ACCEPT_LEVEL))
            .collect();
        while !shared.is_leaving() {
            shared.drain.notified().await;
        }
        let delay = shared.settings().config.drain_delay;
        if !delay.is_zero() {
            time::sleep(delay).await;
        }
        shared.draining.store(true, SeqCst);
        for acceptor in acceptors {
            // The listener closes with this coroutine.
            acceptor.cancel();
            let _ = acceptor.await;
        }
        let cut_off = drain(&shared).await;
        sweeper.cancel();
        let _ = sweeper.await;
        cut_off
    }
}

impl std::fmt::Debug for Started {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Started").finish_non_exhaustive()
    }
}

fn service_error(error: BoxError) -> Response<Body> {
    static FAILURES: Notices = Notices::new();
    FAILURES.report(format_args!("the service failed: {error}"));
    reply::text(StatusCode::INTERNAL_SERVER_ERROR, "the service failed\n")
}

/// Raises the limit of descriptors to the hard limit; returns the new limit, or `None` if there is
/// none.
fn raise_descriptors() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    );
    getrlimit(Resource::Nofile).current
}

/// Waits for the connections to end, and cancels those that do not end in time. Returns the number
/// of cancelled connections.
async fn drain(shared: &Arc<Shared>) -> usize {
    let limit = shared.settings().config.drain_timeout;
    let wake = |shared: &Shared, id| _ = shared.runtime.wake(id);
    for_each_coroutine(shared, wake);
    let grace = REQUEST_GRACE.min(limit);
    let _ = time::timeout(grace, all_closed(shared)).await;
    shared.closing.store(true, SeqCst);
    for_each_coroutine(shared, wake);
    let _ = time::timeout(limit - grace, all_closed(shared)).await;
    let open = shared.connections.count();
    if open > 0 {
        for_each_coroutine(shared, |shared, id| _ = shared.runtime.cancel(id));
        let _ = time::timeout(Duration::from_secs(5), all_closed(shared)).await;
    }
    open
}

fn for_each_coroutine(shared: &Shared, act: impl Fn(&Shared, upshift::CoroutineId)) {
    shared.connections.for_each(|conn| {
        if let Some(id) = conn.coroutine() {
            act(shared, id);
        }
    });
}

async fn all_closed(shared: &Shared) {
    while shared.connections.count() > 0 {
        shared.connections.all_closed.notified().await;
    }
}

async fn accept(listener: Listener, shared: Arc<Shared>) {
    static FAILURES: Notices = Notices::new();
    loop {
        // This loop yields between connections, since many clients may have connected at once.
        poll_fn(upshift::task::poll_piece).await;
        match listener.accept().await {
            Ok((accepted, peer)) => admit(&shared, accepted, peer, listener.plain),
            Err(error) if error.raw_os_error().is_some() => {
                // The error concerns one connection, or the process has run out of a resource.
                if !matches!(error.kind(), io::ErrorKind::ConnectionAborted) {
                    FAILURES.report(format_args!("cannot accept: {error}"));
                    time::sleep(ACCEPT_BACKOFF).await;
                }
            }
            Err(_) => return,
        }
    }
}

fn admit(shared: &Arc<Shared>, accepted: Accepted, peer: SocketAddr, plain: bool) {
    let settings = shared.settings();
    let limits = &settings.config.limits;
    let conn = shared.connections.insert(
        peer,
        limits.connections,
        limits.connections_per_peer,
        |number| Arc::new(Conn::new(shared.clone(), number, peer, plain)),
    );
    let Some(conn) = conn else {
        shared.connections.warn_if_full();
        shared.metrics.turned_away.fetch_add(1, Relaxed);
        return;
    };
    shared.metrics.accepted.fetch_add(1, Relaxed);
    let serving = conn.serve(accepted.into_io(), settings);
    if let Ok(handle) = upshift::try_spawn(serving, shared.receive_level) {
        handle.detach();
    }
}
