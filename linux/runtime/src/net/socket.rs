//! A socket that is not connected yet, for options that must be set first.

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
        // The socket is in blocking mode, because the ring waits for readiness by itself; with
        // O_NONBLOCK, it would return EAGAIN instead.
        Ok(TcpSocket {
            socket: Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?,
        })
    }

    pub(crate) fn for_address(address: SocketAddr) -> io::Result<TcpSocket> {
        TcpSocket::new(Domain::for_address(address))
    }

    /// Creates an IPv4 socket.
    ///
    /// # Errors
    /// When no descriptor is left, or the machine has no IPv4.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use std::net::Ipv4Addr;
    /// use upshift::net::TcpSocket;
    ///
    /// let socket = TcpSocket::new_v4()?;
    /// assert_eq!(socket.local_addr()?.ip(), Ipv4Addr::UNSPECIFIED); // Not bound yet.
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn new_v4() -> io::Result<TcpSocket> {
        TcpSocket::new(Domain::IPV4)
    }

    /// Creates an IPv6 socket.
    ///
    /// # Errors
    /// When no descriptor is left, or the machine has no IPv6.
    pub fn new_v6() -> io::Result<TcpSocket> {
        TcpSocket::new(Domain::IPV6)
    }

    /// Sets whether the socket can be bound to an address that old connections still use
    /// (`SO_REUSEADDR`).
    ///
    /// # Errors
    /// The error of `setsockopt`.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::net::{TcpListener, TcpSocket, TcpStream};
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let address = listener.local_addr()?;
    /// let client = TcpStream::connect(address).await?;
    /// drop((listener.accept().await?, listener, client)); // Leaves an old connection.
    /// let socket = TcpSocket::new_v4()?;
    /// socket.set_reuseaddr(true)?;
    /// socket.bind(address)?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn set_reuseaddr(&self, on: bool) -> io::Result<()> {
        self.socket.set_reuse_address(on)
    }

    /// Sets whether several sockets can listen on the address and share its connections
    /// (`SO_REUSEPORT`).
    ///
    /// # Errors
    /// The error of `setsockopt`.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::net::TcpSocket;
    ///
    /// let (first, second) = (TcpSocket::new_v4()?, TcpSocket::new_v4()?);
    /// first.set_reuseport(true)?;
    /// second.set_reuseport(true)?;
    /// first.bind("127.0.0.1:0".parse().unwrap())?;
    /// second.bind(first.local_addr()?)?;
    /// assert_eq!(first.local_addr()?, second.local_addr()?);
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn set_reuseport(&self, on: bool) -> io::Result<()> {
        self.socket.set_reuse_port(on)
    }

    /// Sets whether an IPv6 socket is restricted to IPv6.
    ///
    /// # Errors
    /// The error of `setsockopt`.
    pub fn set_only_v6(&self, on: bool) -> io::Result<()> {
        self.socket.set_only_v6(on)
    }

    /// Sets the size of the kernel's receive buffer, in bytes.
    ///
    /// # Errors
    /// The error of `setsockopt`.
    pub fn set_recv_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.socket.set_recv_buffer_size(bytes)
    }

    /// Sets the size of the kernel's send buffer, in bytes.
    ///
    /// # Errors
    /// The error of `setsockopt`.
    pub fn set_send_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.socket.set_send_buffer_size(bytes)
    }

    /// Sets whether small segments are sent at once (`TCP_NODELAY`). Accepted connections inherit
    /// the setting.
    ///
    /// # Errors
    /// The error of `setsockopt`.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::net::{TcpListener, TcpSocket};
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let socket = TcpSocket::new_v4()?;
    /// socket.set_nodelay(true)?;
    /// assert!(socket.connect(listener.local_addr()?).await?.nodelay()?);
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        self.socket.set_tcp_nodelay(on)
    }

    /// Sets whether silent peers are probed (`SO_KEEPALIVE`). Accepted connections inherit the
    /// setting.
    ///
    /// # Errors
    /// The error of `setsockopt`.
    pub fn set_keepalive(&self, on: bool) -> io::Result<()> {
        self.socket.set_keepalive(on)
    }

    /// Binds to one network interface, or with `None` to all.
    ///
    /// # Errors
    /// The error of `setsockopt`.
    pub fn bind_device(&self, interface: Option<&str>) -> io::Result<()> {
        self.socket.bind_device(interface.map(str::as_bytes))
    }

    /// Returns the address to which the socket is bound.
    ///
    /// # Errors
    /// The error of `getsockname`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        super::options::address(self.socket.local_addr()?)
    }

    /// Binds the socket.
    ///
    /// # Errors
    /// `AddrInUse`, `PermissionDenied`, `AddrNotAvailable`, …
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use std::net::{Ipv4Addr, SocketAddr};
    /// use upshift::net::TcpSocket;
    ///
    /// let socket = TcpSocket::new_v4()?;
    /// socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    /// assert_ne!(socket.local_addr()?.port(), 0); // The kernel has chosen a port.
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn bind(&self, address: SocketAddr) -> io::Result<()> {
        self.socket.bind(&SockAddr::from(address))
    }

    /// Listens. Up to `backlog` connections may wait to be accepted.
    ///
    /// # Errors
    /// The error of `listen`.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::net::{TcpSocket, TcpStream};
    ///
    /// let socket = TcpSocket::new_v4()?;
    /// socket.bind("127.0.0.1:0".parse().unwrap())?;
    /// let listener = socket.listen(128)?;
    /// let client = TcpStream::connect(listener.local_addr()?).await?;
    /// assert_eq!(listener.accept().await?.1, client.local_addr()?);
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn listen(self, backlog: u32) -> io::Result<TcpListener> {
        self.socket
            .listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
        Ok(TcpListener::new(self.socket))
    }

    /// Connects to a peer.
    ///
    /// # Cancellation safety
    /// If the future is dropped, the socket is closed.
    ///
    /// # Errors
    /// `ConnectionRefused`, `TimedOut`, …; also fails outside a runtime.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::net::{TcpListener, TcpSocket};
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let socket = TcpSocket::new_v4()?;
    /// socket.bind("127.0.0.1:0".parse().unwrap())?; // Chooses the address of this end.
    /// let own_address = socket.local_addr()?;
    /// let stream = socket.connect(listener.local_addr()?).await?;
    /// assert_eq!(stream.local_addr()?, own_address);
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub async fn connect(self, address: SocketAddr) -> io::Result<TcpStream> {
        let fd = Descriptor::new(self.socket);
        start(op::Connect::new(fd.clone(), address))?.await?;
        Ok(TcpStream::new(fd))
    }
}
