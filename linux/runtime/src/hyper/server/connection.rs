//! Serves one connection: performs its handshake, makes its service, and speaks HTTP/1 or HTTP/2.

use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::hyper::body::{Body, Incoming};
use ::hyper::server::conn::{http1, http2};
use ::hyper::service::Service as HyperService;
use ::hyper::{Request, Response};
use hyper_util::service::TowerToHyperService;
use tower_service::Service;
use upshift_core::Priority;

use super::BoxError;
use super::drain::ConnectionGuard;
use crate::hyper::levelled::Classify;
use crate::hyper::listener::{IncomingStream, Listener, Transport};
use crate::hyper::{Allowance, Clock, Levelled, ReceiveLevels, Spawner};
use crate::time;

/// Maximum number of bytes that are buffered per connection (HTTP/1) or stream (HTTP/2).
const MAX_BUFFERED: usize = 64 * 1024;
/// Maximum number of bytes of HTTP/2 that are read at once: at most 455 frames, since a frame has
/// at least 9 bytes.
const MAX_HTTP2_READ: usize = 4096;

/// A factory that makes the service of each connection.
pub(crate) trait MakeService<L: Listener>: Send + Sync + 'static {
    type Service: Clone + Send + 'static;

    fn make(&self, stream: IncomingStream<'_, L>) -> impl Future<Output = Self::Service> + Send;
}

pub(super) struct MakeFn<F>(pub(super) Mutex<F>);

impl<L, F, S> MakeService<L> for MakeFn<F>
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

pub(super) struct ConnectionSettings<M> {
    pub(super) make: M,
    pub(super) receive_level: Priority,
    pub(super) receive_levels: Option<Arc<ReceiveLevels>>,
    pub(super) classify: Option<Classify>,
    pub(super) header_timeout: Option<Duration>,
}

impl<M> ConnectionSettings<M> {
    pub(super) async fn serve<L, B>(
        &self,
        handshake: L::Handshake,
        peer: L::Addr,
        guard: ConnectionGuard,
    ) where
        L: Listener,
        M: MakeService<L>,
        M::Service: Service<Request<Incoming>, Response = Response<B>>,
        M::Service: Service<Request<Incoming>, Future: Send + 'static, Error: Into<BoxError>>,
        B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
    {
        guard.register();
        let open = async {
            let io = handshake.await?;
            let service = self.make.make(IncomingStream::new(&io, peer)).await;
            let mut transport = L::transport(io);
            let is_http2 = transport.is_http2().await?;
            io::Result::Ok((transport, TowerToHyperService::new(service), is_http2))
        };
        let open = guard.connections.or_shutdown(open);
        let opened = match self.header_timeout {
            Some(limit) => time::timeout(limit, open).await.unwrap_or(None),
            None => open.await,
        };
        let Some(Ok((transport, service, is_http2))) = opened else {
            return;
        };
        let allowance = self.receive_levels.as_ref().map(ReceiveLevels::open);
        // Errors end only this connection.
        match &self.classify {
            Some(classify) => {
                let service = Levelled::shared(service, classify.clone());
                let _ = self
                    .serve_http(transport, is_http2, service, &guard, allowance)
                    .await;
            }
            None => {
                _ = self
                    .serve_http(transport, is_http2, service, &guard, allowance)
                    .await
            }
        }
    }

    async fn serve_http<S, B>(
        &self,
        mut io: impl Transport,
        is_http2: bool,
        service: S,
        guard: &ConnectionGuard,
        allowance: Option<Arc<Allowance>>,
    ) -> ::hyper::Result<()>
    where
        S: HyperService<Request<Incoming>, Response = Response<B>>,
        S: HyperService<Request<Incoming>, Future: Send + 'static, Error: Into<BoxError>>,
        B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
    {
        let connections = &guard.connections;
        if is_http2 {
            io.set_max_read(MAX_HTTP2_READ);
            let Some(allowance) = allowance else {
                let mut builder = http2::Builder::new(Spawner::new(self.receive_level));
                let builder = builder.timer(Clock).max_send_buf_size(MAX_BUFFERED);
                // Allows web sockets over HTTP/2.
                let builder = builder.enable_connect_protocol();
                let connection = builder.serve_connection(io, service);
                return connections
                    .with_graceful_shutdown(connection, |connection| connection.graceful_shutdown())
                    .await;
            };
            let mut builder = http2::Builder::new(allowance.spawner());
            let builder = builder.timer(Clock).max_send_buf_size(MAX_BUFFERED);
            // Allows web sockets over HTTP/2.
            let builder = builder.enable_connect_protocol();
            let connection = builder.serve_connection(io, service);
            let serving = connections
                .with_graceful_shutdown(connection, |connection| connection.graceful_shutdown());
            return allowance.charge(serving).await;
        }
        let mut builder = http1::Builder::new();
        if let Some(limit) = self.header_timeout {
            builder.timer(Clock).header_read_timeout(limit);
        }
        builder.max_buf_size(MAX_BUFFERED);
        let connection = builder.serve_connection(io, service).with_upgrades();
        let serving = connections
            .with_graceful_shutdown(connection, |connection| connection.graceful_shutdown());
        match allowance {
            Some(allowance) => allowance.charge(serving).await,
            None => serving.await,
        }
    }
}
