//! Unix datagram sockets.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::Path;

use socket2::SockRef;

use super::{SocketAddr, address};
use crate::io::Descriptor;
use crate::net::datagram;

/// A Unix datagram socket, which transfers whole messages in order and loses none. Its calls take
/// `&self`.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let (one, other) = upshift::net::UnixDatagram::pair()?;
/// one.send(b"a message").await?;
/// let mut buffer = [0; 64];
/// assert_eq!(other.recv(&mut buffer).await?, 9);
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
pub struct UnixDatagram {
    fd: Descriptor,
}

impl UnixDatagram {
    fn new(socket: std::os::unix::net::UnixDatagram) -> UnixDatagram {
        UnixDatagram {
            fd: Descriptor::new(socket),
        }
    }

    pub(crate) fn into_descriptor(self) -> Descriptor {
        self.fd
    }

    /// Creates a socket and binds it to a path. The file stays when the socket is dropped.
    ///
    /// # Errors
    /// `AddrInUse` if there is a file, `PermissionDenied`, …
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// # let path = std::env::temp_dir().join(format!("upshift-udgram-{}", std::process::id()));
    /// use upshift::net::UnixDatagram;
    ///
    /// let server = UnixDatagram::bind(&path)?;
    /// UnixDatagram::unbound()?.send_to(b"a message", &path).await?;
    /// let mut buffer = [0; 64];
    /// assert_eq!(server.recv(&mut buffer).await?, 9);
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn bind(path: impl AsRef<Path>) -> io::Result<UnixDatagram> {
        std::os::unix::net::UnixDatagram::bind(path).map(UnixDatagram::new)
    }

    /// Creates a socket and binds it to a path or an abstract name.
    ///
    /// # Errors
    /// The errors of [`bind`](UnixDatagram::bind).
    pub fn bind_addr(address: &SocketAddr) -> io::Result<UnixDatagram> {
        std::os::unix::net::UnixDatagram::bind_addr(address).map(UnixDatagram::new)
    }

    /// Creates a socket without a name, which can send, but which no answer can reach.
    ///
    /// # Errors
    /// When no descriptor is left.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let socket = upshift::net::UnixDatagram::unbound()?;
    /// assert!(socket.local_addr()?.is_unnamed());
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn unbound() -> io::Result<UnixDatagram> {
        std::os::unix::net::UnixDatagram::unbound().map(UnixDatagram::new)
    }

    /// Creates two sockets that are connected to each other.
    ///
    /// # Errors
    /// When no descriptor is left.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let (one, other) = upshift::net::UnixDatagram::pair()?;
    /// one.send(b"first").await?;
    /// one.send(b"second").await?;
    /// let mut buffer = [0; 64];
    /// assert_eq!(other.recv(&mut buffer).await?, 5);
    /// assert_eq!(other.recv(&mut buffer).await?, 6);
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn pair() -> io::Result<(UnixDatagram, UnixDatagram)> {
        let (one, other) = std::os::unix::net::UnixDatagram::pair()?;
        Ok((UnixDatagram::new(one), UnixDatagram::new(other)))
    }

    /// Converts a socket of the standard library.
    ///
    /// # Errors
    /// If the socket cannot be put into blocking mode, which the ring needs.
    pub fn from_std(socket: std::os::unix::net::UnixDatagram) -> io::Result<UnixDatagram> {
        socket.set_nonblocking(false)?;
        Ok(UnixDatagram::new(socket))
    }

    /// Sets the peer of [`send`](UnixDatagram::send).
    ///
    /// # Errors
    /// `NotFound`, `ConnectionRefused`, …
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// # let path = std::env::temp_dir().join(format!("upshift-dconnect-{}", std::process::id()));
    /// use upshift::net::UnixDatagram;
    ///
    /// let server = UnixDatagram::bind(&path)?;
    /// let client = UnixDatagram::unbound()?;
    /// client.connect(&path)?;
    /// client.send(b"a message").await?;
    /// let mut buffer = [0; 64];
    /// assert_eq!(server.recv(&mut buffer).await?, 9);
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn connect(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.connect_addr(&SocketAddr::from_pathname(path)?)
    }

    /// Sets the peer, by path or abstract name.
    ///
    /// # Errors
    /// The errors of [`connect`](UnixDatagram::connect).
    pub fn connect_addr(&self, address: &SocketAddr) -> io::Result<()> {
        SockRef::from(&self.fd).connect(&address::to_socket2(address)?)
    }

    /// Sends one message to the peer, waiting while the peer's queue is full.
    ///
    /// # Cancellation safety
    /// If the future is dropped before it is ready, the message has not been sent.
    ///
    /// # Errors
    /// `NotConnected`, `ConnectionRefused` when the peer is closed, EMSGSIZE if the message is
    /// too long.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::net::UnixDatagram;
    ///
    /// let (one, _other) = UnixDatagram::pair()?;
    /// assert_eq!(one.send(b"a message").await?, 9);
    /// assert!(UnixDatagram::unbound()?.send(b"to whom?").await.is_err());
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub async fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        datagram::send(&self.fd, bytes).await
    }

    /// Sends one message to the socket at a path. While the receiver's queue is full, tries again
    /// every few milliseconds. ([`send`](UnixDatagram::send) is woken when there is room.)
    ///
    /// # Cancellation safety
    /// If the future is dropped before it is ready, the message has not been sent.
    ///
    /// # Errors
    /// `NotFound`, `ConnectionRefused`, EMSGSIZE, …
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// # let path = std::env::temp_dir().join(format!("upshift-sendto-{}", std::process::id()));
    /// use upshift::net::UnixDatagram;
    ///
    /// let server = UnixDatagram::bind(&path)?;
    /// let client = UnixDatagram::unbound()?;
    /// assert_eq!(client.send_to(b"a message", &path).await?, 9);
    /// let mut buffer = [0; 64];
    /// assert_eq!(server.recv(&mut buffer).await?, 9);
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub async fn send_to(&self, bytes: &[u8], path: impl AsRef<Path>) -> io::Result<usize> {
        let to = SocketAddr::from_pathname(path)?;
        self.send_to_addr(bytes, &to).await
    }

    /// Sends like [`send_to`](UnixDatagram::send_to), to a path or an abstract name.
    ///
    /// # Errors
    /// The errors of [`send_to`](UnixDatagram::send_to).
    pub async fn send_to_addr(&self, bytes: &[u8], to: &SocketAddr) -> io::Result<usize> {
        datagram::send_to_queue(&self.fd, bytes, &address::to_socket2(to)?).await
    }

    /// Receives one message. Bytes that do not fit into `buffer` are lost.
    ///
    /// # Cancellation safety
    /// The future may be dropped at any time without losing a message.
    ///
    /// # Errors
    /// The error of `recv`; also fails outside a runtime.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let (one, other) = upshift::net::UnixDatagram::pair()?;
    /// one.send(b"too long").await?;
    /// let mut buffer = [0; 4];
    /// assert_eq!(other.recv(&mut buffer).await?, 4);
    /// assert_eq!(&buffer, b"too "); // The rest is lost.
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub async fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        datagram::recv(&self.fd, buffer, 0).await
    }

    /// Receives like [`recv`](UnixDatagram::recv), and returns the sender, too.
    ///
    /// # Errors
    /// The errors of [`recv`](UnixDatagram::recv).
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// # let dir = std::env::temp_dir().join(format!("upshift-recvfrom-{}", std::process::id()));
    /// # std::fs::create_dir(&dir)?;
    /// use upshift::net::UnixDatagram;
    ///
    /// let server = UnixDatagram::bind(dir.join("server"))?;
    /// let client = UnixDatagram::bind(dir.join("client"))?;
    /// client.send_to(b"ping", dir.join("server")).await?;
    /// let mut buffer = [0; 64];
    /// let (count, from) = server.recv_from(&mut buffer).await?;
    /// server.send_to_addr(&buffer[..count], &from).await?; // An echo.
    /// assert_eq!(client.recv(&mut buffer).await?, 4);
    /// # std::fs::remove_dir_all(&dir)?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let (count, from) = datagram::recv_from(&self.fd, buffer, 0).await?;
        Ok((count, address::from_socket2(&from)?))
    }

    /// Returns the address to which the socket is bound.
    ///
    /// # Errors
    /// The error of `getsockname`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        address::from_socket2(&SockRef::from(&self.fd).local_addr()?)
    }

    /// Returns the address of the peer.
    ///
    /// # Errors
    /// `NotConnected`.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        address::from_socket2(&SockRef::from(&self.fd).peer_addr()?)
    }
}

impl AsFd for UnixDatagram {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for UnixDatagram {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl fmt::Debug for UnixDatagram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("UnixDatagram").field(&self.fd).finish()
    }
}
