//! Serves a connection from the TLS handshake, through the choice of the protocol, to the graceful
//! shutdown.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Poll, ready};

use http::StatusCode;
use hyper::rt::Write;
use hyper::server::conn::{http1, http2};
use upshift::hyper::{Allowance, Clock, Io, StreamSpawner};

use crate::config::Limits;
use crate::connection::clocks::REQUEST_GRACE;
use crate::connection::conn::Conn;
use crate::connection::heads;
use crate::connection::observed::ObservedIo;
use crate::connection::transport::Transport;
use crate::request::service::HttpService;
use crate::server::shared::Settings;
use crate::tls::TlsIo;

/// First bytes of an HTTP/2 client with prior knowledge.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Largest number of bytes that hyper buffers of a request or a response.
const MAX_BUFFERED: usize = 64 * 1024;

impl Conn {
    pub(crate) async fn serve(self: Arc<Conn>, mut io: Io, settings: Arc<Settings>) {
        if let Some(id) = upshift::get_cid() {
            let _ = self.coroutine.set(id);
        }
        let _ = self.send_queue.set(io.stream().send_queue());
        let limits = settings.config.limits.clone();
        // Errors end only this connection.
        if let Some(config) = settings.sites.tls.as_ref().filter(|_| !self.plain) {
            let Some(Ok(first)) = self.or_shutdown(io.peek(1, |_| true)).await else {
                return;
            };
            // A TLS record begins with its type, which is not a letter.
            if first.first().is_some_and(u8::is_ascii_uppercase) {
                let _ = self.refuse_plain(io).await;
                return;
            }
            let Some(Ok(io)) = self.or_shutdown(TlsIo::accept(io, config.clone())).await else {
                return;
            };
            drop(settings);
            self.clocks.end_handshake();
            let is_http2 = io.is_http2();
            let _ = self.tls.set(io.handshake_info());
            let _ = self.serve_http(io, is_http2, &limits).await;
        } else {
            drop(settings);
            let first = io.peek(PREFACE.len(), |bytes| !PREFACE.starts_with(bytes));
            let Some(Ok(first)) = self.or_shutdown(first).await else {
                return;
            };
            let is_http2 = first.starts_with(PREFACE);
            let _ = self.serve_http(io, is_http2, &limits).await;
        }
    }

    async fn refuse_plain(self: &Arc<Conn>, io: Io) -> io::Result<()> {
        let text = "this port speaks TLS: use https\n";
        let answer = heads::refusal(StatusCode::BAD_REQUEST, text);
        let mut io = ObservedIo::refused(io, self.clone(), answer);
        poll_fn(|cx| Pin::new(&mut io).poll_shutdown(cx)).await
    }

    /// Returns whether the connection must close after its current requests. An HTTP/1 client loses
    /// a request if its connection is closed while the client sends. An HTTP/2 client learns from
    /// the GOAWAY frame which of its requests are answered.
    fn should_close(&self) -> bool {
        let shared = &self.shared;
        shared.is_draining()
            && (shared.closing.load(SeqCst) || self.clocks.can_close(REQUEST_GRACE))
            && !self.clocks.is_within_head()
    }

    /// Returns the output of `future`, or `None` if the connection must close first.
    async fn or_shutdown<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        poll_fn(|cx| {
            if self.should_close() {
                return Poll::Ready(None);
            }
            future.as_mut().poll(cx).map(Some)
        })
        .await
    }

    async fn serve_http<I>(
        self: &Arc<Conn>,
        io: I,
        is_http2: bool,
        limits: &Limits,
    ) -> hyper::Result<()>
    where
        I: Transport + Send + 'static,
    {
        let service = HttpService::new(self.clone());
        let io = ObservedIo::new(io, self.clone(), is_http2);
        let allowance = self.shared.receive_levels.open();
        if is_http2 {
            self.clocks.set_http2();
            let builder = self.http2(limits, &allowance);
            let connection = builder.serve_connection(io, service);
            let served = self
                .with_graceful_shutdown(connection, |connection| connection.graceful_shutdown());
            return allowance.charge(served).await;
        }
        let connection = self.http1(limits).serve_connection(io, service);
        // An upgraded connection belongs to the service.
        let connection = connection.with_upgrades();
        let served =
            self.with_graceful_shutdown(connection, |connection| connection.graceful_shutdown());
        let result = allowance.charge(served).await;
        self.remove_from_table();
        result
    }

    /// Returns the output of `connection`, which is shut down gracefully, once, when it must close.
    async fn with_graceful_shutdown<C: Future>(
        &self,
        connection: C,
        shut_down: fn(Pin<&mut C>),
    ) -> C::Output {
        let mut connection = pin!(connection);
        let mut shutdown_requested = false;
        poll_fn(|cx| {
            loop {
                let output = connection.as_mut().poll(cx);
                if output.is_ready() {
                    return output;
                }
                if self.after_poll() {
                    ready!(upshift::task::poll_piece(cx));
                    continue;
                }
                // Checked after the poll, which has taken the bytes that had arrived.
                if shutdown_requested || !self.should_close() {
                    return Poll::Pending;
                }
                shutdown_requested = true;
                shut_down(connection.as_mut());
            }
        })
        .await
    }

    fn http1(&self, limits: &Limits) -> http1::Builder {
        let mut builder = http1::Builder::new();
        let header_bytes = usize::try_from(limits.header_bytes).unwrap_or(usize::MAX);
        // The service checks the size of heads that fit into the buffer. `pipeline_flush` is off,
        // because with it hyper closes without sending its 400 when more bytes follow a malformed
        // head.
        builder
            .header_read_timeout(None)
            .max_buf_size(MAX_BUFFERED.max(header_bytes))
            .max_headers(limits.headers);
        builder
    }

    fn http2(&self, limits: &Limits, allowance: &Arc<Allowance>) -> http2::Builder<StreamSpawner> {
        let mut builder = http2::Builder::new(allowance.spawner());
        builder
            .timer(Clock)
            .max_concurrent_streams(limits.streams)
            .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX))
            .max_pending_accept_reset_streams(20)
            .max_local_error_reset_streams(128)
            .initial_stream_window_size(64 * 1024)
            .initial_connection_window_size(1 << 20)
            .max_send_buf_size(MAX_BUFFERED);
        builder
    }
}
