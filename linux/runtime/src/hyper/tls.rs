//! Carries HTTP over TLS, for the server.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use ::hyper::rt::{Read, ReadBufCursor, Write};

use super::Io;
use super::listener::{Listener, Sealed, Transport};
use crate::coroutine::coop;
use crate::io::{Sink, Source};
use crate::net::TcpListener;
use crate::tls::rustls::ServerConfig;
use crate::tls::{Acceptor, TlsStream};

/// A TCP listener whose clients speak TLS, for [`Server`](super::Server) and
/// `upshift::axum::serve`. Features `hyper` and `tls`.
///
/// Each connection's coroutine performs the handshake, at the level of receiving and within the
/// server's time limit for heads. The CPU time of the handshake, mostly a signature by the server's
/// key, does not count towards the connection's [`Allowance`](super::Allowance).
///
/// ```no_run
/// # async fn example(app: axum::Router) -> std::io::Result<()> {
/// use upshift::{hyper::{Server, TlsListener}, net::TcpListener, tls};
///
/// let config = tls::load_server_config("chain.pem", "key.pem").await?;
/// let listener = TlsListener::new(TcpListener::bind("0.0.0.0:443")?, config);
/// Server::new(listener).run(app).await
/// # }
/// ```
pub struct TlsListener {
    listener: TcpListener,
    acceptor: Acceptor,
}

impl TlsListener {
    /// Combines a listener and a configuration, such as one of
    /// [`server_config`](crate::tls::server_config). A configuration that names no protocol (ALPN)
    /// gets HTTP/2 and HTTP/1.1.
    #[must_use]
    pub fn new(listener: TcpListener, config: impl Into<Arc<ServerConfig>>) -> TlsListener {
        let mut config = config.into();
        if config.alpn_protocols.is_empty() {
            let protocols = [&b"h2"[..], b"http/1.1"];
            Arc::make_mut(&mut config).alpn_protocols = protocols.map(<[u8]>::to_vec).into();
        }
        TlsListener {
            listener,
            acceptor: Acceptor::new(config),
        }
    }
}

impl Sealed for TlsListener {}

impl Listener for TlsListener {
    type Io = TlsStream<Io>;
    type Addr = SocketAddr;
    type Handshake = Pin<Box<dyn Future<Output = io::Result<TlsStream<Io>>> + Send>>;
    type Transport = TlsIo;

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    async fn accept(&self) -> io::Result<(Self::Handshake, SocketAddr)> {
        let (stream, peer) = Listener::accept(&self.listener).await?;
        let acceptor = self.acceptor.clone();
        let handshake = async move { acceptor.accept(Io::new(stream.await?)).await };
        Ok((Box::pin(handshake), peer))
    }

    fn transport(stream: TlsStream<Io>) -> TlsIo {
        TlsIo {
            stream,
            last_read_poll: 0,
            max_read: usize::MAX,
        }
    }
}

impl fmt::Debug for TlsListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TlsListener").field(&self.listener).finish()
    }
}

/// A [`TlsStream`] with hyper's I/O traits.
pub struct TlsIo {
    stream: TlsStream<Io>,
    /// Beginning of the poll in which the connection was last read.
    last_read_poll: u64,
    max_read: usize,
}

impl Transport for TlsIo {
    async fn is_http2(&mut self) -> io::Result<bool> {
        Ok(self.stream.alpn_protocol() == Some(b"h2"))
    }

    fn set_max_read(&mut self, bytes: usize) {
        self.max_read = bytes;
    }
}

impl Read for TlsIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(coop::poll_next_piece(cx, &mut self.last_read_poll));
        let max = buf.remaining().min(self.max_read);
        let data = ready!(self.stream.poll_fill(cx))?;
        let count = data.len().min(max);
        buf.put_slice(&data[..count]);
        self.stream.consume(count);
        Poll::Ready(Ok(()))
    }
}

impl Write for TlsIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream.poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream.poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.poll_close(cx)
    }
}
