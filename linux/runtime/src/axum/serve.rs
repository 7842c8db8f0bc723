//! An HTTP server with the interface of `axum::serve`.

use std::convert::Infallible;
use std::fmt;
use std::future::{Future, IntoFuture, poll_fn};
use std::io;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use ::axum::body::Body;
use ::axum::extract::Request;
use ::axum::response::Response;
use ::hyper::body::Incoming;
use tower_service::Service;
use upshift_core::Level;

use super::{IncomingStream, Listener};
use crate::hyper::{MakeService, Server};
use crate::sync::Mutex;

/// Serves an axum application on the vCPUs, with the arguments of `axum::serve`.
///
/// `make_service` is a `Router`, a `MethodRouter`, a handler with a state, or the result of their
/// `into_make_service` and `into_make_service_with_connect_info`. `listener` is a
/// [`TcpListener`](crate::net::TcpListener), a [`UnixListener`](crate::net::UnixListener) or a
/// `TlsListener` (feature `tls`). HTTP/1.1 and HTTP/2 are both served.
///
/// The compile error "the trait bound `upshift::net::TcpListener: axum::serve::Listener` is not
/// satisfied" means that `axum::serve` was called instead of this function.
///
/// Await the result to serve; without [`with_graceful_shutdown`](Serve::with_graceful_shutdown) it
/// serves until the runtime ends.
/// Idle connections are closed after the [time limit for heads](Serve::header_timeout).
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// use axum::{Router, extract::ConnectInfo, routing::get};
/// use std::net::SocketAddr;
/// use upshift::{Level, net::{TcpListener, TcpStream}, sync::Notify};
///
/// let end = std::sync::Arc::new(Notify::new());
/// let ended = end.clone();
/// let hello = |ConnectInfo(peer): ConnectInfo<SocketAddr>| async move { peer.ip().to_string() };
/// let app = Router::new().route("/", get(hello));
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let address = listener.local_addr()?;
/// let server = upshift::axum::serve(
///     listener,
///     app.into_make_service_with_connect_info::<SocketAddr>(),
/// )
/// .levels(|_| Level::at::<8>())
/// .with_graceful_shutdown(async move { ended.notified().await });
/// let server = upshift::spawn(server.into_future(), Level::at::<4>());
///
/// let mut client = TcpStream::connect(address).await?;
/// let request = "GET / HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n";
/// client.write_all(request).await.0?;
/// let mut answer = Vec::new();
/// upshift::io::AsyncReadExt::read_to_end(&mut client, &mut answer).await?;
/// assert!(answer.ends_with(b"127.0.0.1"));
/// end.notify_one();
/// server.await.unwrap()?;
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
pub fn serve<L, M, S>(listener: L, make_service: M) -> Serve<L, M, S>
where
    L: Listener,
    M: for<'a> Service<IncomingStream<'a, L>, Error = Infallible, Response = S>,
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    Serve {
        server: Server::new(listener),
        make_service,
        service: PhantomData,
    }
}

/// A server of [`serve`] and its settings. It serves when it is awaited.
#[must_use = "a server serves when it is awaited"]
pub struct Serve<L, M, S> {
    server: Server<L>,
    make_service: M,
    service: PhantomData<fn() -> S>,
}

impl<L: Listener, M, S> Serve<L, M, S> {
    /// Sets the function that returns the level of a request, given its head. The request's handler
    /// runs and its response is sent at this level (default: the level of receiving).
    pub fn levels(
        self,
        level: impl Fn(&::hyper::Request<Incoming>) -> Level + Send + Sync + 'static,
    ) -> Self {
        self.map_server(|server| server.levels(level))
    }

    /// Sets the level at which connections are accepted and requests received. The default is
    /// [`Level::URGENT`] with [`levels`](Serve::levels), and otherwise the level of the coroutine
    /// that awaits the server. With `levels` it should be at least as urgent as the most urgent
    /// request. When a connection has used up its [`Allowance`](crate::hyper::Allowance) of CPU
    /// time at this level, the server receives from it at the least urgent level.
    pub fn receive_level(self, level: Level) -> Self {
        self.map_server(|server| server.receive_level(level))
    }

    /// Ends the server when a future is ready. From then on nothing more is accepted, and the
    /// requests under way are answered within the [drain timeout](Serve::drain_timeout).
    pub fn with_graceful_shutdown(self, signal: impl Future<Output = ()> + Send + 'static) -> Self {
        self.map_server(|server| server.with_graceful_shutdown(signal))
    }

    /// Limits the time that the requests under way have after
    /// [`with_graceful_shutdown`](Serve::with_graceful_shutdown) (default: 10 s). Connections that
    /// are still open then are cut off.
    pub fn drain_timeout(self, limit: Duration) -> Self {
        self.map_server(|server| server.drain_timeout(limit))
    }

    /// Limits the time that a client has to send the head of a request or to complete the TLS
    /// handshake, or may be idle before a request (default: 30 s; zero: no limit). axum itself has
    /// no limit.
    pub fn header_timeout(self, limit: Duration) -> Self {
        self.map_server(|server| server.header_timeout(limit))
    }

    /// Returns the address that the server listens on.
    ///
    /// # Errors
    /// The errors of `getsockname`.
    pub fn local_addr(&self) -> io::Result<L::Addr> {
        self.server.listener().local_addr()
    }

    fn map_server(self, set: impl FnOnce(Server<L>) -> Server<L>) -> Self {
        Serve {
            server: set(self.server),
            ..self
        }
    }
}

impl<L, M, S> IntoFuture for Serve<L, M, S>
where
    L: Listener,
    M: for<'a> Service<IncomingStream<'a, L>, Error = Infallible, Response = S> + Send + 'static,
    for<'a> <M as Service<IncomingStream<'a, L>>>::Future: Send,
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    type Output = io::Result<()>;
    type IntoFuture = ServeFuture;

    fn into_future(self) -> ServeFuture {
        let make = TowerMakeService {
            make_service: Mutex::new(self.make_service),
            service: self.service,
        };
        ServeFuture(Box::pin(self.server.run_make_service(make)))
    }
}

impl<L: fmt::Debug, M, S> fmt::Debug for Serve<L, M, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Serve").field(&self.server).finish()
    }
}

/// The future of [`Serve`]. Its errors are those of
/// [`Server::run`](crate::hyper::Server::run).
#[must_use = "futures do nothing unless awaited"]
pub struct ServeFuture(Pin<Box<dyn Future<Output = io::Result<()>> + Send>>);

impl Future for ServeFuture {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for ServeFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServeFuture").finish_non_exhaustive()
    }
}

/// A [`MakeService`] that calls a tower service, one call at a time.
struct TowerMakeService<M, S> {
    make_service: Mutex<M>,
    service: PhantomData<fn() -> S>,
}

impl<L, M, S> MakeService<L> for TowerMakeService<M, S>
where
    L: Listener,
    M: for<'a> Service<IncomingStream<'a, L>, Error = Infallible, Response = S> + Send + 'static,
    for<'a> <M as Service<IncomingStream<'a, L>>>::Future: Send,
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    type Service = MapIncoming<S>;

    async fn make(&self, stream: IncomingStream<'_, L>) -> MapIncoming<S> {
        let service_future = {
            let mut make_service = self.make_service.lock().await;
            let Ok(()) = poll_fn(|cx| make_service.poll_ready(cx)).await;
            make_service.call(stream)
        };
        let Ok(service) = service_future.await;
        MapIncoming(service)
    }
}

/// A service that converts hyper's requests into axum's, for the inner service.
#[derive(Clone)]
struct MapIncoming<S>(S);

impl<S: Service<Request>> Service<::hyper::Request<Incoming>> for MapIncoming<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: ::hyper::Request<Incoming>) -> S::Future {
        self.0.call(request.map(Body::new))
    }
}
