//! Socket options of a TCP stream.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsRawFd;
use std::time::Duration;

use socket2::{SockAddr, SockRef, TcpKeepalive};
use upshift_ring::WeakFd;

use super::TcpStream;

pub(super) fn address(address: SockAddr) -> io::Result<SocketAddr> {
    address
        .as_socket()
        .ok_or_else(|| io::Error::other("the socket is not an IP socket"))
}

/// Socket options.
impl TcpStream {
    fn socket(&self) -> SockRef<'_> {
        SockRef::from(self.fd())
    }

    /// Returns the address of this end.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        address(self.socket().local_addr()?)
    }

    /// Returns the address of the other end.
    ///
    /// # Errors
    /// `NotConnected` when the peer has closed the connection.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::net::{TcpListener, TcpStream};
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let client = TcpStream::connect(listener.local_addr()?).await?;
    /// let (server, _) = listener.accept().await?;
    /// assert_eq!(server.peer_addr()?, client.local_addr()?);
    /// assert_eq!(client.peer_addr()?, server.local_addr()?);
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        address(self.socket().peer_addr()?)
    }

    /// Returns true if small segments are sent at once (`TCP_NODELAY`).
    ///
    /// # Errors
    /// The error of the system call.
    pub fn nodelay(&self) -> io::Result<bool> {
        self.socket().tcp_nodelay()
    }

    /// Sets whether small segments are sent at once, rather than gathered (`TCP_NODELAY`).
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::net::{TcpListener, TcpStream};
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let stream = TcpStream::connect(listener.local_addr()?).await?;
    /// stream.set_nodelay(true)?;
    /// assert!(stream.nodelay()?);
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// The error of the system call.
    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        self.socket().set_tcp_nodelay(on)
    }

    /// Sets how long a close waits for unsent data; with `None` it does not wait.
    ///
    /// # Errors
    /// The error of the system call.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use upshift::net::{TcpListener, TcpStream};
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let stream = TcpStream::connect(listener.local_addr()?).await?;
    /// assert_eq!(stream.linger()?, None);
    /// stream.set_linger(Some(Duration::from_secs(2)))?;
    /// assert_eq!(stream.linger()?, Some(Duration::from_secs(2)));
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        self.socket().set_linger(linger)
    }

    /// Returns how long a close waits for unsent data.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        self.socket().linger()
    }

    /// Returns the hop limit of IPv4 packets.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn ttl(&self) -> io::Result<u32> {
        self.socket().ttl_v4()
    }

    /// Sets the hop limit of IPv4 packets.
    ///
    /// # Errors
    /// The error of the system call.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::net::{TcpListener, TcpStream};
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let stream = TcpStream::connect(listener.local_addr()?).await?;
    /// stream.set_ttl(1)?; // Packets do not leave the network.
    /// assert_eq!(stream.ttl()?, 1);
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn set_ttl(&self, hops: u32) -> io::Result<()> {
        self.socket().set_ttl_v4(hops)
    }

    /// Sets the time after which a silent peer is probed; with `None` it is never probed.
    ///
    /// # Errors
    /// The error of the system call.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use upshift::net::{TcpListener, TcpStream};
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let stream = TcpStream::connect(listener.local_addr()?).await?;
    /// stream.set_keepalive(Some(Duration::from_secs(60)))?;
    /// stream.set_keepalive(None)?; // The peer may be silent for ever.
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn set_keepalive(&self, idle: Option<Duration>) -> io::Result<()> {
        match idle {
            Some(idle) => self
                .socket()
                .set_tcp_keepalive(&TcpKeepalive::new().with_time(idle)),
            None => self.socket().set_keepalive(false),
        }
    }

    /// Sets the probing of a silent peer: after `idle`, then every `interval`; the connection
    /// ends after `probes` without an answer. `None` leaves the system's value.
    ///
    /// # Errors
    /// The error of the system call.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use upshift::net::{TcpListener, TcpStream};
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let stream = TcpStream::connect(listener.local_addr()?).await?;
    /// // The connection of a peer that is gone ends after 60 s + 3 · 10 s.
    /// let (idle, interval) = (Duration::from_secs(60), Duration::from_secs(10));
    /// stream.set_keepalive_probes(idle, Some(interval), Some(3))?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn set_keepalive_probes(
        &self,
        idle: Duration,
        interval: Option<Duration>,
        probes: Option<u32>,
    ) -> io::Result<()> {
        let mut keepalive = TcpKeepalive::new().with_time(idle);
        if let Some(interval) = interval {
            keepalive = keepalive.with_interval(interval);
        }
        if let Some(probes) = probes {
            keepalive = keepalive.with_retries(probes);
        }
        self.socket().set_tcp_keepalive(&keepalive)
    }

    /// Sets how long sent data may stay unacknowledged before the connection ends
    /// (`TCP_USER_TIMEOUT`). `None` stands for the system's value.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn set_user_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.socket().set_tcp_user_timeout(timeout)
    }

    /// Sets whether segments are acknowledged at once, for now (`TCP_QUICKACK`). The kernel may
    /// turn the option off again.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn set_quickack(&self, on: bool) -> io::Result<()> {
        self.socket().set_tcp_quickack(on)
    }

    /// Sets the type of service (DSCP) of IPv4 packets.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn set_tos(&self, tos: u32) -> io::Result<()> {
        self.socket().set_tos_v4(tos)
    }

    /// Returns the size of the kernel's receive buffer, in bytes.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn recv_buffer_size(&self) -> io::Result<usize> {
        self.socket().recv_buffer_size()
    }

    /// Returns the size of the kernel's send buffer, in bytes.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn send_buffer_size(&self) -> io::Result<usize> {
        self.socket().send_buffer_size()
    }

    /// Sets the size of the kernel's receive buffer, in bytes.
    ///
    /// # Errors
    /// The error of the system call.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::net::{TcpListener, TcpStream};
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let stream = TcpStream::connect(listener.local_addr()?).await?;
    /// stream.set_recv_buffer_size(32 << 10)?;
    /// assert!(stream.recv_buffer_size()? >= 32 << 10); // The kernel adds its own share.
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn set_recv_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.socket().set_recv_buffer_size(bytes)
    }

    /// Sets the size of the kernel's send buffer, in bytes.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn set_send_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.socket().set_send_buffer_size(bytes)
    }

    /// Returns the pending error of the socket, and clears it.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.socket().take_error()
    }

    /// Returns a view of the send queue, for a timeout that is extended as long as the peer takes
    /// bytes.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::net::{TcpListener, TcpStream};
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let stream = TcpStream::connect(listener.local_addr()?).await?;
    /// let queue = stream.send_queue();
    /// assert_eq!(queue.bytes(), Some(0));
    /// drop(stream);
    /// assert_eq!(queue.bytes(), None);
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn send_queue(&self) -> SendQueue {
        SendQueue(self.fd().downgrade())
    }

    /// Ends one direction or both, for all users of the socket.
    ///
    /// # Errors
    /// `NotConnected`.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use std::net::Shutdown;
    /// use upshift::net::{TcpListener, TcpStream};
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let mut client = TcpStream::connect(listener.local_addr()?).await?;
    /// let (mut server, _) = listener.accept().await?;
    /// client.shutdown(Shutdown::Write)?;
    /// assert!(server.recv().await?.is_empty()); // The end of one direction.
    /// server.write_all("an answer").await.0?;
    /// assert_eq!(&client.recv().await?[..], b"an answer");
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.socket().shutdown(how)
    }
}

/// The send queue of a connection's socket. Usable from any thread; does not keep the socket open.
///
/// A write that waits says little about a peer that reads slowly, because a TCP socket becomes
/// writable again only when a third of its buffer, which may be megabytes, is free. The length of
/// the queue changes with each byte that the peer's machine takes.
#[derive(Clone, Debug)]
pub struct SendQueue(WeakFd);

impl SendQueue {
    /// Returns the number of bytes that the peer has not taken; `None` if the socket is closed.
    /// Costs one system call (`SIOCOUTQ`).
    ///
    /// For TCP these are the bytes that have been written and that the peer's machine has not
    /// acknowledged. For Unix sockets it is the memory of the messages that the peer has not read
    /// to their end, so the number changes in steps of up to 64 KiB.
    #[must_use]
    pub fn bytes(&self) -> Option<usize> {
        let fd = self.0.upgrade()?;
        let mut bytes: libc::c_int = 0;
        // SAFETY: the call writes one integer, and the pointer is to a local integer.
        let answer = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
        usize::try_from(bytes).ok().filter(|_| answer == 0)
    }
}
