//! Handshakes, and the connection after them.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ServerConfig};

use crate::io::{Sink, Source, impl_read, impl_write};

/// The server's side of the handshake.
#[derive(Clone)]
pub struct Acceptor {
    inner: tokio_rustls::TlsAcceptor,
}

impl Acceptor {
    /// Creates an acceptor with a configuration, for instance one of
    /// [`server_config`](super::server_config).
    #[must_use]
    pub fn new(config: impl Into<Arc<ServerConfig>>) -> Acceptor {
        Acceptor {
            inner: tokio_rustls::TlsAcceptor::from(config.into()),
        }
    }

    /// Performs the handshake with a client.
    ///
    /// # Cancellation safety
    /// A dropped future closes the connection.
    ///
    /// # Errors
    /// `InvalidData` for a client that does not speak TLS, `UnexpectedEof` for a client that closes
    /// the connection, and the errors of the stream.
    pub async fn accept<S>(&self, stream: S) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        self.inner.accept(stream).await.map(|inner| TlsStream {
            inner: inner.into(),
        })
    }
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acceptor").finish_non_exhaustive()
    }
}

/// The client's side of the handshake.
#[derive(Clone)]
pub struct Connector {
    inner: tokio_rustls::TlsConnector,
}

impl Connector {
    /// Creates a connector with a configuration, for instance one of
    /// [`client_config`](super::client_config).
    #[must_use]
    pub fn new(config: impl Into<Arc<ClientConfig>>) -> Connector {
        Connector {
            inner: tokio_rustls::TlsConnector::from(config.into()),
        }
    }

    /// Performs the handshake with a server, whose certificate must be for `host` (a name or an IP
    /// address, without a port).
    ///
    /// # Cancellation safety
    /// A dropped future closes the connection.
    ///
    /// # Errors
    /// `InvalidInput` if `host` is neither a name nor an IP address; `InvalidData` if the
    /// certificate is not trusted; the errors of the stream.
    pub async fn connect<S>(&self, host: &str, stream: S) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let name = ServerName::try_from(host.to_owned()).map_err(|_| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{host:?} is neither a host name nor an IP address"),
            )
        })?;
        self.inner
            .connect(name, stream)
            .await
            .map(|inner| TlsStream {
                inner: inner.into(),
            })
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").finish_non_exhaustive()
    }
}

/// An encrypted connection over the stream `S`.
///
/// A write is reported as done when it is encrypted; flush to send it. A close tells the peer that
/// no more data follows; an end without a close is `UnexpectedEof`, because the connection may have
/// been cut off.
pub struct TlsStream<S> {
    inner: tokio_rustls::TlsStream<S>,
}

impl<S> TlsStream<S> {
    /// Returns the stream beneath, for its options.
    #[must_use]
    pub fn get_ref(&self) -> &S {
        self.inner.get_ref().0
    }

    /// Returns the protocol that both sides have agreed upon (ALPN), for instance `h2`.
    #[must_use]
    pub fn alpn_protocol(&self) -> Option<&[u8]> {
        self.inner.get_ref().1.alpn_protocol()
    }

    /// Returns the certificates that the other side has presented, beginning with the certificate
    /// of that side itself.
    #[must_use]
    pub fn peer_certificates(&self) -> Option<&[CertificateDer<'static>]> {
        self.inner.get_ref().1.peer_certificates()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Source for TlsStream<S> {
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        Pin::new(&mut self.inner).poll_fill_buf(cx)
    }

    fn consume(&mut self, count: usize) {
        Pin::new(&mut self.inner).consume(count);
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Sink for TlsStream<S> {
    const VECTORED: bool = true;

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        &mut self,
        cx: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, buffers)
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

impl_read!(for [S: AsyncRead + AsyncWrite + Unpin] TlsStream<S>);
impl_write!(for [S: AsyncRead + AsyncWrite + Unpin] TlsStream<S>);

impl<S> fmt::Debug for TlsStream<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = self.inner.get_ref().1.protocol_version();
        f.debug_struct("TlsStream")
            .field("version", &version)
            .finish_non_exhaustive()
    }
}
