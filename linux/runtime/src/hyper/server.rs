//! Serves a tower service over HTTP/1.1 and HTTP/2.
//!
//! One coroutine accepts, and each connection is a coroutine. Both run at the level at which the
//! server receives, so that neither requests nor the caller of the server delay clients that
//! connect. The first bytes select the protocol: the preface of HTTP/2 (prior knowledge), or
//! HTTP/1.
//!
//! The shutdown of the server sets a flag and wakes the coroutines of all connections; each
//! connection finishes its requests in progress. A connection that is still open at the drain
//! timeout is cancelled, because its peer may never finish a head, read a response or answer a
//! PING.

use std::error::Error;
use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use ::hyper::body::{Body, Incoming};
use ::hyper::{Request, Response};
use tower_service::Service;
use upshift_core::{Level, Priority};

use super::ReceiveLevels;
use super::levelled::Classify;
use super::listener::{IncomingStream, Listener};
use crate::net::TcpListener;
use crate::task::JoinHandle;
use crate::time;

mod connection;
mod drain;

use connection::{ConnectionSettings, MakeFn};
use drain::Connections;

pub(crate) use connection::MakeService;

type BoxError = Box<dyn Error + Send + Sync>;

/// Default of [`Server::header_timeout`]: hyper's own default. It is long because the limit applies
/// to idle connections, too.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Default of [`Server::drain_timeout`].
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause before the next connection is accepted when descriptors or memory have run out.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(20);

/// Serves a tower service, such as an axum `Router`, until the listener fails.
///
/// # Errors
/// If it is called outside a runtime.
pub async fn serve<L, S, B>(listener: L, service: S) -> io::Result<()>
where
    L: Listener,
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S: Service<Request<Incoming>, Future: Send + 'static, Error: Into<BoxError>>,
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    Server::new(listener).run(service).await
}

/// An HTTP server: a listener and settings.
///
/// ```no_run
/// # async fn example(app: axum::Router) -> std::io::Result<()> {
/// use upshift::{Level, hyper::Server, net::TcpListener, signal};
///
/// Server::new(TcpListener::bind("127.0.0.1:8080")?)
///     .levels(|request| match request.uri().path() {
///         path if path.starts_with("/api/") => Level::at::<8>(),
///         _ => Level::at::<40>(),
///     })
///     .with_graceful_shutdown(async { _ = signal::terminate().await })
///     .run(app)
///     .await
/// # }
/// ```
#[must_use = "a server serves when it is run"]
pub struct Server<L = TcpListener> {
    listener: L,
    receive_level: Option<Level>,
    throttled_level: Level,
    classify: Option<Classify>,
    shutdown: Pin<Box<dyn Future<Output = ()> + Send>>,
    header_timeout: Duration,
    drain_timeout: Duration,
}

impl<L: Listener> Server<L> {
    /// Creates a server on this listener that runs for ever, at the level of its caller.
    pub fn new(listener: L) -> Server<L> {
        Server {
            listener,
            receive_level: None,
            throttled_level: Level::LEAST_URGENT,
            classify: None,
            shutdown: Box::pin(pending()),
            header_timeout: HEADER_TIMEOUT,
            drain_timeout: DRAIN_TIMEOUT,
        }
    }

    #[cfg(feature = "axum")]
    pub(crate) fn listener(&self) -> &L {
        &self.listener
    }

    /// Sets the level at which connections are accepted and requests received. The default is
    /// [`Level::URGENT`] with [`levels`](Server::levels), and otherwise the level of the coroutine
    /// that runs the server. With `levels` it should be at least as urgent as the most urgent
    /// request; the server then receives from each connection at this level within its
    /// [`Allowance`](super::Allowance).
    pub fn receive_level(mut self, level: Level) -> Server<L> {
        self.receive_level = Some(level);
        self
    }

    /// Sets the level at which the server receives from a connection that has used up its
    /// [`Allowance`](super::Allowance), for instance because it sends malformed requests without
    /// end (default: the least urgent). It matters only with [`levels`](Server::levels).
    pub fn throttled_level(mut self, level: Level) -> Server<L> {
        self.throttled_level = level;
        self
    }

    /// Sets the function that returns the level of each request, at which its handler runs and its
    /// response is sent (default: the level of receiving).
    pub fn levels(
        mut self,
        classify: impl Fn(&Request<Incoming>) -> Level + Send + Sync + 'static,
    ) -> Server<L> {
        self.classify = Some(Arc::new(classify));
        self
    }

    /// Limits the time that a client of HTTP/1 has to send the head of a request, or may be idle
    /// before a request. The same limit holds for the time that any client has to show its version
    /// of HTTP (default: 30 s; zero: no limit). A connection that takes longer is closed.
    pub fn header_timeout(mut self, limit: Duration) -> Server<L> {
        self.header_timeout = limit;
        self
    }

    /// Limits the time that connections have for their requests in progress when the server ends
    /// (default: 10 s; zero: connections are cut off at once). A connection that takes longer is
    /// cut off, because its client may never finish a request, read a response, or answer.
    pub fn drain_timeout(mut self, limit: Duration) -> Server<L> {
        self.drain_timeout = limit;
        self
    }

    /// Stops accepting when this future is ready. [`run`](Server::run) returns when the requests in
    /// progress have been answered, or when the [drain timeout](Server::drain_timeout) has passed.
    pub fn with_graceful_shutdown(
        mut self,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> Server<L> {
        self.shutdown = Box::pin(shutdown);
        self
    }

    /// Serves clones of one service.
    ///
    /// # Cancellation safety
    /// A dropped future stops accepting; open connections continue.
    ///
    /// # Errors
    /// If it is called outside a runtime. An error of a connection ends only that connection.
    pub async fn run<S, B>(self, service: S) -> io::Result<()>
    where
        S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
        S: Service<Request<Incoming>, Future: Send + 'static, Error: Into<BoxError>>,
        B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
    {
        self.run_with(move |_| service.clone()).await
    }

    /// Serves each connection with the service that a function makes for it. The function is
    /// called in the connection's coroutine, at the level of receiving; if it panics, the
    /// connection ends.
    ///
    /// # Errors
    /// The errors of [`run`](Server::run).
    pub async fn run_with<S, B>(
        self,
        service: impl FnMut(IncomingStream<'_, L>) -> S + Send + 'static,
    ) -> io::Result<()>
    where
        S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
        S: Service<Request<Incoming>, Future: Send + 'static, Error: Into<BoxError>>,
        B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
    {
        self.run_make_service(MakeFn(Mutex::new(service))).await
    }

    pub(crate) async fn run_make_service<M, B>(self, make: M) -> io::Result<()>
    where
        M: MakeService<L>,
        M::Service: Service<Request<Incoming>, Response = Response<B>>,
        M::Service: Service<Request<Incoming>, Future: Send + 'static, Error: Into<BoxError>>,
        B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
    {
        let receive_level = self.receive_priority();
        let task = crate::try_spawn(self.accept_loop(make), receive_level);
        let mut task = AcceptTask(task.map_err(io::Error::other)?);
        match (&mut task.0).await {
            Ok(result) => result,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(cancelled) => Err(io::Error::other(cancelled)),
            },
        }
    }

    fn receive_priority(&self) -> Priority {
        match self.receive_level {
            Some(level) => level.into(),
            None if self.classify.is_some() => Level::URGENT.into(),
            None => Priority::Inherit,
        }
    }

    async fn accept_loop<M, B>(mut self, make: M) -> io::Result<()>
    where
        M: MakeService<L>,
        M::Service: Service<Request<Incoming>, Response = Response<B>>,
        M::Service: Service<Request<Incoming>, Future: Send + 'static, Error: Into<BoxError>>,
        B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
    {
        let connections = Arc::new(Connections::default());
        let receive_level = self.receive_priority();
        let settings = Arc::new(ConnectionSettings {
            make,
            receive_level,
            receive_levels: match (receive_level, &self.classify) {
                (Priority::At(level), Some(_)) => {
                    Some(ReceiveLevels::new(level, self.throttled_level))
                }
                // Requests run at the level of receiving.
                _ => None,
            },
            classify: self.classify,
            header_timeout: (!self.header_timeout.is_zero()).then_some(self.header_timeout),
        });
        loop {
            let (handshake, peer) = match accept(&self.listener, &mut self.shutdown).await {
                Some(Ok(accepted)) => accepted,
                Some(Err(error)) => {
                    recover(error).await?;
                    continue;
                }
                None => break,
            };
            let guard = connections.insert();
            let settings = settings.clone();
            let connection = async move { settings.serve::<L, B>(handshake, peer, guard).await };
            if let Ok(handle) = crate::try_spawn(connection, receive_level) {
                handle.detach();
            }
        }
        // Closes the listening socket, so that new clients are refused.
        drop(self.listener);
        connections.drain(self.drain_timeout).await;
        Ok(())
    }
}

impl<L: fmt::Debug> fmt::Debug for Server<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("listener", &self.listener)
            .finish_non_exhaustive()
    }
}

/// The coroutine that accepts; cancelled when dropped.
struct AcceptTask(JoinHandle<io::Result<()>>);

impl Drop for AcceptTask {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Returns the next connection, or `None` when `shutdown` is ready.
async fn accept<L: Listener>(
    listener: &L,
    shutdown: &mut Pin<Box<dyn Future<Output = ()> + Send>>,
) -> Option<io::Result<(L::Handshake, L::Addr)>> {
    let mut next = pin!(listener.accept());
    poll_fn(|cx| {
        if shutdown.as_mut().poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        next.as_mut().poll(cx).map(Some)
    })
    .await
}

/// Returns if the server can continue after an error of accepting: at once if the error concerns
/// one connection, and after a pause if it reports a temporary lack of resources.
///
/// # Errors
/// Returns all other errors.
async fn recover(error: io::Error) -> io::Result<()> {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
            time::sleep(ACCEPT_BACKOFF).await;
            Ok(())
        }
        Some(_) => Ok(()),
        None => Err(error),
    }
}
