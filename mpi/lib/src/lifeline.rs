//! Implements lifelines, which are TCP connections that report the death of a rank that is alone on
//! its host.
//!
//! A pidfd reports only processes of its own host. If a job spans several hosts, the first rank of
//! each host has a TCP connection to rank 0. The kernel closes the connection when the process
//! dies, for whatever reason; a rank that leaves the job normally sends [`LEAVING`] first. If
//! several ranks run on a host, the other ranks of the host report the death, and they also know
//! the last request of the dead rank. So a closed lifeline counts as a death only if the rank was
//! alone.
//!
//! A job on one host has no lifelines. A host that cannot reach rank 0 by IPv4 has no lifeline
//! either, and prints a warning when the job starts.

use std::collections::BTreeSet;
use std::ffi::c_int;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use mpi_sys as sys;

use crate::error::{Result, check};
use crate::launch::system;
use crate::node::Node;

/// The byte that a rank sends before it leaves the job normally.
const LEAVING: u8 = b'L';

/// Size of the invitation that rank 0 broadcasts: the token, then its addresses as text.
const INVITATION_BYTES: usize = 512;

/// Size of the secret by which both ends recognise that they belong to the same job.
const TOKEN_BYTES: usize = 16;

/// Maximum wait for a connection to one address of rank 0, and for each message of the greeting.
const GREETING_TIMEOUT: Duration = Duration::from_secs(2);

/// The first rank of another host, at the other end of a connection.
pub(crate) struct Lifeline {
    pub(crate) rank: u32,
    pub(crate) pid: u32,
    is_alone: bool,
    stream: TcpStream,
}

/// The state of a lifeline that has become readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum LineState {
    Open,
    /// The rank has left normally, or has died and had neighbours, which report its death.
    Closed,
    /// The rank has died, alone on its host.
    Lost,
}

impl Lifeline {
    /// Connects the first ranks of all hosts with rank 0. Returns no lifelines in a job on one
    /// host.
    ///
    /// # Safety
    /// MPI is initialised, and this thread may call it. All ranks call this function.
    ///
    /// # Errors
    /// Returns an error if MPI refuses a collective. A failed connection is not an error.
    pub(crate) unsafe fn connect_all(node: &Node, rank: u32, size: usize) -> Result<Vec<Lifeline>> {
        let host_leader = node.ranks[0];
        // SAFETY: guaranteed by the caller; `host_leaders` has one item for each rank.
        let other_hosts = unsafe {
            let mut host_leaders = vec![0u32; size];
            check(sys::MPI_Allgather(
                (&raw const host_leader).cast(),
                1,
                sys::RSMPI_UINT32_T,
                host_leaders.as_mut_ptr().cast(),
                1,
                sys::RSMPI_UINT32_T,
                sys::RSMPI_COMM_WORLD,
            ))?;
            host_leaders.into_iter().collect::<BTreeSet<u32>>().len() - 1
        };
        if other_hosts == 0 {
            return Ok(Vec::new());
        }
        let (mut listener, mut invitation) = (None, [0; INVITATION_BYTES]);
        if rank == 0 {
            listener = listen_for_hosts(&mut invitation).map_err(system)?;
        }
        // SAFETY: guaranteed by the caller; the array has `INVITATION_BYTES` bytes.
        unsafe {
            check(sys::MPI_Bcast(
                invitation.as_mut_ptr().cast(),
                INVITATION_BYTES as c_int,
                sys::RSMPI_UINT8_T,
                0,
                sys::RSMPI_COMM_WORLD,
            ))?;
        }
        let hello = Hello::new(&invitation, rank, node.ranks.len() == 1);
        let connection = (rank == host_leader && rank != 0).then(|| hello.connect(&invitation));
        // After this barrier, every host that can reach rank 0 is in the queue of rank 0's
        // listener.
        // SAFETY: guaranteed by the caller.
        check(unsafe { sys::MPI_Barrier(sys::RSMPI_COMM_WORLD) })?;
        if let Some(listener) = listener {
            return Ok(hello.accept_all(&listener, other_hosts));
        }
        match connection {
            None => Ok(Vec::new()),
            Some(stream) => match stream.and_then(|stream| hello.await_greeting(stream)) {
                Ok(line) => Ok(vec![line]),
                Err(error) => {
                    eprintln!(
                        "upshift-mpi: the host of rank {rank} has no TCP connection to rank 0 ({error}): \
                         the death of a rank that is alone on its host is not reported"
                    );
                    Ok(Vec::new())
                }
            },
        }
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    pub(crate) fn read_state(&mut self) -> LineState {
        match self.stream.read(&mut [0]) {
            Ok(1..) => LineState::Closed,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => LineState::Open,
            Ok(0) | Err(_) if self.is_alone => LineState::Lost,
            Ok(0) | Err(_) => LineState::Closed,
        }
    }

    /// Notifies the other end that this rank leaves normally.
    pub(crate) fn leave(&self) {
        // An error means that the other end has gone.
        let _ = (&self.stream).write(&[LEAVING]);
    }
}

/// The greeting that each end of a connection sends first.
struct Hello {
    token: [u8; TOKEN_BYTES],
    rank: u32,
    is_alone: bool,
}

/// A greeting as bytes: token, rank, process, and whether the rank is alone on its host.
type Wire = [u8; TOKEN_BYTES + 9];

impl Hello {
    fn new(invitation: &[u8; INVITATION_BYTES], rank: u32, is_alone: bool) -> Hello {
        let mut token = [0; TOKEN_BYTES];
        token.copy_from_slice(&invitation[..TOKEN_BYTES]);
        Hello {
            token,
            rank,
            is_alone,
        }
    }

    fn wire(&self) -> Wire {
        let mut wire = [0; TOKEN_BYTES + 9];
        wire[..TOKEN_BYTES].copy_from_slice(&self.token);
        wire[TOKEN_BYTES..TOKEN_BYTES + 4].copy_from_slice(&self.rank.to_le_bytes());
        wire[TOKEN_BYTES + 4..TOKEN_BYTES + 8].copy_from_slice(&std::process::id().to_le_bytes());
        wire[TOKEN_BYTES + 8] = self.is_alone.into();
        wire
    }

    /// Connects to rank 0 by the first of its addresses that accepts a connection.
    fn connect(&self, invitation: &[u8; INVITATION_BYTES]) -> io::Result<TcpStream> {
        let text = String::from_utf8_lossy(&invitation[TOKEN_BYTES..]);
        let mut last_error = io::Error::other("rank 0 has no address");
        for address in text.trim_end_matches('\0').split(',') {
            let Ok(address) = address.parse::<SocketAddr>() else {
                continue;
            };
            let connected = TcpStream::connect_timeout(&address, GREETING_TIMEOUT)
                .and_then(|mut stream| stream.write_all(&self.wire()).map(|()| stream));
            match connected {
                Ok(stream) => return Ok(stream),
                Err(error) => last_error = error,
            }
        }
        Err(last_error)
    }

    /// Reads the greeting of the other end. Another program may listen at the address of rank 0.
    fn read_greeting(&self, mut stream: TcpStream) -> io::Result<Lifeline> {
        stream.set_read_timeout(Some(GREETING_TIMEOUT))?;
        let mut wire: Wire = [0; TOKEN_BYTES + 9];
        stream.read_exact(&mut wire)?;
        if wire[..TOKEN_BYTES] != self.token {
            return Err(io::Error::other("another program answers"));
        }
        stream.set_nonblocking(true)?;
        let word = |offset: usize| u32::from_le_bytes([0, 1, 2, 3].map(|n| wire[offset + n]));
        Ok(Lifeline {
            rank: word(TOKEN_BYTES),
            pid: word(TOKEN_BYTES + 4),
            is_alone: wire[TOKEN_BYTES + 8] != 0,
            stream,
        })
    }

    fn await_greeting(&self, stream: TcpStream) -> io::Result<Lifeline> {
        // Rank 0 may wait for other hosts first.
        stream.set_read_timeout(Some(GREETING_TIMEOUT * 2))?;
        self.read_greeting(stream)
    }

    /// Accepts the waiting connections, and keeps the connections of this job's hosts.
    fn accept_all(&self, listener: &TcpListener, other_hosts: usize) -> Vec<Lifeline> {
        let mut lines = Vec::new();
        while lines.len() < other_hosts
            && let Ok((stream, _)) = listener.accept()
        {
            let welcome = |line: Lifeline| (&line.stream).write_all(&self.wire()).map(|()| line);
            lines.extend(self.read_greeting(stream).and_then(welcome));
        }
        lines
    }
}

/// Listens on all addresses of this host, and writes the addresses into the invitation. If the host
/// has no address or the socket cannot be bound, the invitation stays empty and no host connects.
fn listen_for_hosts(invitation: &mut [u8; INVITATION_BYTES]) -> io::Result<Option<TcpListener>> {
    // SAFETY: the call writes at most `TOKEN_BYTES` bytes, and the array is longer.
    let read = unsafe { libc::getrandom(invitation.as_mut_ptr().cast(), TOKEN_BYTES, 0) };
    if read != TOKEN_BYTES as isize {
        return Err(io::Error::last_os_error());
    }
    let Ok(listener) = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)) else {
        return Ok(None);
    };
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    let mut offset = TOKEN_BYTES;
    for address in addresses()? {
        let text = format!("{},", SocketAddr::new(address, port));
        let Some(target) = invitation.get_mut(offset..offset + text.len()) else {
            break;
        };
        target.copy_from_slice(text.as_bytes());
        offset += text.len();
    }
    Ok(Some(listener))
}

/// Returns the IPv4 addresses of this host that other hosts may be able to reach.
fn addresses() -> io::Result<Vec<IpAddr>> {
    let mut addresses = Vec::new();
    // SAFETY: the list is valid until it is freed; an entry's address has the type of its family.
    unsafe {
        let mut list = std::ptr::null_mut();
        if libc::getifaddrs(&mut list) != 0 {
            return Err(io::Error::last_os_error());
        }
        let mut entry = list;
        while let Some(interface) = entry.as_ref() {
            let flags = interface.ifa_flags as c_int;
            let is_up = flags & libc::IFF_UP != 0 && flags & libc::IFF_LOOPBACK == 0;
            if is_up
                && let Some(address) = interface.ifa_addr.as_ref()
                && c_int::from(address.sa_family) == libc::AF_INET
            {
                let address = &*interface.ifa_addr.cast::<libc::sockaddr_in>();
                let bits = u32::from_be(address.sin_addr.s_addr);
                addresses.push(IpAddr::V4(Ipv4Addr::from(bits)));
            }
            entry = interface.ifa_next;
        }
        libc::freeifaddrs(list);
    }
    Ok(addresses)
}
