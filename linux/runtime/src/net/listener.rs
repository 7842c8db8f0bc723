//! A listening TCP socket.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use socket2::SockRef;

use super::acceptor::Acceptor;
use super::{TcpSocket, TcpStream};
use crate::io::Descriptor;

/// A listening TCP socket. Dropping the listener closes the socket and frees its address
/// ([closing](super#closing)).
///
/// ```no_run
/// # async fn example() -> std::io::Result<()> {
/// use upshift::{Priority, net::TcpListener};
///
/// let listener = TcpListener::bind("127.0.0.1:8080")?;
/// loop {
///     let (stream, peer) = listener.accept().await?;
///     upshift::spawn(async move { println!("{peer}"); drop(stream) }, Priority::Inherit).detach();
/// }
/// # }
/// ```
pub struct TcpListener {
    acceptor: Acceptor,
}

impl TcpListener {
    pub(crate) fn new(fd: impl Into<OwnedFd>) -> TcpListener {
        TcpListener {
            acceptor: Acceptor::new(fd),
        }
    }

    pub(crate) fn into_descriptor(self) -> Descriptor {
        self.acceptor.fd
    }

    /// Binds and listens, with `SO_REUSEADDR` and a backlog of 1024. Tries the addresses in order.
    /// For other options see [`TcpSocket`].
    ///
    /// `0.0.0.0` accepts IPv4 clients only. `[::]` accepts IPv6 and IPv4 clients, unless the
    /// administrator has set `net.ipv6.bindv6only`; [`TcpSocket::set_only_v6`] overrides this
    /// setting. At `[::]`, IPv4 clients have addresses such as `::ffff:127.0.0.1`.
    ///
    /// # Errors
    /// The error of the last address tried: `AddrInUse`, `PermissionDenied`, …
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::net::TcpListener;
    ///
    /// // Port 0 stands for any free port.
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let address = listener.local_addr()?;
    /// let error = TcpListener::bind(address).unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn bind(addresses: impl ToSocketAddrs) -> io::Result<TcpListener> {
        let mut last_error = io::Error::new(io::ErrorKind::InvalidInput, "no address to bind to");
        for address in addresses.to_socket_addrs()? {
            let listener = TcpSocket::for_address(address).and_then(|socket| {
                socket.set_reuseaddr(true)?;
                socket.bind(address)?;
                socket.listen(1024)
            });
            match listener {
                Ok(listener) => return Ok(listener),
                Err(error) => last_error = error,
            }
        }
        Err(last_error)
    }

    /// Converts a listener of the standard library.
    ///
    /// # Errors
    /// If the socket cannot be put into blocking mode, which the ring needs.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::net::TcpListener;
    ///
    /// let std = std::net::TcpListener::bind("127.0.0.1:0")?;
    /// let address = std.local_addr()?;
    /// assert_eq!(TcpListener::from_std(std)?.local_addr()?, address);
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn from_std(listener: std::net::TcpListener) -> io::Result<TcpListener> {
        listener.set_nonblocking(false)?;
        Ok(TcpListener::new(listener))
    }

    /// Accepts the next connection. Several coroutines may wait; the most urgent one is served
    /// first.
    ///
    /// # Cancellation safety
    /// The future may be dropped at any time without losing a connection.
    ///
    /// # Errors
    /// An error of the connection (`ConnectionAborted`) or of the process (`EMFILE`: raise
    /// `RLIMIT_NOFILE`); also fails outside a runtime. The next call accepts again, so wait a
    /// moment first, or close descriptors.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::net::{TcpListener, TcpStream};
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let client = TcpStream::connect(listener.local_addr()?).await?;
    /// let (_server, peer) = listener.accept().await?;
    /// assert_eq!(peer, client.local_addr()?);
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        loop {
            let stream = TcpStream::new(self.acceptor.accept().await?);
            match stream.peer_addr() {
                Ok(peer) => return Ok((stream, peer)),
                // The peer has already closed the connection.
                Err(error) if error.kind() == io::ErrorKind::NotConnected => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the address of the listener.
    ///
    /// # Errors
    /// The error of `getsockname`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        super::options::address(SockRef::from(&self.acceptor.fd).local_addr()?)
    }
}

impl AsFd for TcpListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.acceptor.fd.as_fd()
    }
}

impl fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TcpListener")
            .field(&self.acceptor.fd)
            .finish()
    }
}
