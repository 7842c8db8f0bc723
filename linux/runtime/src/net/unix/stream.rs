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
    /// `NotFound`, `ConnectionRefused` when no process listens, …; also fails outside a runtime.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// # let path = std::env::temp_dir().join(format!("upshift-usock-{}", std::process::id()));
    /// use upshift::net::{UnixListener, UnixStream};
    ///
    /// let listener = UnixListener::bind(&path)?;
    /// let mut client = UnixStream::connect(&path).await?;
    /// let (mut server, _) = listener.accept().await?;
    /// client.write_all("hello").await.0?;
    /// assert_eq!(&server.recv().await?[..], b"hello");
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub async fn connect(path: impl AsRef<Path>) -> io::Result<UnixStream> {
        Self::connect_to(upshift_ring::Address::unix(path.as_ref())?).await
    }

    /// Connects like [`connect`](UnixStream::connect), to a path or an abstract name.
    ///
    /// # Errors
    /// The errors of [`connect`](UnixStream::connect).
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use std::os::linux::net::SocketAddrExt;
    /// use upshift::net::{UnixListener, UnixStream, unix::SocketAddr};
    ///
    /// // An abstract name has no file.
    /// let name = format!("upshift-connect-{}", std::process::id());
    /// let address = SocketAddr::from_abstract_name(&name)?;
    /// let _listener = UnixListener::bind_addr(&address)?;
    /// let client = UnixStream::connect_addr(&address).await?;
    /// assert_eq!(client.peer_addr()?.as_abstract_name(), Some(name.as_bytes()));
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub async fn connect_addr(address: &SocketAddr) -> io::Result<UnixStream> {
        Self::connect_to(address::to_ring(address)?).await
    }

    async fn connect_to(address: upshift_ring::Address) -> io::Result<UnixStream> {
        let fd = Descriptor::new(Socket::new(Domain::UNIX, Type::STREAM, None)?);
        start(op::Connect::new(fd.clone(), address))?.await?;
        Ok(UnixStream::new(fd))
    }

    /// Creates a pair of connected, unnamed sockets.
    ///
    /// # Errors
    /// When no descriptor is left.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let (mut one, mut other) = upshift::net::UnixStream::pair()?;
    /// let echo = upshift::task::spawn(async move {
    ///     let data = other.recv().await?;
    ///     other.write_all(data.to_vec()).await.0
    /// });
    /// one.write_all("ping").await.0?;
    /// assert_eq!(&one.recv().await?[..], b"ping");
    /// # echo.await??;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn pair() -> io::Result<(UnixStream, UnixStream)> {
        let (one, other) = Socket::pair(Domain::UNIX, Type::STREAM, None)?;
        let stream = |socket: Socket| UnixStream::from(OwnedFd::from(socket));
        Ok((stream(one), stream(other)))
    }

    /// Converts a connection of the standard library.
    ///
    /// # Errors
    /// If the socket cannot be put into blocking mode, which the ring needs.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::net::UnixStream;
    ///
    /// let (one, other) = std::os::unix::net::UnixStream::pair()?;
    /// let (mut one, mut other) = (UnixStream::from_std(one)?, UnixStream::from_std(other)?);
    /// one.write_all("hello").await.0?;
    /// assert_eq!(&other.recv().await?[..], b"hello");
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn from_std(stream: std::os::unix::net::UnixStream) -> io::Result<UnixStream> {
        stream.set_nonblocking(false)?;
        Ok(UnixStream::from(OwnedFd::from(stream)))
    }

    /// Returns the process and the user at the other end.
    ///
    /// # Errors
    /// The error of `getsockopt`.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let (one, _other) = upshift::net::UnixStream::pair()?;
    /// assert_eq!(one.peer_cred()?.pid(), Some(std::process::id() as i32));
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn peer_cred(&self) -> io::Result<UCred> {
        credentials::peer_credentials(self.as_fd())
    }

    /// Returns the address of this end.
    ///
    /// # Errors
    /// The error of `getsockname`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        address::from_socket2(&SockRef::from(self.fd()).local_addr()?)
    }

    /// Returns the address of the other end.
    ///
    /// # Errors
    /// `NotConnected`.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        address::from_socket2(&SockRef::from(self.fd()).peer_addr()?)
    }

    /// Returns the pending error of the socket, and clears it.
    ///
    /// # Errors
    /// The error of `getsockopt`.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        SockRef::from(self.fd()).take_error()
    }

    /// Shuts down one direction or both, for all users of the socket.
    ///
    /// # Errors
    /// `NotConnected`.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use std::net::Shutdown;
    ///
    /// let (mut one, mut other) = upshift::net::UnixStream::pair()?;
    /// one.shutdown(Shutdown::Write)?;
    /// assert!(other.recv().await?.is_empty()); // The end of one direction.
    /// other.write_all("an answer").await.0?;
    /// assert_eq!(&one.recv().await?[..], b"an answer");
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        SockRef::from(self.fd()).shutdown(how)
    }
}
