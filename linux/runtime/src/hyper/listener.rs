//! Listening sockets of the HTTP server.
//!
//! A listener accepts without reading from its clients, so that no client delays another client.
//! The coroutine of a connection then performs the handshake, if there is one, and determines the
//! version of HTTP: by the preface on plain sockets, by ALPN under TLS.

use std::fmt;
use std::future::{Future, Ready, ready};
use std::io;
use std::net::SocketAddr;

use ::hyper::rt::{Read, Write};

use super::Io;
use crate::net::unix::SocketAddr as UnixAddr;
use crate::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// First bytes that an HTTP/2 client with prior knowledge sends.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A listening socket for [`Server`](super::Server): [`TcpListener`], [`UnixListener`], or
/// `TlsListener` (feature `tls`). No other type can implement it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a listener of upshift",
    note = "use `upshift::net::TcpListener::bind(address)?`, which is not a future, or `from_std` with a listener of the standard library"
)]
pub trait Listener: Sealed + Send + Sync + Sized + 'static {
    /// A connection, as [`IncomingStream::io`] returns it.
    type Io: Send + Sync + 'static;

    /// The address of a client.
    type Addr: Send + 'static;

    /// The handshake that precedes HTTP.
    #[doc(hidden)]
    type Handshake: Future<Output = io::Result<Self::Io>> + Send + 'static;

    /// The byte stream below HTTP.
    #[doc(hidden)]
    type Transport: Transport;

    /// Returns the address that the socket listens on.
    ///
    /// # Errors
    /// The errors of `getsockname`.
    fn local_addr(&self) -> io::Result<Self::Addr>;

    #[doc(hidden)]
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Handshake, Self::Addr)>> + Send;

    #[doc(hidden)]
    fn transport(io: Self::Io) -> Self::Transport;
}

/// Restricts [`Listener`] to the types of this crate.
pub trait Sealed {}

/// The byte stream below HTTP.
pub trait Transport: Read + Write + Unpin + Send + 'static {
    /// Returns whether the client speaks HTTP/2.
    fn is_http2(&mut self) -> impl Future<Output = io::Result<bool>> + Send;

    /// Limits the bytes of each read. A frame of HTTP/2 may have only 9 bytes, so a large read may
    /// cause a long poll.
    fn set_max_read(&mut self, bytes: usize);
}

impl Transport for Io {
    async fn is_http2(&mut self) -> io::Result<bool> {
        let peek = self.peek(PREFACE.len(), |bytes| !PREFACE.starts_with(bytes));
        Ok(peek.await?.starts_with(PREFACE))
    }

    fn set_max_read(&mut self, bytes: usize) {
        Io::set_max_read(self, bytes);
    }
}

impl Sealed for TcpListener {}

impl Listener for TcpListener {
    type Io = TcpStream;
    type Addr = SocketAddr;
    type Handshake = Ready<io::Result<TcpStream>>;
    type Transport = Io;

    fn local_addr(&self) -> io::Result<SocketAddr> {
        TcpListener::local_addr(self)
    }

    async fn accept(&self) -> io::Result<(Self::Handshake, SocketAddr)> {
        let (stream, peer) = TcpListener::accept(self).await?;
        // The peer may be gone already.
        let _ = stream.set_nodelay(true);
        Ok((ready(Ok(stream)), peer))
    }

    fn transport(stream: TcpStream) -> Io {
        Io::new(stream)
    }
}

impl Sealed for UnixListener {}

impl Listener for UnixListener {
    type Io = UnixStream;
    type Addr = UnixAddr;
    type Handshake = Ready<io::Result<UnixStream>>;
    type Transport = Io;

    fn local_addr(&self) -> io::Result<UnixAddr> {
        UnixListener::local_addr(self)
    }

    async fn accept(&self) -> io::Result<(Self::Handshake, UnixAddr)> {
        let (stream, peer) = UnixListener::accept(self).await?;
        Ok((ready(Ok(stream)), peer))
    }

    fn transport(stream: UnixStream) -> Io {
        Io::from(stream)
    }
}

/// A new connection, as passed to the function or service that makes the service of the connection.
///
/// It corresponds to axum's `serve::IncomingStream`, with this runtime's sockets.
pub struct IncomingStream<'a, L: Listener> {
    io: &'a L::Io,
    remote_addr: L::Addr,
}

impl<'a, L: Listener> IncomingStream<'a, L> {
    pub(super) fn new(io: &'a L::Io, remote_addr: L::Addr) -> IncomingStream<'a, L> {
        IncomingStream { io, remote_addr }
    }

    /// Returns the connection: a [`TcpStream`], a [`UnixStream`], or a `TlsStream` after its
    /// handshake.
    #[must_use]
    pub fn io(&self) -> &L::Io {
        self.io
    }

    /// Returns the client's address.
    #[must_use]
    pub fn remote_addr(&self) -> &L::Addr {
        &self.remote_addr
    }
}

impl<L: Listener<Io: fmt::Debug, Addr: fmt::Debug>> fmt::Debug for IncomingStream<'_, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IncomingStream")
            .field("io", &self.io)
            .field("remote_addr", &self.remote_addr)
            .finish()
    }
}
