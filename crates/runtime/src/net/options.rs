//! The usual socket options of a stream.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use socket2::{SockAddr, SockRef, TcpKeepalive};

use super::TcpStream;

pub(super) fn address(address: SockAddr) -> io::Result<SocketAddr> {
    address
        .as_socket()
        .ok_or_else(|| io::Error::other("the socket is not an IP socket"))
}

/// Socket options. The errors are what `getsockopt` and `setsockopt` answer.
impl TcpStream {
    fn socket(&self) -> SockRef<'_> {
        SockRef::from(self.fd())
    }

    /// The address of this end.
    ///
    /// # Errors
    /// See above.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        address(self.socket().local_addr()?)
    }

    /// The address of the other end.
    ///
    /// # Errors
    /// `NotConnected` when it has gone.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        address(self.socket().peer_addr()?)
    }

    /// Are small segments sent at once (`TCP_NODELAY`)?
    ///
    /// # Errors
    /// See above.
    pub fn nodelay(&self) -> io::Result<bool> {
        self.socket().tcp_nodelay()
    }

    /// Send small segments at once, rather than gather them?
    ///
    /// # Errors
    /// See above.
    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        self.socket().set_tcp_nodelay(on)
    }

    /// How long a close waits for unsent data; `None`: it does not.
    ///
    /// # Errors
    /// See above.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        self.socket().set_linger(linger)
    }

    /// How long a close waits for unsent data.
    ///
    /// # Errors
    /// See above.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        self.socket().linger()
    }

    /// The hop limit of IPv4 packets.
    ///
    /// # Errors
    /// See above.
    pub fn ttl(&self) -> io::Result<u32> {
        self.socket().ttl_v4()
    }

    /// Sets the hop limit of IPv4 packets.
    ///
    /// # Errors
    /// See above.
    pub fn set_ttl(&self, hops: u32) -> io::Result<()> {
        self.socket().set_ttl_v4(hops)
    }

    /// Probes a peer that has been silent for `idle`; `None`: never.
    ///
    /// # Errors
    /// See above.
    pub fn set_keepalive(&self, idle: Option<Duration>) -> io::Result<()> {
        match idle {
            Some(idle) => self
                .socket()
                .set_tcp_keepalive(&TcpKeepalive::new().with_time(idle)),
            None => self.socket().set_keepalive(false),
        }
    }

    /// The kernel's receive buffer, in bytes.
    ///
    /// # Errors
    /// See above.
    pub fn set_recv_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.socket().set_recv_buffer_size(bytes)
    }

    /// The kernel's send buffer, in bytes.
    ///
    /// # Errors
    /// See above.
    pub fn set_send_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.socket().set_send_buffer_size(bytes)
    }

    /// The error the socket has met, cleared by asking.
    ///
    /// # Errors
    /// See above.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.socket().take_error()
    }

    /// Ends one direction or both, for all users of the socket.
    ///
    /// # Errors
    /// `NotConnected`.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.socket().shutdown(how)
    }
}
