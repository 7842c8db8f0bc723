//! UDP sockets.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use socket2::{SockAddr, SockRef};
use upshift_ring::RecvBuf;

use super::datagram::{self, DatagramReceiver};
use super::options::address;
use super::resolve::{ToSocketAddrs, resolve};
use crate::io::Descriptor;

/// A UDP socket. Its calls take `&self`, so share the socket in an `Arc`, or borrow it. Dropping a
/// `UdpSocket` closes the socket and frees its address ([closing](super#closing)).
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// use upshift::net::UdpSocket;
///
/// let server = UdpSocket::bind("127.0.0.1:0")?;
/// let client = UdpSocket::bind("127.0.0.1:0")?;
/// client.send_to(b"ping", server.local_addr()?).await?;
///
/// let mut buffer = [0; 1500];
/// let (count, from) = server.recv_from(&mut buffer).await?;
/// assert_eq!((&buffer[..count], from), (&b"ping"[..], client.local_addr()?));
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
///
/// A server that receives many datagrams should use [`datagrams`](UdpSocket::datagrams), which
/// needs one operation for all datagrams, and no copy.
pub struct UdpSocket {
    fd: Descriptor,
}

impl UdpSocket {
    /// Creates a socket and binds it to the first of the addresses that can be bound.
    ///
    /// # Errors
    /// The error of the last address tried: `AddrInUse`, `PermissionDenied`, …
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::net::UdpSocket;
    ///
    /// // Port 0 stands for any free port.
    /// let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// assert_ne!(socket.local_addr()?.port(), 0);
    /// assert!(UdpSocket::bind(socket.local_addr()?).is_err()); // The address is taken.
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn bind(addresses: impl std::net::ToSocketAddrs) -> io::Result<UdpSocket> {
        std::net::UdpSocket::bind(addresses).map(|socket| UdpSocket {
            fd: Descriptor::new(socket),
        })
    }

    /// Converts a socket of the standard library (or, through it, a socket that was created with
    /// `socket2` for an option that must be set before the socket is bound).
    ///
    /// # Errors
    /// If the socket cannot be put into blocking mode, which the ring needs.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::net::UdpSocket;
    ///
    /// let std = std::net::UdpSocket::bind("127.0.0.1:0")?;
    /// let address = std.local_addr()?;
    /// assert_eq!(UdpSocket::from_std(std)?.local_addr()?, address);
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn from_std(socket: std::net::UdpSocket) -> io::Result<UdpSocket> {
        socket.set_nonblocking(false)?;
        Ok(UdpSocket {
            fd: Descriptor::new(socket),
        })
    }

    pub(crate) fn into_descriptor(self) -> Descriptor {
        self.fd
    }

    fn socket(&self) -> SockRef<'_> {
        SockRef::from(&self.fd)
    }

    /// Sets the peer, to which [`send`](UdpSocket::send) sends. From then on, only datagrams of the
    /// peer are received. Tries the addresses in order.
    ///
    /// # Cancellation safety
    /// The future waits only for the lookup of a name; if it is dropped, no peer is set.
    ///
    /// # Errors
    /// The error of the last address tried, or of the lookup.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::net::UdpSocket;
    ///
    /// let server = UdpSocket::bind("127.0.0.1:0")?;
    /// let client = UdpSocket::bind("127.0.0.1:0")?;
    /// client.connect(server.local_addr()?).await?;
    /// client.send(b"ping").await?;
    /// let mut buffer = [0; 16];
    /// assert_eq!(server.recv(&mut buffer).await?, 4);
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub async fn connect(&self, addresses: impl ToSocketAddrs) -> io::Result<()> {
        let mut last_error =
            io::Error::new(io::ErrorKind::InvalidInput, "no address to connect to");
        for address in resolve(addresses).await? {
            match self.socket().connect(&SockAddr::from(address)) {
                Ok(()) => return Ok(()),
                Err(error) => last_error = error,
            }
        }
        Err(last_error)
    }

    /// Sends one datagram to the peer set by [`connect`](UdpSocket::connect).
    ///
    /// # Cancellation safety
    /// If the future is dropped before it is ready, the datagram has not been sent.
    ///
    /// # Errors
    /// `NotConnected`; `ConnectionRefused` if an earlier datagram found no socket at the peer's
    /// address; EMSGSIZE if `bytes` is too long.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::net::UdpSocket;
    ///
    /// let (one, other) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    /// assert!(one.send(b"to whom?").await.is_err()); // No peer is set yet.
    /// one.connect(other.local_addr()?).await?;
    /// assert_eq!(one.send(b"ping").await?, 4);
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub async fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        datagram::send(&self.fd, bytes).await
    }

    /// Sends one datagram to the first of the addresses.
    ///
    /// # Cancellation safety
    /// If the future is dropped before it is ready, the datagram has not been sent.
    ///
    /// # Errors
    /// EMSGSIZE if `bytes` is too long; other errors of `sendto`; the error of the lookup.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::net::UdpSocket;
    ///
    /// let (one, other) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    /// assert_eq!(one.send_to(b"ping", other.local_addr()?).await?, 4);
    /// let mut buffer = [0; 16];
    /// assert_eq!(other.recv(&mut buffer).await?, 4);
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub async fn send_to(&self, bytes: &[u8], to: impl ToSocketAddrs) -> io::Result<usize> {
        let Some(to) = resolve(to).await?.first().copied() else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "no address to send to",
            ));
        };
        datagram::send_to(&self.fd, bytes, &SockAddr::from(to)).await
    }

    /// Receives one datagram of the peer. Bytes that do not fit into `buffer` are lost.
    ///
    /// # Cancellation safety
    /// The future may be dropped at any time without losing a datagram.
    ///
    /// # Errors
    /// `ConnectionRefused` if an earlier datagram found no socket at the peer's address; also fails
    /// outside a runtime.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::net::UdpSocket;
    ///
    /// let (one, other) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    /// one.send_to(b"too long", other.local_addr()?).await?;
    /// one.send_to(b"next", other.local_addr()?).await?;
    /// let mut buffer = [0; 4];
    /// assert_eq!(other.recv(&mut buffer).await?, 4);
    /// assert_eq!(&buffer, b"too "); // The rest is lost.
    /// other.recv(&mut buffer).await?;
    /// assert_eq!(&buffer, b"next");
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub async fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        datagram::recv(&self.fd, buffer, 0).await
    }

    /// Receives one datagram, and returns its length and its sender. Bytes that do not fit into
    /// `buffer` are lost.
    ///
    /// # Cancellation safety
    /// The future may be dropped at any time without losing a datagram.
    ///
    /// # Errors
    /// The errors of [`recv`](UdpSocket::recv).
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::net::UdpSocket;
    ///
    /// let (server, client) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    /// client.send_to(b"ping", server.local_addr()?).await?;
    /// let mut buffer = [0; 16];
    /// let (count, from) = server.recv_from(&mut buffer).await?;
    /// server.send_to(&buffer[..count], from).await?; // An echo.
    /// assert_eq!(client.recv(&mut buffer).await?, 4);
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let (count, from) = datagram::recv_from(&self.fd, buffer, 0).await?;
        Ok((count, address(from)?))
    }

    /// Receives like [`recv_from`](UdpSocket::recv_from), but leaves the datagram in the socket.
    ///
    /// # Errors
    /// The errors of [`recv`](UdpSocket::recv).
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::net::UdpSocket;
    ///
    /// let (one, other) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    /// one.send_to(b"ping", other.local_addr()?).await?;
    /// let mut buffer = [0; 16];
    /// let peeked = other.peek_from(&mut buffer).await?;
    /// assert_eq!(other.recv_from(&mut buffer).await?, peeked);
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub async fn peek_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let (count, from) = datagram::recv_from(&self.fd, buffer, libc::MSG_PEEK).await?;
        Ok((count, address(from)?))
    }

    /// Receives all datagrams from now on into the vCPU's own buffers, by one operation, without a
    /// system call, an allocation or a copy per datagram.
    ///
    /// A buffer ([`Builder::buffers`](crate::Builder::buffers)) holds 144 bytes of data less than
    /// its size, 1904 by default; a longer datagram is truncated and marked as such. Use one
    /// `Datagrams` per socket, and no other receiving call at the same time.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::net::UdpSocket;
    ///
    /// let server = UdpSocket::bind("127.0.0.1:0")?;
    /// let client = UdpSocket::bind("127.0.0.1:0")?;
    /// let mut datagrams = server.datagrams();
    /// client.send_to(b"ping", server.local_addr()?).await?;
    /// let datagram = datagrams.next().await?;
    /// assert_eq!(&datagram.data[..], b"ping");
    /// assert_eq!(datagram.from, client.local_addr()?);
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn datagrams(&self) -> Datagrams {
        Datagrams {
            receiver: DatagramReceiver::new(self.fd.share()),
        }
    }

    /// Returns the address to which the socket is bound.
    ///
    /// # Errors
    /// The error of `getsockname`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        address(self.socket().local_addr()?)
    }

    /// Returns the peer set by [`connect`](UdpSocket::connect).
    ///
    /// # Errors
    /// `NotConnected`.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::net::UdpSocket;
    ///
    /// let (one, other) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    /// assert_eq!(one.peer_addr().unwrap_err().kind(), std::io::ErrorKind::NotConnected);
    /// one.connect(other.local_addr()?).await?;
    /// assert_eq!(one.peer_addr()?, other.local_addr()?);
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        address(self.socket().peer_addr()?)
    }

    /// Allows or forbids sending to broadcast addresses.
    ///
    /// # Errors
    /// The error of `setsockopt`.
    pub fn set_broadcast(&self, on: bool) -> io::Result<()> {
        self.socket().set_broadcast(on)
    }

    /// Sets the hop limit of IPv4 packets.
    ///
    /// # Errors
    /// The error of `setsockopt`.
    pub fn set_ttl(&self, hops: u32) -> io::Result<()> {
        self.socket().set_ttl_v4(hops)
    }

    /// Sets whether the socket receives its own datagrams to a multicast group.
    ///
    /// # Errors
    /// The error of `setsockopt`.
    pub fn set_multicast_loop_v4(&self, on: bool) -> io::Result<()> {
        self.socket().set_multicast_loop_v4(on)
    }

    /// Joins a multicast group on the interface that has the address `interface`.
    ///
    /// # Errors
    /// The error of `setsockopt`.
    pub fn join_multicast_v4(&self, group: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        self.socket().join_multicast_v4(&group, &interface)
    }

    /// Leaves a multicast group.
    ///
    /// # Errors
    /// The error of `setsockopt`.
    pub fn leave_multicast_v4(&self, group: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        self.socket().leave_multicast_v4(&group, &interface)
    }

    /// Joins a multicast group on the interface with the index `interface`.
    ///
    /// # Errors
    /// The error of `setsockopt`.
    pub fn join_multicast_v6(&self, group: &Ipv6Addr, interface: u32) -> io::Result<()> {
        self.socket().join_multicast_v6(group, interface)
    }

    /// Sets the size of the kernel's receive buffer, in bytes. Bursts must fit into the buffer.
    ///
    /// # Errors
    /// The error of `setsockopt`.
    pub fn set_recv_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.socket().set_recv_buffer_size(bytes)
    }

    /// Sets the size of the kernel's send buffer, in bytes.
    ///
    /// # Errors
    /// The error of `setsockopt`.
    pub fn set_send_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.socket().set_send_buffer_size(bytes)
    }
}

/// A datagram in one of the vCPU's own buffers.
#[derive(Debug)]
pub struct Datagram {
    /// The data. Dropping it returns the buffer to the kernel.
    pub data: RecvBuf,
    /// The sender.
    pub from: SocketAddr,
    /// True if the datagram was longer than the buffer; its remaining bytes are lost.
    pub truncated: bool,
}

/// The datagrams that arrive at a socket; created by [`UdpSocket::datagrams`].
pub struct Datagrams {
    receiver: DatagramReceiver,
}

impl Datagrams {
    /// Receives the next datagram.
    ///
    /// # Cancellation safety
    /// The future may be dropped at any time without losing a datagram. When `self` is dropped,
    /// datagrams that have arrived and were not taken are lost.
    ///
    /// # Errors
    /// The errors of [`UdpSocket::recv`]; the next call continues.
    pub async fn next(&mut self) -> io::Result<Datagram> {
        let datagram = poll_fn(|cx| self.receiver.poll_next(cx)).await?;
        match datagram.from.ip() {
            Some(from) => Ok(Datagram {
                data: datagram.data,
                from,
                truncated: datagram.truncated,
            }),
            None => Err(io::Error::other("a datagram has no sender address")),
        }
    }
}

impl fmt::Debug for Datagrams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Datagrams").finish_non_exhaustive()
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for UdpSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl fmt::Debug for UdpSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("UdpSocket").field(&self.fd).finish()
    }
}
