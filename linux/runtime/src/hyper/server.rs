//! Serving a tower service over HTTP/1.1 and HTTP/2.
//!
//! One coroutine accepts; each connection is a coroutine; both are at the level at which the
//! server receives, so that neither requests nor the caller of the server delay the acceptance of
//! clients. The first bytes decide: HTTP/2's preface (prior knowledge) or HTTP/1. A connection
//! knows its number in a table; the end of the server sets a flag and wakes every coroutine of
//! the table, and a coroutine that sees the flag finishes the request under way. A connection that
//! has not ended when the time for draining is over is cancelled: its peer may never finish a head,
//! read a response or answer a PING.

use std::collections::HashSet;
use std::error::Error;
use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::Poll;
use std::time::Duration;

use ::hyper::body::{Body, Incoming};
use ::hyper::server::conn::{http1, http2};
use ::hyper::service::Service as HyperService;
use ::hyper::{Request, Response};
use hyper_util::service::TowerToHyperService;
use tower_service::Service;
use upshift_core::{CoroutineId, Level, Priority};

use super::levelled::Classify;
use super::listener::{IncomingStream, Listener, Transport};
use super::{Allowance, Clock, Levelled, Receiving, Spawner};
use crate::net::TcpListener;
use crate::notice::notice;
use crate::sync::Notify;
use crate::task::JoinHandle;
use crate::time;

/// hyper's type of errors.
type BoxError = Box<dyn Error + Send + Sync>;

/// Number of bytes that a connection (HTTP/1) or a stream (HTTP/2) buffers of requests that are
/// not read, and of responses that are not sent.
const BUFFERED: usize = 64 * 1024;
/// Number of bytes of HTTP/2 that are read between two looks at the clock: at most 455 frames.
const PIECE: usize = 4096;
/// Default of [`Server::header_timeout`]: hyper's own, since an idle connection counts, too.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Default of [`Server::drain_timeout`].
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause of accepting when the process has no descriptor left.
const OUT_OF_DESCRIPTORS: Duration = Duration::from_millis(20);

/// Serves a tower service, such as an axum `Router`, until an error of the listener.
///
/// # Errors
/// Outside a runtime.
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
///     .until(async { _ = signal::terminate().await })
///     .run(app)
///     .await
/// # }
/// ```
#[must_use = "a server serves when it is run"]
pub struct Server<L = TcpListener> {
    listener: L,
    receive: Option<Level>,
    throttled: Level,
    classify: Option<Classify>,
    end: Pin<Box<dyn Future<Output = ()> + Send>>,
    header_timeout: Duration,
    drain_timeout: Duration,
}

impl<L: Listener> Server<L> {
    /// Creates a server on this listener that runs for ever, with all levels that of its caller.
    pub fn new(listener: L) -> Server<L> {
        Server {
            listener,
            receive: None,
            throttled: Level::LEAST_URGENT,
            classify: None,
            end: Box::pin(pending()),
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
    /// request; each connection is then received there within its [`Allowance`].
    pub fn receive_level(mut self, level: Level) -> Server<L> {
        self.receive = Some(level);
        self
    }

    /// Sets the level at which a connection is received that has used up its [`Allowance`], for
    /// instance because it sends malformed requests without end (default: the least urgent). It
    /// matters only with [`levels`](Server::levels).
    pub fn throttled_level(mut self, level: Level) -> Server<L> {
        self.throttled = level;
        self
    }

    /// Sets the function that returns the level of each request (default: that of receiving), for
    /// its handler and the sending of its response.
    pub fn levels(
        mut self,
        classify: impl Fn(&Request<Incoming>) -> Level + Send + Sync + 'static,
    ) -> Server<L> {
        self.classify = Some(Arc::new(classify));
        self
    }

    /// Limits the time in which a client of HTTP/1 has to send the head of a request, or may be
    /// idle before it; and in which any client has to show its version of HTTP (default: 30 s;
    /// zero: no limit). A connection that takes longer is closed.
    pub fn header_timeout(mut self, limit: Duration) -> Server<L> {
        self.header_timeout = limit;
        self
    }

    /// Limits the time that connections have for the requests under way when the server ends
    /// (default: 10 s; zero: none). A connection that takes longer is cut off: its client may
    /// never finish a request, read a response, or answer.
    pub fn drain_timeout(mut self, limit: Duration) -> Server<L> {
        self.drain_timeout = limit;
        self
    }

    /// Stops accepting when this future is ready. [`run`](Server::run) returns when the
    /// requests under way have been answered, or the [time for
    /// that](Server::drain_timeout) is over.
    pub fn until(mut self, end: impl Future<Output = ()> + Send + 'static) -> Server<L> {
        self.end = Box::pin(end);
        self
    }

    /// Serves clones of one service.
    ///
    /// # Cancellation safety
    /// A dropped future stops accepting; open connections continue.
    ///
    /// # Errors
    /// Outside a runtime. Errors of connections end the connection alone.
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
    /// Those of [`run`](Server::run).
    pub async fn run_with<S, B>(
        self,
        service: impl FnMut(IncomingStream<'_, L>) -> S + Send + 'static,
    ) -> io::Result<()>
    where
        S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
        S: Service<Request<Incoming>, Future: Send + 'static, Error: Into<BoxError>>,
        B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
    {
        self.run_making(ByFunction(Mutex::new(service))).await
    }

    /// Serves each connection with a service made for it.
    pub(crate) async fn run_making<M, B>(self, make: M) -> io::Result<()>
    where
        M: Make<L>,
        M::Service: Service<Request<Incoming>, Response = Response<B>>,
        M::Service: Service<Request<Incoming>, Future: Send + 'static, Error: Into<BoxError>>,
        B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
    {
        let receive = self.receiving();
        let accepts = crate::try_spawn(self.accept_all(make), receive);
        let mut accepts = AcceptTask(accepts.map_err(io::Error::other)?);
        match (&mut accepts.0).await {
            Ok(ended) => ended,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(cancelled) => Err(io::Error::other(cancelled)),
            },
        }
    }

    /// Returns the priority of accepting and receiving.
    fn receiving(&self) -> Priority {
        match self.receive {
            Some(level) => level.into(),
            None if self.classify.is_some() => Level::URGENT.into(),
            None => Priority::Inherit,
        }
    }

    async fn accept_all<M, B>(mut self, make: M) -> io::Result<()>
    where
        M: Make<L>,
        M::Service: Service<Request<Incoming>, Response = Response<B>>,
        M::Service: Service<Request<Incoming>, Future: Send + 'static, Error: Into<BoxError>>,
        B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
    {
        let table = Arc::new(Table::default());
        let receive = self.receiving();
        let settings = Arc::new(Settings {
            make,
            receive,
            receiving: match (receive, &self.classify) {
                (Priority::At(level), Some(_)) => Some(Receiving::new(level, self.throttled)),
                // Requests run at the level of receiving.
                _ => None,
            },
            classify: self.classify,
            header_timeout: (!self.header_timeout.is_zero()).then_some(self.header_timeout),
        });
        loop {
            let (handshake, peer) = match accept(&self.listener, &mut self.end).await {
                Some(Ok(accepted)) => accepted,
                Some(Err(error)) => {
                    tolerate(error).await?;
                    continue;
                }
                None => break,
            };
            let entered = table.enter();
            let settings = settings.clone();
            let connection =
                async move { settings.connection::<L, B>(handshake, peer, entered).await };
            if let Ok(handle) = crate::try_spawn(connection, receive) {
                handle.detach();
            }
        }
        // New clients are refused from here on.
        drop(self.listener);
        table.drain(self.drain_timeout).await;
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

/// The coroutine that accepts; cancelled when the server is dropped.
struct AcceptTask(JoinHandle<io::Result<()>>);

impl Drop for AcceptTask {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Returns the next connection, or `None` when `end` is ready.
async fn accept<L: Listener>(
    listener: &L,
    end: &mut Pin<Box<dyn Future<Output = ()> + Send>>,
) -> Option<io::Result<(L::Handshake, L::Addr)>> {
    let mut next = pin!(listener.accept());
    poll_fn(|cx| {
        if end.as_mut().poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        next.as_mut().poll(cx).map(Some)
    })
    .await
}

/// Continues after an error of one connection, or of a process that lacks a resource for now;
/// returns other errors.
async fn tolerate(error: io::Error) -> io::Result<()> {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
            time::sleep(OUT_OF_DESCRIPTORS).await;
            Ok(())
        }
        Some(_) => Ok(()),
        None => Err(error),
    }
}

/// Makes the services of connections.
pub(crate) trait Make<L: Listener>: Send + Sync + 'static {
    type Service: Clone + Send + 'static;

    fn make(&self, stream: IncomingStream<'_, L>) -> impl Future<Output = Self::Service> + Send;
}

struct ByFunction<F>(Mutex<F>);

impl<L, F, S> Make<L> for ByFunction<F>
where
    L: Listener,
    F: FnMut(IncomingStream<'_, L>) -> S + Send + 'static,
    S: Clone + Send + 'static,
{
    type Service = S;

    async fn make(&self, stream: IncomingStream<'_, L>) -> S {
        let mut function = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        function(stream)
    }
}

struct Settings<M> {
    make: M,
    receive: Priority,
    receiving: Option<Arc<Receiving>>,
    classify: Option<Classify>,
    header_timeout: Option<Duration>,
}

impl<M> Settings<M> {
    async fn connection<L, B>(&self, handshake: L::Handshake, peer: L::Addr, entered: Entered)
    where
        L: Listener,
        M: Make<L>,
        M::Service: Service<Request<Incoming>, Response = Response<B>>,
        M::Service: Service<Request<Incoming>, Future: Send + 'static, Error: Into<BoxError>>,
        B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
    {
        entered.take();
        let begin = async {
            let io = handshake.await?;
            let service = self.make.make(IncomingStream::new(&io, peer)).await;
            let mut transport = L::transport(io);
            let two = transport.is_http2().await?;
            io::Result::Ok((transport, TowerToHyperService::new(service), two))
        };
        let begin = entered.table.or_shutdown(begin);
        let begun = match self.header_timeout {
            Some(limit) => time::timeout(limit, begin).await.unwrap_or(None),
            None => begin.await,
        };
        let Some(Ok((transport, service, two))) = begun else {
            return;
        };
        let allowance = self.receiving.as_ref().map(Receiving::open);
        // hyper and the peer deal with the end of a connection; handlers have their own errors.
        match &self.classify {
            Some(classify) => {
                let service = Levelled::shared(service, classify.clone());
                let _ = self
                    .serve_http(transport, two, service, &entered, allowance)
                    .await;
            }
            None => {
                _ = self
                    .serve_http(transport, two, service, &entered, allowance)
                    .await
            }
        }
    }

    async fn serve_http<S, B>(
        &self,
        mut io: impl Transport,
        two: bool,
        service: S,
        entered: &Entered,
        allowance: Option<Arc<Allowance>>,
    ) -> ::hyper::Result<()>
    where
        S: HyperService<Request<Incoming>, Response = Response<B>>,
        S: HyperService<Request<Incoming>, Future: Send + 'static, Error: Into<BoxError>>,
        B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
    {
        let table = &entered.table;
        if two {
            io.read_at_most(PIECE);
            let Some(allowance) = allowance else {
                let mut builder = http2::Builder::new(Spawner::new(self.receive));
                let builder = builder.timer(Clock).max_send_buf_size(BUFFERED);
                let builder = builder.enable_connect_protocol();
                // Web sockets over HTTP/2.
                let builder = builder.enable_connect_protocol();
                let connection = builder.serve_connection(io, service);
                return table
                    .with_shutdown(connection, |two| two.graceful_shutdown())
                    .await;
            };
            let mut builder = http2::Builder::new(allowance.spawner());
            let builder = builder.timer(Clock).max_send_buf_size(BUFFERED);
            // Web sockets over HTTP/2.
            let builder = builder.enable_connect_protocol();
            let connection = builder.serve_connection(io, service);
            let served = table.with_shutdown(connection, |two| two.graceful_shutdown());
            return allowance.hold(served).await;
        }
        let mut builder = http1::Builder::new();
        if let Some(limit) = self.header_timeout {
            builder.timer(Clock).header_read_timeout(limit);
        }
        builder.max_buf_size(BUFFERED);
        let connection = builder.serve_connection(io, service).with_upgrades();
        let served = table.with_shutdown(connection, |one| one.graceful_shutdown());
        match allowance {
            Some(allowance) => allowance.hold(served).await,
            None => served.await,
        }
    }
}

/// The connections that are open.
#[derive(Default)]
struct Table {
    ending: AtomicBool,
    open: Mutex<Open>,
    changed: Notify,
}

#[derive(Default)]
struct Open {
    count: usize,
    ids: HashSet<CoroutineId>,
}

impl Table {
    fn open(&self) -> std::sync::MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(self: &Arc<Table>) -> Entered {
        self.open().count += 1;
        Entered {
            table: self.clone(),
            id: OnceLock::new(),
        }
    }

    fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    /// Returns the output of `future`, or nothing if the server ends first.
    async fn or_shutdown<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        poll_fn(|cx| {
            if self.is_ending() {
                return Poll::Ready(None);
            }
            future.as_mut().poll(cx).map(Some)
        })
        .await
    }

    /// The future of a connection, which is notified once if the server ends first.
    async fn with_shutdown<C: Future>(
        &self,
        connection: C,
        shut_down: fn(Pin<&mut C>),
    ) -> C::Output {
        let mut connection = pin!(connection);
        let mut notified = false;
        poll_fn(|cx| {
            if self.is_ending() && !notified {
                notified = true;
                shut_down(connection.as_mut());
            }
            connection.as_mut().poll(cx)
        })
        .await
    }

    /// Ends every connection gracefully, and cancels those that have not ended within the limit.
    async fn drain(&self, limit: Duration) {
        self.ending.store(true, Ordering::SeqCst);
        // The connection may end meanwhile.
        let ask = |id| _ = crate::wake(id);
        if time::timeout(limit, self.all_closed(ask)).await.is_ok() {
            return;
        }
        let count = self.open().count;
        notice(format_args!(
            "connections that did not end within {limit:?} of the shutdown, and are cancelled: {count}"
        ));
        let Ok(runtime) = crate::Handle::current() else {
            return;
        };
        self.all_closed(|id| _ = runtime.cancel(id)).await;
    }

    /// Waits until no connection is open, and acts on each open one, now and after each end.
    async fn all_closed(&self, act: impl Fn(CoroutineId)) {
        loop {
            let changed = self.changed.notified();
            let ids: Vec<_> = {
                let open = self.open();
                if open.count == 0 {
                    return;
                }
                open.ids.iter().copied().collect()
            };
            ids.into_iter().for_each(&act);
            changed.await;
        }
    }
}

/// The entry of a connection in the table.
struct Entered {
    table: Arc<Table>,
    id: OnceLock<CoroutineId>,
}

impl Entered {
    /// Enters the calling coroutine, which is the connection's. The entry is made before the flag
    /// is read for the first time, so that no end is missed.
    fn take(&self) {
        if let Some(id) = crate::get_cid() {
            let _ = self.id.set(id);
            self.table.open().ids.insert(id);
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        {
            let mut open = self.table.open();
            open.count -= 1;
            if let Some(id) = self.id.get() {
                open.ids.remove(id);
            }
        }
        if self.table.is_ending() {
            self.table.changed.notify_one();
        }
    }
}
