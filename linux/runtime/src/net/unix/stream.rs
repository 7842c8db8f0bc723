//! A Unix stream connection and its halves.

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::path::Path;
use std::task::{Context, Poll};

use socket2::{Domain, SockRef, Socket, Type};
use upshift_ring::op;

use super::credentials::{self, UCred};
use super::{SocketAddr, address};
use crate::net::connection::connection;
use crate::net::start;

connection! {
    /// A connection over a Unix socket.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::net::UnixStream;
    ///
    /// let (mut one, mut other) = UnixStream::pair()?;
    /// one.write_all("hello").await.0?;
    /// assert_eq!(&other.recv().await?[..], b"hello");
    /// assert_eq!(other.peer_cred()?.pid(), Some(std::process::id() as i32));
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    UnixStream, Unix
}

impl UnixStream {
    #[cfg(feature = "hyper")]
    pub(crate) fn into_parts(self) -> (Reader, Writer) {
        (self.reader, self.writer)
    }

    /// Connects to the socket at a path.
    ///
    /// # Cancellation safety
    /// If the future is dropped, the attempt is cancelled and its socket closed.
    ///
    /// # Errors
    /// `NotFound`, `ConnectionRefused` when no process listens, …; and outside a runtime.
    pub async fn connect(path: impl AsRef<Path>) -> io::Result<UnixStream> {
        Self::connect_to(upshift_ring::Address::unix(path.as_ref())?).await
    }

    /// [`connect`](UnixStream::connect) to a path or an abstract name.
    ///
    /// # Errors
    /// The errors of [`connect`](UnixStream::connect).
    pub async fn connect_addr(address: &SocketAddr) -> io::Result<UnixStream> {
        Self::connect_to(address::for_ring(address)?).await
    }

    async fn connect_to(address: upshift_ring::Address) -> io::Result<UnixStream> {
        let fd = Descriptor::new(Socket::new(Domain::UNIX, Type::STREAM, None)?);
        start(op::Connect::new(fd.clone(), address))?.await?;
        Ok(UnixStream::new(fd))
    }

    /// Creates both ends of a connection without a name.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn pair() -> io::Result<(UnixStream, UnixStream)> {
        let (one, other) = Socket::pair(Domain::UNIX, Type::STREAM, None)?;
        let stream = |socket: Socket| UnixStream::from(OwnedFd::from(socket));
        Ok((stream(one), stream(other)))
    }

    /// Converts a connection of the standard library.
    ///
    /// # Errors
    /// If the socket cannot be put into blocking mode, which the ring needs.
    pub fn from_std(stream: std::os::unix::net::UnixStream) -> io::Result<UnixStream> {
        stream.set_nonblocking(false)?;
        Ok(UnixStream::from(OwnedFd::from(stream)))
    }

    /// Returns the process and the user at the other end.
    ///
    /// # Errors
    /// The error of `getsockopt`.
    pub fn peer_cred(&self) -> io::Result<UCred> {
        credentials::peer_credentials(self.as_fd())
    }

    /// Returns the address of this end.
    ///
    /// # Errors
    /// The error of `getsockname`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        address::from_call(&SockRef::from(self.fd()).local_addr()?)
    }

    /// Returns the address of the other end.
    ///
    /// # Errors
    /// `NotConnected`.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        address::from_call(&SockRef::from(self.fd()).peer_addr()?)
    }

    /// Returns the pending error of the socket, and clears it.
    ///
    /// # Errors
    /// The error of `getsockopt`.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        SockRef::from(self.fd()).take_error()
    }

    /// Ends one direction or both, for all users of the socket.
    ///
    /// # Errors
    /// `NotConnected`.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        SockRef::from(self.fd()).shutdown(how)
    }
}
