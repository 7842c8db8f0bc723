//! A listening Unix socket.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::Path;

use socket2::SockRef;

use super::{SocketAddr, UnixStream, address};
use crate::io::Descriptor;
use crate::net::acceptor::Acceptor;

/// A listening Unix socket.
///
/// Dropping the listener closes the socket ([closing](crate::net#closing)). The file of a path
/// stays; remove it before the next listener binds, or use an abstract name.
///
/// ```no_run
/// # async fn example() -> std::io::Result<()> {
/// let listener = upshift::net::UnixListener::bind("/run/example.sock")?;
/// let (stream, _) = listener.accept().await?;
/// println!("{:?}", stream.peer_cred()?);
/// # Ok(()) }
/// ```
pub struct UnixListener {
    acceptor: Acceptor,
}

impl UnixListener {
    fn new(listener: std::os::unix::net::UnixListener) -> UnixListener {
        UnixListener {
            acceptor: Acceptor::new(listener),
        }
    }

    pub(crate) fn into_descriptor(self) -> Descriptor {
        self.acceptor.fd
    }

    /// Binds to a path and listens.
    ///
    /// # Errors
    /// `AddrInUse` if there is a file, `PermissionDenied`, …
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// # let path = std::env::temp_dir().join(format!("upshift-ubind-{}", std::process::id()));
    /// use upshift::net::UnixListener;
    ///
    /// let listener = UnixListener::bind(&path)?;
    /// assert_eq!(listener.local_addr()?.as_pathname(), Some(path.as_path()));
    /// drop(listener);
    /// assert!(UnixListener::bind(&path).is_err()); // The file is still there.
    /// std::fs::remove_file(&path)?;
    /// let _listener = UnixListener::bind(&path)?;
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn bind(path: impl AsRef<Path>) -> io::Result<UnixListener> {
        std::os::unix::net::UnixListener::bind(path).map(UnixListener::new)
    }

    /// Binds to a path or an abstract name and listens.
    ///
    /// # Errors
    /// The errors of [`bind`](UnixListener::bind).
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use std::os::linux::net::SocketAddrExt;
    /// use upshift::net::{UnixListener, unix::SocketAddr};
    ///
    /// // An abstract name has no file, and is free again when the listener is dropped.
    /// let name = format!("upshift-bind-{}", std::process::id());
    /// let address = SocketAddr::from_abstract_name(&name)?;
    /// let listener = UnixListener::bind_addr(&address)?;
    /// assert_eq!(listener.local_addr()?.as_abstract_name(), Some(name.as_bytes()));
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn bind_addr(address: &SocketAddr) -> io::Result<UnixListener> {
        std::os::unix::net::UnixListener::bind_addr(address).map(UnixListener::new)
    }

    /// Converts a listener of the standard library.
    ///
    /// # Errors
    /// If the socket cannot be put into blocking mode, which the ring needs.
    pub fn from_std(listener: std::os::unix::net::UnixListener) -> io::Result<UnixListener> {
        listener.set_nonblocking(false)?;
        Ok(UnixListener::new(listener))
    }

    /// Accepts the next connection. Several coroutines may wait; the most urgent one is served
    /// first.
    ///
    /// # Cancellation safety
    /// The future may be dropped at any time without losing a connection.
    ///
    /// # Errors
    /// The errors of [`TcpListener::accept`](crate::net::TcpListener::accept).
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// # let path = std::env::temp_dir().join(format!("upshift-uaccept-{}", std::process::id()));
    /// use upshift::net::{UnixListener, UnixStream};
    ///
    /// let listener = UnixListener::bind(&path)?;
    /// let _client = UnixStream::connect(&path).await?;
    /// let (server, from) = listener.accept().await?;
    /// assert!(from.is_unnamed()); // Most clients have no name, but all have credentials.
    /// assert_eq!(server.peer_cred()?.pid(), Some(std::process::id() as i32));
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub async fn accept(&self) -> io::Result<(UnixStream, SocketAddr)> {
        let stream = UnixStream::new(self.acceptor.accept().await?);
        let peer = stream.peer_addr()?;
        Ok((stream, peer))
    }

    /// Returns the address of the listener.
    ///
    /// # Errors
    /// The error of `getsockname`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        address::from_socket2(&SockRef::from(&self.acceptor.fd).local_addr()?)
    }
}

impl AsFd for UnixListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.acceptor.fd.as_fd()
    }
}

impl AsRawFd for UnixListener {
    fn as_raw_fd(&self) -> RawFd {
        self.acceptor.fd.as_raw_fd()
    }
}

impl fmt::Debug for UnixListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("UnixListener")
            .field(&self.acceptor.fd)
            .finish()
    }
}
