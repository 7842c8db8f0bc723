//! Connects to the daemon and exchanges messages. Each request waits at most two seconds for its
//! reply.

use std::borrow::ToOwned;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::string::String;
use std::time::Duration;
use std::vec::Vec;

use rustix::fs::SealFlags;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};

use crate::client::error::JoinError;
use crate::client::{Census, Joined};
use crate::os;
use crate::wire::{self, Reply, Thread};

/// Maximum time to send a request, and to wait for its reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of bytes that are read of a census.
const MAX_CENSUS_BYTES: u64 = 64 << 20;

#[derive(Debug)]
pub(super) struct Connection {
    socket: OwnedFd,
}

/// The reply to a registration, with its descriptors.
pub(super) struct Welcome {
    pub(super) joined: Joined,
    pub(super) slot: u32,
    pub(super) global: OwnedFd,
    pub(super) doorbells: Vec<OwnedFd>,
}

impl Connection {
    pub(super) fn open(path: &Path) -> Result<Connection, JoinError> {
        let no_daemon = |error: rustix::io::Errno| JoinError::NoDaemon {
            socket: path.to_owned(),
            error: error.into(),
        };
        let local = |error: rustix::io::Errno| JoinError::Local(error.into());
        let address = SocketAddrUnix::new(path).map_err(no_daemon)?;
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(local)?;
        for timeout in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&socket, timeout, Some(REPLY_TIMEOUT)).map_err(local)?;
        }
        rustix::net::connect(&socket, &address).map_err(no_daemon)?;
        Ok(Connection { socket })
    }

    pub(super) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    fn exchange<'a>(
        &self,
        request: &[u8],
        fds: &[BorrowedFd<'_>],
        reply_buffer: &'a mut wire::Buffer,
    ) -> Result<(Reply<'a>, Vec<OwnedFd>), JoinError> {
        os::send(self.socket.as_fd(), request, fds).map_err(JoinError::Lost)?;
        let (length, fds) = os::receive(self.socket.as_fd(), reply_buffer, RecvFlags::empty())
            .map_err(JoinError::Lost)?;
        if length == 0 {
            return Err(JoinError::Lost(io::ErrorKind::ConnectionReset.into()));
        }
        match Reply::decode(&reply_buffer[..length]).map_err(JoinError::Protocol)? {
            Reply::Refused { reason, text } => Err(JoinError::Refused {
                reason,
                text: text.to_owned(),
            }),
            reply => Ok((reply, fds)),
        }
    }

    pub(super) fn register(
        &self,
        cpus: &[u32],
        threads: &[Thread],
        page: BorrowedFd<'_>,
    ) -> Result<Welcome, JoinError> {
        let mut message = wire::buffer();
        let length =
            wire::encode_register(&mut message, cpus, threads).ok_or(JoinError::TooMany)?;
        let mut reply_buffer = wire::buffer();
        let (reply, mut fds) = self.exchange(&message[..length], &[page], &mut reply_buffer)?;
        let Reply::Welcome {
            generation,
            session,
            slot,
            vcpus,
            enforcing,
        } = reply
        else {
            return Err(JoinError::Unexpected("something other than a welcome"));
        };
        if usize::from(vcpus) != cpus.len() || fds.len() != cpus.len() + 1 {
            return Err(JoinError::Unexpected("with wrong vCPUs or descriptors"));
        }
        let global = fds.remove(0);
        // An unsealed page could be cut short by its owner, and reading it would end this process.
        let seals = rustix::fs::fcntl_get_seals(&global).unwrap_or(SealFlags::empty());
        if !seals.contains(SealFlags::SHRINK | SealFlags::SEAL) {
            return Err(JoinError::Unexpected("with a page that is not sealed"));
        }
        Ok(Welcome {
            joined: Joined {
                enforcing,
                generation,
                session,
            },
            slot,
            global,
            doorbells: fds,
        })
    }

    pub(super) fn update(&self, added: &[Thread], removed: &[i32]) -> Result<(), JoinError> {
        let mut message = wire::buffer();
        let length = wire::encode_update(&mut message, added, removed).ok_or(JoinError::TooMany)?;
        self.expect_done(&message[..length])
    }

    pub(super) fn leave(&self) -> Result<(), JoinError> {
        let mut message = wire::buffer();
        let length = wire::encode_leave(&mut message);
        self.expect_done(&message[..length])
    }

    fn expect_done(&self, message: &[u8]) -> Result<(), JoinError> {
        let mut reply_buffer = wire::buffer();
        match self.exchange(message, &[], &mut reply_buffer)? {
            (Reply::Done(_), _) => Ok(()),
            _ => Err(JoinError::Unexpected("something other than \"done\"")),
        }
    }

    pub(super) fn census(&self) -> Result<Census, JoinError> {
        let mut message = wire::buffer();
        let length = wire::encode_census(&mut message);
        let mut reply_buffer = wire::buffer();
        let (reply, mut fds) = self.exchange(&message[..length], &[], &mut reply_buffer)?;
        let (Reply::Census { bytes }, Some(file)) = (reply, fds.pop()) else {
            return Err(JoinError::Unexpected("something other than a census"));
        };
        let mut file = File::from(file);
        let mut json = String::new();
        file.rewind().map_err(JoinError::Local)?;
        file.take(u64::from(bytes).min(MAX_CENSUS_BYTES))
            .read_to_string(&mut json)
            .map_err(JoinError::Local)?;
        Ok(Census { json })
    }

    pub(super) fn is_open(&self) -> bool {
        let mut byte = [0u8];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match rustix::net::recv(&self.socket, &mut byte, flags) {
            Ok((0, _)) => false,
            Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => true,
            Err(_) => false,
        }
    }
}
