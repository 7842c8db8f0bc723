//! A socket that is not connected yet, for options that must be set before.

use std::io;
use std::net::SocketAddr;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use upshift_ring::op;

use super::{TcpListener, TcpStream, start};
use crate::io::Descriptor;

/// A TCP socket before it listens or connects.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// use upshift::net::TcpSocket;
///
/// let socket = TcpSocket::new_v4()?;
/// socket.set_reuseport(true)?;
/// socket.bind("127.0.0.1:0".parse().unwrap())?;
/// let listener = socket.listen(1024)?;
/// assert_ne!(listener.local_addr()?.port(), 0);
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
#[derive(Debug)]
pub struct TcpSocket {
    socket: Socket,
}

impl TcpSocket {
    fn new(domain: Domain) -> io::Result<TcpSocket> {
        // Blocking mode: the ring waits for readiness by itself, and with
        // O_NONBLOCK it would answer EAGAIN instead.
        Ok(TcpSocket {
            socket: Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?,
        })
    }

    pub(crate) fn for_address(address: SocketAddr) -> io::Result<TcpSocket> {
        TcpSocket::new(Domain::for_address(address))
    }

    /// An IPv4 socket.
    ///
    /// # Errors
    /// When no descriptor is left, or IPv4 is not there.
    pub fn new_v4() -> io::Result<TcpSocket> {
        TcpSocket::new(Domain::IPV4)
    }

    /// An IPv6 socket.
    ///
    /// # Errors
    /// When no descriptor is left, or IPv6 is not there.
    pub fn new_v6() -> io::Result<TcpSocket> {
        TcpSocket::new(Domain::IPV6)
    }

    /// May the address be bound while old connections of it linger?
    ///
    /// # Errors
    /// What `setsockopt` answers.
    pub fn set_reuseaddr(&self, on: bool) -> io::Result<()> {
        self.socket.set_reuse_address(on)
    }

    /// May several sockets listen on the address, and share its connections?
    ///
    /// # Errors
    /// What `setsockopt` answers.
    pub fn set_reuseport(&self, on: bool) -> io::Result<()> {
        self.socket.set_reuse_port(on)
    }

    /// An IPv6 socket: IPv6 only?
    ///
    /// # Errors
    /// What `setsockopt` answers.
    pub fn set_only_v6(&self, on: bool) -> io::Result<()> {
        self.socket.set_only_v6(on)
    }

    /// The kernel's receive buffer, in bytes.
    ///
    /// # Errors
    /// What `setsockopt` answers.
    pub fn set_recv_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.socket.set_recv_buffer_size(bytes)
    }

    /// The kernel's send buffer, in bytes.
    ///
    /// # Errors
    /// What `setsockopt` answers.
    pub fn set_send_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.socket.set_send_buffer_size(bytes)
    }

    /// Send small segments at once? Connections accepted inherit it.
    ///
    /// # Errors
    /// What `setsockopt` answers.
    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        self.socket.set_tcp_nodelay(on)
    }

    /// Probe silent peers? Connections accepted inherit it.
    ///
    /// # Errors
    /// What `setsockopt` answers.
    pub fn set_keepalive(&self, on: bool) -> io::Result<()> {
        self.socket.set_keepalive(on)
    }

    /// Bind to this network interface only; `None`: to all.
    ///
    /// # Errors
    /// What `setsockopt` answers.
    pub fn bind_device(&self, interface: Option<&str>) -> io::Result<()> {
        self.socket.bind_device(interface.map(str::as_bytes))
    }

    /// The address it is bound to.
    ///
    /// # Errors
    /// What `getsockname` answers.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        super::options::address(self.socket.local_addr()?)
    }

    /// Binds the socket.
    ///
    /// # Errors
    /// `AddrInUse`, `PermissionDenied`, `AddrNotAvailable`, …
    pub fn bind(&self, address: SocketAddr) -> io::Result<()> {
        self.socket.bind(&SockAddr::from(address))
    }

    /// Listens; `backlog` connections may wait to be accepted.
    ///
    /// # Errors
    /// What `listen` answers.
    pub fn listen(self, backlog: u32) -> io::Result<TcpListener> {
        self.socket
            .listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
        Ok(TcpListener::new(self.socket))
    }

    /// Connects.
    ///
    /// # Errors
    /// `ConnectionRefused`, `TimedOut`, …; and outside a runtime.
    pub async fn connect(self, address: SocketAddr) -> io::Result<TcpStream> {
        let fd = Descriptor::new(self.socket);
        start(op::Connect::new(fd.clone(), address))?.await?;
        Ok(TcpStream::new(fd))
    }
}
