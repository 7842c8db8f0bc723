//! UDP sockets.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use socket2::{SockAddr, SockRef};
use upshift_ring::RecvBuf;

use super::datagram::{self, Arriving};
use super::options::address;
use super::resolve::{ToSocketAddrs, resolve};
use crate::io::Descriptor;

/// A UDP socket. Its calls take `&self`: share it in an `Arc`, or borrow it. A drop closes it
/// and frees its address ([closing](super#closing)).
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
/// A server that receives much is better off with [`datagrams`](UdpSocket::datagrams):
/// one operation for all of them, and no copy.
pub struct UdpSocket {
    fd: Descriptor,
}

impl UdpSocket {
    /// Binds. Tries the addresses in order.
    ///
    /// # Errors
    /// That of the last address tried: `AddrInUse`, `PermissionDenied`, …
    pub fn bind(addresses: impl std::net::ToSocketAddrs) -> io::Result<UdpSocket> {
        std::net::UdpSocket::bind(addresses).map(|socket| UdpSocket {
            fd: Descriptor::new(socket),
        })
    }

    /// Takes over a socket of the standard library (or, through it, one that was
    /// made with `socket2` for an option that must be set before it is bound).
    ///
    /// # Errors
    /// If it cannot be put into the mode the ring needs.
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

    /// Sets the peer: [`send`](UdpSocket::send) sends to it, and only what comes from
    /// it is received. Tries the addresses in order.
    ///
    /// # Errors
    /// That of the last address tried, or of the look-up.
    pub async fn connect(&self, addresses: impl ToSocketAddrs) -> io::Result<()> {
        let mut last = io::Error::new(io::ErrorKind::InvalidInput, "no address to connect to");
        for address in resolve(addresses).await? {
            match self.socket().connect(&SockAddr::from(address)) {
                Ok(()) => return Ok(()),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Sends one datagram to the peer set by [`connect`](UdpSocket::connect).
    ///
    /// # Errors
    /// `NotConnected`; `ConnectionRefused` if an earlier one found no socket; EMSGSIZE
    /// if it is too long.
    pub async fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        datagram::send(&self.fd, bytes).await
    }

    /// Sends one datagram to the first of the addresses.
    ///
    /// # Errors
    /// EMSGSIZE if it is too long; what else `sendto` answers; that of the look-up.
    pub async fn send_to(&self, bytes: &[u8], to: impl ToSocketAddrs) -> io::Result<usize> {
        let Some(to) = resolve(to).await?.first().copied() else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "no address to send to",
            ));
        };
        datagram::send_to(&self.fd, bytes, &SockAddr::from(to)).await
    }

    /// Receives one datagram of the peer; what does not fit is lost. Dropping the
    /// future loses none.
    ///
    /// # Errors
    /// `ConnectionRefused` if something sent earlier found no socket; outside a runtime.
    pub async fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        datagram::recv(&self.fd, buffer, 0).await
    }

    /// Receives one datagram, and its sender; what does not fit is lost. Dropping
    /// the future loses none.
    ///
    /// # Errors
    /// As [`recv`](UdpSocket::recv).
    pub async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let (count, from) = datagram::recv_from(&self.fd, buffer, 0).await?;
        Ok((count, address(from)?))
    }

    /// As [`recv_from`](UdpSocket::recv_from), but the datagram stays.
    ///
    /// # Errors
    /// As [`recv`](UdpSocket::recv).
    pub async fn peek_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let (count, from) = datagram::recv_from(&self.fd, buffer, libc::MSG_PEEK).await?;
        Ok((count, address(from)?))
    }

    /// All datagrams from now on, in the vCPU's own buffers: one operation receives
    /// for ever, without a system call, an allocation or a copy per datagram.
    ///
    /// A buffer ([`Builder::buffers`](crate::Builder::buffers)) holds 144 bytes less
    /// of data than its size, 1904 by default; longer datagrams are cut off and
    /// marked so. Use one of these per socket, and no other receiving call beside it.
    #[must_use]
    pub fn datagrams(&self) -> Datagrams {
        Datagrams {
            arriving: Arriving::new(self.fd.share()),
        }
    }

    /// The address it is bound to.
    ///
    /// # Errors
    /// What `getsockname` answers.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        address(self.socket().local_addr()?)
    }

    /// The peer set by [`connect`](UdpSocket::connect).
    ///
    /// # Errors
    /// `NotConnected`.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        address(self.socket().peer_addr()?)
    }

    /// May it send to broadcast addresses?
    ///
    /// # Errors
    /// What `setsockopt` answers.
    pub fn set_broadcast(&self, on: bool) -> io::Result<()> {
        self.socket().set_broadcast(on)
    }

    /// The hop limit of IPv4 packets.
    ///
    /// # Errors
    /// What `setsockopt` answers.
    pub fn set_ttl(&self, hops: u32) -> io::Result<()> {
        self.socket().set_ttl_v4(hops)
    }

    /// Does it receive what it sends to a multicast group itself?
    ///
    /// # Errors
    /// What `setsockopt` answers.
    pub fn set_multicast_loop_v4(&self, on: bool) -> io::Result<()> {
        self.socket().set_multicast_loop_v4(on)
    }

    /// Joins a multicast group on the interface that has the address `interface`.
    ///
    /// # Errors
    /// What `setsockopt` answers.
    pub fn join_multicast_v4(&self, group: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        self.socket().join_multicast_v4(&group, &interface)
    }

    /// Leaves a multicast group.
    ///
    /// # Errors
    /// What `setsockopt` answers.
    pub fn leave_multicast_v4(&self, group: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        self.socket().leave_multicast_v4(&group, &interface)
    }

    /// Joins a multicast group on the interface with the index `interface`.
    ///
    /// # Errors
    /// What `setsockopt` answers.
    pub fn join_multicast_v6(&self, group: &Ipv6Addr, interface: u32) -> io::Result<()> {
        self.socket().join_multicast_v6(group, interface)
    }

    /// The kernel's receive buffer, in bytes: what bursts must fit into.
    ///
    /// # Errors
    /// What `setsockopt` answers.
    pub fn set_recv_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.socket().set_recv_buffer_size(bytes)
    }

    /// The kernel's send buffer, in bytes.
    ///
    /// # Errors
    /// What `setsockopt` answers.
    pub fn set_send_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.socket().set_send_buffer_size(bytes)
    }
}

/// A datagram in one of the vCPU's own buffers.
#[derive(Debug)]
pub struct Datagram {
    /// The data. The buffer goes back to the kernel when this is dropped.
    pub data: RecvBuf,
    /// Its sender.
    pub from: SocketAddr,
    /// It was longer than the buffer; the rest is lost.
    pub truncated: bool,
}

/// The datagrams that arrive at a socket; made by [`UdpSocket::datagrams`].
pub struct Datagrams {
    arriving: Arriving,
}

impl Datagrams {
    /// The next datagram. Dropping the future loses none; dropping `self` loses what
    /// has arrived and not been taken.
    ///
    /// # Errors
    /// As [`UdpSocket::recv`]; the next call goes on.
    pub async fn next(&mut self) -> io::Result<Datagram> {
        let datagram = poll_fn(|cx| self.arriving.poll_next(cx)).await?;
        match datagram.from.ip() {
            Some(from) => Ok(Datagram {
                data: datagram.data,
                from,
                truncated: datagram.truncated,
            }),
            None => Err(io::Error::other("a datagram without a sender")),
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
