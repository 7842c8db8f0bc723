//! Opens listening sockets. An error names the process that holds the port.

use std::fs;
use std::io;
use std::net::{self, IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::AddressFamily;
use rustix::net::sockopt::{self, socket_acceptconn, socket_domain};
use upshift::hyper::Io;
use upshift::io::AsyncFd;
use upshift::net::{TcpListener, TcpSocket, TcpStream, UnixStream};

use crate::config::{Address, BindTo};
use upshift_units::socket_file::{self, SocketFile};

/// Number of connections that may wait to be accepted on a Unix socket, or on a port of all
/// addresses, up to the kernel's limit (`net.core.somaxconn`).
const BACKLOG: i32 = 4096;
/// Maximum wait for a port that no visible process holds. The kernel may take more than 100 ms to
/// release the ring, and with it the port, of a killed process.
const PORT_RELEASE_TIMEOUT: Duration = Duration::from_millis(500);
/// Address that represents a client of a Unix socket.
pub(crate) const UNIX_PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// Time without traffic after which the kernel probes the client's machine.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(20);
/// Number of unanswered probes after which the kernel closes the connection.
const KEEPALIVE_PROBES: u32 = 4;
/// Time between two probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// A listening socket.
///
/// Connections are accepted one by one, when the socket is readable. A multishot accept of the ring
/// would take a descriptor for each waiting connection before the server can count the connections,
/// and its cancellation would lose accepted connections, which another process that listens on the
/// same socket could have served.
pub(crate) struct Listener {
    socket: Socket,
    /// Set if the connections speak no TLS, even if there is a certificate.
    pub(crate) plain: bool,
}

enum Socket {
    Tcp(net::TcpListener, AsyncFd),
    /// A Unix socket. If this server opened the socket, dropping this value removes the
    /// socket's file.
    Unix(StdUnixListener, AsyncFd, Option<SocketFile>),
}

/// A connection that was accepted but is not served yet. Dropping it closes the connection at once.
pub(crate) enum Accepted {
    Tcp(net::TcpStream),
    Unix(StdUnixStream),
}

impl Accepted {
    /// Prepares the connection for the HTTP library. The socket is blocking, as the ring requires,
    /// because `accept` does not inherit the mode of the listener.
    pub(crate) fn into_io(self) -> Io {
        match self {
            Accepted::Tcp(stream) => {
                let stream = TcpStream::from(OwnedFd::from(stream));
                // The client may have gone already.
                let _ = stream.set_nodelay(true);
                Io::new(stream)
            }
            Accepted::Unix(stream) => Io::from(UnixStream::from(OwnedFd::from(stream))),
        }
    }
}

impl Listener {
    /// Opens a listening socket.
    ///
    /// # Errors
    /// The message names the reason and a remedy.
    pub(crate) fn open(address: &Address) -> io::Result<Listener> {
        let socket = match &address.bind_to {
            BindTo::Ip(address) => Socket::from_listener(&listen(*address)?)?,
            BindTo::Port(port) => Socket::from_listener(&listen_on_all(*port)?)?,
            BindTo::Unix { path, mode } => {
                let describe = |error: io::Error| {
                    let text = format!("cannot listen on {address}: {error}");
                    io::Error::new(error.kind(), text)
                };
                let (listener, file) =
                    socket_file::listen(path, *mode, BACKLOG).map_err(describe)?;
                let mut socket = Socket::adopt(listener.into())?;
                if let Socket::Unix(.., slot) = &mut socket {
                    *slot = Some(file);
                }
                socket
            }
        };
        let plain = address.plain;
        Ok(Listener { socket, plain })
    }

    /// Adopts a TCP or Unix socket that already listens. The listener is plain if `addresses` mark
    /// its port or path as plain.
    pub(crate) fn adopt(socket: OwnedFd, addresses: &[Address]) -> io::Result<Listener> {
        let socket = Socket::adopt(socket)?;
        let (port, path) = (socket.ip().map(|ip| ip.port()), socket.path());
        let matches = |bind_to: &BindTo| match bind_to {
            BindTo::Ip(address) => port == Some(address.port()),
            BindTo::Port(number) => port == Some(*number),
            BindTo::Unix { path: named, .. } => path.as_ref() == Some(named),
        };
        let mut plain = addresses.iter().filter(|address| address.plain);
        let plain = plain.any(|address| matches(&address.bind_to));
        Ok(Listener { socket, plain })
    }

    /// Accepts a connection. Cancelling this future loses no connection.
    pub(crate) async fn accept(&self) -> io::Result<(Accepted, SocketAddr)> {
        self.socket.accept().await
    }

    pub(crate) fn ip(&self) -> Option<SocketAddr> {
        self.socket.ip()
    }

    pub(crate) fn path(&self) -> Option<PathBuf> {
        self.socket.path()
    }
}

impl Socket {
    fn from_listener(listener: &TcpListener) -> io::Result<Socket> {
        Socket::adopt(listener.as_fd().try_clone_to_owned()?)
    }

    fn adopt(socket: OwnedFd) -> io::Result<Socket> {
        let error = |problem: &str| {
            let text = format!(
                "descriptor {}, which was handed over, {problem}",
                socket.as_raw_fd()
            );
            io::Error::new(io::ErrorKind::InvalidInput, text)
        };
        match socket_acceptconn(&socket) {
            Ok(true) => {}
            Ok(false) => return Err(error("does not listen")),
            Err(Errno::NOTSOCK) => return Err(error("is no socket")),
            Err(error) => return Err(error.into()),
        }
        rustix::io::ioctl_fionbio(&socket, true)?;
        let readiness = AsyncFd::new(socket.try_clone()?);
        Ok(match socket_domain(&socket)? {
            AddressFamily::UNIX => Socket::Unix(socket.into(), readiness, None),
            _ => {
                keep_alive(&socket);
                Socket::Tcp(socket.into(), readiness)
            }
        })
    }

    async fn accept(&self) -> io::Result<(Accepted, SocketAddr)> {
        match self {
            Socket::Tcp(socket, readiness) => {
                let (stream, peer) = readiness.read_with(|_| socket.accept()).await?;
                // A socket of both families reports IPv4 addresses mapped into IPv6.
                let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
                Ok((Accepted::Tcp(stream), peer))
            }
            Socket::Unix(socket, readiness, _) => {
                let (stream, _) = readiness.read_with(|_| socket.accept()).await?;
                Ok((Accepted::Unix(stream), UNIX_PEER))
            }
        }
    }

    fn ip(&self) -> Option<SocketAddr> {
        match self {
            Socket::Tcp(socket, _) => socket.local_addr().ok(),
            Socket::Unix(..) => None,
        }
    }

    fn path(&self) -> Option<PathBuf> {
        match self {
            Socket::Tcp(..) => None,
            Socket::Unix(.., Some(file)) => Some(file.path().to_owned()),
            Socket::Unix(socket, ..) => Some(socket.local_addr().ok()?.as_pathname()?.to_owned()),
        }
    }
}

/// Lets the kernel probe silent clients, on all connections that a listener accepts. An HTTP/2 PING
/// cannot replace the probes, because a slow client first reads all bytes that were sent before the
/// PING.
fn keep_alive(listener: impl AsFd) {
    // Without probes a connection lives until its time-outs.
    let _ = sockopt::set_socket_keepalive(&listener, true);
    let _ = sockopt::set_tcp_keepidle(&listener, KEEPALIVE_IDLE);
    let _ = sockopt::set_tcp_keepintvl(&listener, KEEPALIVE_INTERVAL);
    let _ = sockopt::set_tcp_keepcnt(&listener, KEEPALIVE_PROBES);
}

/// Listens on an address. Waits up to [`PORT_RELEASE_TIMEOUT`] for the port of a killed process,
/// because the kernel frees the port only when it has released the ring of the process. Until then
/// no process is visible as the holder of the port.
///
/// # Errors
/// The message names the reason and a remedy.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    listen_with(address, || TcpListener::bind(address))
}

fn listen_on_all(port: u16) -> io::Result<TcpListener> {
    let all = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    listen_with(all, || {
        let listener = TcpSocket::new_v6().and_then(|socket| {
            // The administrator sets the default (`net.ipv6.bindv6only`).
            socket.set_only_v6(false)?;
            socket.set_reuseaddr(true)?;
            socket.bind(all)?;
            socket.listen(BACKLOG.cast_unsigned())
        });
        let error = listener.as_ref().err().and_then(Errno::from_io_error);
        match error {
            // This kernel has no IPv6.
            Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) => {
                TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))
            }
            _ => listener,
        }
    })
}

fn listen_with(
    address: SocketAddr,
    bind: impl Fn() -> io::Result<TcpListener>,
) -> io::Result<TcpListener> {
    let started = Instant::now();
    loop {
        let error = match bind() {
            Ok(listener) => return Ok(listener),
            Err(error) => error,
        };
        let is_held = || port_holder(address).is_some();
        if error.kind() == io::ErrorKind::AddrInUse
            && started.elapsed() < PORT_RELEASE_TIMEOUT
            && !is_held()
        {
            std::thread::sleep(PORT_RELEASE_TIMEOUT / 50);
            continue;
        }
        let text = format!("cannot listen on {address}: {}", explain(address, &error));
        return Err(io::Error::new(error.kind(), text));
    }
}

pub(super) fn explain(address: SocketAddr, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            let port_holder = match port_holder(address) {
                None => "a process that cannot be seen from here (of another user or container)".to_owned(),
                Some((pid, _)) if pid == std::process::id() => {
                    return format!("this process ({pid}) listens there already; give --listen another address");
                }
                Some((pid, command_line)) => format!("process {pid} (`{command_line}`)"),
            };
            format!("{port_holder} holds the port; end it, or choose another port with --listen")
        }
        io::ErrorKind::PermissionDenied if address.port() < 1024 => {
            "ports below 1024 need CAP_NET_BIND_SERVICE; choose another with --listen, or see docs/serve.md on systemd".to_owned()
        }
        io::ErrorKind::AddrNotAvailable => "no interface of this machine has this address".to_owned(),
        _ => error.to_string(),
    }
}

pub(super) fn port_holder(address: SocketAddr) -> Option<(u32, String)> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).ok());
    let inodes: Vec<String> = tables
        .iter()
        .flatten()
        .flat_map(|table| table.lines().skip(1))
        .filter_map(|line| parse_listening(line, address.port()))
        .filter(|(ip, _)| {
            ip.is_unspecified() || address.ip().is_unspecified() || *ip == address.ip()
        })
        .map(|(_, inode)| format!("socket:[{inode}]"))
        .collect();
    fs::read_dir("/proc").ok()?.flatten().find_map(|process| {
        let pid = process.file_name().to_str()?.parse().ok()?;
        let holds_port = fs::read_dir(process.path().join("fd"))
            .ok()?
            .flatten()
            .any(|fd| {
                fs::read_link(fd.path())
                    .is_ok_and(|target| inodes.iter().any(|inode| target == Path::new(inode)))
            });
        holds_port.then(|| (pid, command_line(&process.path())))
    })
}

/// Returns address and inode from a line of `/proc/net/tcp`, if the socket listens on `port`.
fn parse_listening(line: &str, port: u16) -> Option<(IpAddr, &str)> {
    let fields: Vec<_> = line.split_whitespace().collect();
    let (address, line_port) = fields.get(1)?.split_once(':')?;
    if *fields.get(3)? != "0A" || u16::from_str_radix(line_port, 16) != Ok(port) {
        return None;
    }
    // The address consists of words of 32 bits in the machine's byte order.
    let words: Vec<u8> = (0..address.len() / 8)
        .filter_map(|index| u32::from_str_radix(address.get(index * 8..index * 8 + 8)?, 16).ok())
        .flat_map(u32::to_ne_bytes)
        .collect();
    let ip = match words.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(words).ok()?),
        16 => IpAddr::from(<[u8; 16]>::try_from(words).ok()?),
        _ => return None,
    };
    Some((ip, fields.get(9)?))
}

fn command_line(process: &Path) -> String {
    let line = fs::read(process.join("cmdline")).unwrap_or_default();
    let words: Vec<_> = line
        .split(|byte| *byte == 0)
        .filter(|word| !word.is_empty())
        .map(String::from_utf8_lossy)
        .collect();
    let line: String = words.join(" ").chars().take(120).collect();
    if line.is_empty() {
        return fs::read_to_string(process.join("comm"))
            .unwrap_or_default()
            .trim()
            .to_owned();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_a_port_is_named() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let error = listen(address).unwrap_err().to_string();
        assert!(
            error.contains(&format!("this process ({})", std::process::id())),
            "{error}"
        );
        assert!(error.contains("--listen"), "{error}");
    }

    #[test]
    fn lines_of_proc_net_tcp_are_parsed() {
        let line = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12345 1 0 100 0 0 10 0";
        assert_eq!(
            parse_listening(line, 8080),
            Some((IpAddr::from([127, 0, 0, 1]), "12345"))
        );
        assert_eq!(parse_listening(line, 8081), None);
        assert_eq!(parse_listening("rubbish", 1), None);
    }
}
