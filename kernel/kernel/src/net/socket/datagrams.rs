//! Datagram sockets.

use alloc::sync::Arc;
use alloc::vec;

use os_abi::{Error, datagram};
use smoltcp::socket::udp;
use smoltcp::wire::{IpAddress, IpEndpoint, Ipv4Address};

use super::connecting::{EPHEMERAL_PORTS, ephemeral};
use super::slots::{buffer, charge};
use super::{Socket, State, stack};
use crate::executor::level;
use crate::memory;
use crate::net::Stack;
use crate::net::endpoint::endpoint;
use crate::net::lists::Index;
use crate::net::requests::requests;
use crate::net::table::{Key, Kind, Owner, UDP};
use crate::process::Share;

/// Number of datagrams in a buffer; a socket has a buffer for each direction.
const DATAGRAMS: usize = 16;

impl Stack {
    pub(in crate::net) fn add_datagrams(
        &mut self,
        share: &Arc<Share>,
        port: u16,
    ) -> Result<Index, Error> {
        if memory::is_short() {
            return Err(Error::OutOfMemory);
        }
        let key = |port| Key {
            protocol: UDP,
            port,
            peer: (0, 0),
        };
        let port = match port {
            0 => {
                let mut candidates = (0..EPHEMERAL_PORTS).map(|_| ephemeral());
                let is_free = |port: &u16| self.table.find(key(*port)).is_none();
                candidates.find(is_free).ok_or(Error::TooMany)?
            }
            port if self.table.find(key(port)).is_some() => return Err(Error::InUse),
            port => port,
        };
        let charges = charge(share)?;
        let metadata = || vec![udp::PacketMetadata::EMPTY; DATAGRAMS];
        let buffer = || Ok(udp::PacketBuffer::new(metadata(), buffer()?));
        let mut socket = udp::Socket::new(buffer()?, buffer()?);
        // The call cannot fail, because the port is not 0 and the socket is new.
        let _ = socket.bind(port);
        let index = self
            .table
            .add(socket, Kind::Datagrams, Owner::Program, charges)?;
        self.table.set_key(index, Some(key(port)));
        Ok(index)
    }
}

impl Socket {
    /// Sends a datagram of `len` bytes that `put` writes. Returns `None` if there is no space.
    pub(crate) fn send_to(
        &self,
        len: usize,
        address: u32,
        port: u16,
        put: impl FnOnce(&mut [u8]) -> Result<(), Error>,
    ) -> Option<Result<usize, Error>> {
        let mut state = self.state.lock();
        if let State::Unconnected {
            kind: Kind::Datagrams,
            ..
        } = *state
        {
            match stack().add_datagrams(&self.share, 0) {
                Ok(index) => *state = State::Datagrams(index),
                Err(error) => return Some(Err(error)),
            }
        }
        let State::Datagrams(index) = *state else {
            return Some(Err(Error::BadFile));
        };
        let to = IpEndpoint::new(IpAddress::Ipv4(Ipv4Address::from(address)), port);
        if len > datagram::MAX_LEN || port == 0 || to.addr.is_unspecified() {
            return Some(Err(Error::BadArgument));
        }
        let outcome = match endpoint(index).udp().send(len, to) {
            Err(udp::SendError::BufferFull) => return None,
            Err(udp::SendError::Unaddressable) => Err(Error::BadArgument),
            Ok(bytes) => put(bytes).map(|()| len),
        };
        requests().add_work(index, level());
        Some(outcome)
    }

    /// Passes the oldest datagram to `take`, with its source address and port. Returns `None` if
    /// there is none.
    pub(crate) fn receive_from(
        &self,
        take: impl FnOnce(u32, u16, &[u8]) -> Result<usize, Error>,
    ) -> Option<Result<usize, Error>> {
        let state = self.state.lock();
        let State::Datagrams(index) = *state else {
            return Some(Err(Error::BadFile));
        };
        let mut endpoint = endpoint(index);
        let (bytes, from) = endpoint.udp().recv().ok()?;
        let IpAddress::Ipv4(address) = from.endpoint.addr;
        Some(take(address.to_bits(), from.endpoint.port, bytes))
    }
}
