//! The life of a connection: its protocol, and its end.

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
use crate::connection::clocks::NEXT_REQUEST;
use crate::connection::conn::Conn;
use crate::connection::heads;
use crate::connection::observed::ObservedIo;
use crate::connection::transport::Transport;
use crate::request::service::Http;
use crate::server::shared::Live;
use crate::tls::TlsIo;

/// First bytes of an HTTP/2 client with prior knowledge.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes that a connection buffers of a response that its client does not read, and of a request's
/// body.
const BUFFERED: usize = 64 * 1024;
impl Conn {
    /// Serves a connection to its end.
    pub(crate) async fn serve(self: Arc<Conn>, mut io: Io, live: Arc<Live>) {
        if let Some(id) = upshift::get_cid() {
            let _ = self.coroutine.set(id);
        }
        let _ = self.queue.set(io.stream().send_queue());
        let limits = live.config.limits.clone();
        // The result concerns only hyper and the peer.
        if let Some(config) = live.sites.tls.as_ref().filter(|_| !self.plain) {
            let Some(Ok(first)) = self.or_end(io.peek(1, |_| true)).await else {
                return;
            };
            // A TLS record begins with its type, which is no letter.
            if first.first().is_some_and(u8::is_ascii_uppercase) {
                let _ = self.refuse_plain(io).await;
                return;
            }
            let Some(Ok(io)) = self.or_end(TlsIo::accept(io, config.clone())).await else {
                return;
            };
            drop(live);
            self.clocks.shook_hands();
            let two = io.chose_two();
            let _ = self.tls.set(io.facts());
            let _ = self.speak(io, two, &limits).await;
        } else {
            drop(live);
            let first = io.peek(PREFACE.len(), |bytes| !PREFACE.starts_with(bytes));
            let Some(Ok(first)) = self.or_end(first).await else {
                return;
            };
            let two = first.starts_with(PREFACE);
            let _ = self.speak(io, two, &limits).await;
        }
    }

    /// Tells a client of plain HTTP that it uses the wrong port.
    async fn refuse_plain(self: &Arc<Conn>, io: Io) -> io::Result<()> {
        let text = "this port speaks TLS: use https\n";
        let answer = heads::refusal(StatusCode::BAD_REQUEST, text);
        let mut io = ObservedIo::refused(io, self.clone(), answer);
        poll_fn(|cx| Pin::new(&mut io).poll_shutdown(cx)).await
    }

    /// Tells whether the connection is to end after the requests under way. A client of HTTP/1
    /// loses a request if its connection is closed while it sends; a client of HTTP/2 learns which
    /// of its requests are answered.
    fn ends(&self) -> bool {
        let shared = &self.shared;
        shared.is_draining()
            && (shared.closing.load(SeqCst) || self.clocks.has_rested(NEXT_REQUEST))
            && !self.clocks.is_within_head()
    }

    /// Returns the output of `future`, or `None` if the server drains first.
    async fn or_end<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        poll_fn(|cx| {
            if self.ends() {
                return Poll::Ready(None);
            }
            future.as_mut().poll(cx).map(Some)
        })
        .await
    }

    async fn speak<I>(self: &Arc<Conn>, io: I, two: bool, limits: &Limits) -> hyper::Result<()>
    where
        I: Transport + Send + 'static,
    {
        let service = Http::new(self.clone());
        let io = ObservedIo::new(io, self.clone(), two);
        let allowance = self.shared.receiving.open();
        if two {
            self.clocks.speaks_two();
            let builder = self.http2(limits, &allowance);
            let connection = builder.serve_connection(io, service);
            let told = self.tell(connection, |two| two.graceful_shutdown());
            return allowance.hold(told).await;
        }
        let connection = self.http1(limits).serve_connection(io, service);
        // An upgraded connection belongs to the service.
        let connection = connection.with_upgrades();
        let told = self.tell(connection, |one| one.graceful_shutdown());
        let end = allowance.hold(told).await;
        self.leave();
        end
    }

    /// Returns the output of `connection`, which is shut down gracefully, once, if the server
    /// drains first.
    async fn tell<C: Future>(&self, connection: C, shut_down: fn(Pin<&mut C>)) -> C::Output {
        let mut connection = pin!(connection);
        let mut told = false;
        poll_fn(|cx| {
            loop {
                let polled = connection.as_mut().poll(cx);
                if polled.is_ready() {
                    return polled;
                }
                if self.polled() {
                    ready!(upshift::task::poll_piece(cx));
                    continue;
                }
                // After the poll, which has taken the bytes that had arrived.
                if told || !self.ends() {
                    return Poll::Pending;
                }
                told = true;
                shut_down(connection.as_mut());
            }
        })
        .await
    }

    fn http1(&self, limits: &Limits) -> http1::Builder {
        let mut builder = http1::Builder::new();
        let header_bytes = usize::try_from(limits.header_bytes).unwrap_or(usize::MAX);
        // The service measures heads that fit into the buffer.
        //
        // Not `pipeline_flush`: with it hyper closes without sending its 400 when more bytes follow
        // a malformed head.
        builder
            .header_read_timeout(None)
            .max_buf_size(BUFFERED.max(header_bytes))
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
            .max_send_buf_size(BUFFERED);
        builder
    }
}
