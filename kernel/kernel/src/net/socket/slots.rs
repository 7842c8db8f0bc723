//! Creates and releases the part of a socket that belongs to the stack, with its buffers.

use alloc::sync::Arc;
use alloc::vec::Vec;

use os_abi::Error;
use smoltcp::socket::tcp;
use upshift_core::Level;

use crate::memory;
use crate::net::endpoint::endpoint;
use crate::net::lists::Index;
use crate::net::table::{Kind, Owner};
use crate::net::{SILENCE_TIMEOUT, Stack};
use crate::process::Share;
use crate::process::share::{Charge, Resource};

/// Size of a buffer in bytes; a socket has a buffer for each direction.
pub(super) const BUFFER: usize = 4096;
/// Memory of a socket in KiB: its buffers, and its slot in the table.
const KIB: usize = 12;

pub(super) fn charge(share: &Arc<Share>) -> Result<[Charge; 2], Error> {
    let socket = share.charge(Resource::Sockets, 1)?;
    Ok([socket, share.charge(Resource::Memory, KIB)?])
}

pub(super) fn buffer() -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let reserved = bytes.try_reserve_exact(BUFFER);
    reserved.map_err(|_| Error::OutOfMemory)?;
    bytes.resize(BUFFER, 0);
    Ok(bytes)
}

impl Stack {
    pub(super) fn add_stream(&mut self, share: &Arc<Share>, owner: Owner) -> Result<Index, Error> {
        if memory::is_short() {
            return Err(Error::OutOfMemory);
        }
        let charges = charge(share)?;
        let buffer = || buffer().map(tcp::SocketBuffer::new);
        let mut socket = tcp::Socket::new(buffer()?, buffer()?);
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(None);
        self.table.add(socket, Kind::Stream, owner, charges)
    }

    /// Closes a socket that has lost its owner.
    pub(in crate::net) fn orphan(&mut self, index: Index, level: Level) {
        let slot = self.table.slot(index);
        let owner = core::mem::replace(&mut slot.owner, Owner::None);
        slot.stalled_since = None;
        if slot.kind != Kind::Stream {
            self.remove(index);
            return;
        }
        // The peer has not answered; if it answers later, it gets a reset.
        if endpoint(index).tcp().state() == tcp::State::SynSent {
            self.remove(index);
            return;
        }
        match owner {
            // The socket has no connection that a program knows.
            Owner::Listener(_) => endpoint(index).tcp().abort(),
            _ => self.close_write(index),
        }
        // From now on the connection is reset if its peer is silent for this time.
        let mut endpoint = endpoint(index);
        let socket = endpoint.tcp();
        socket.set_keep_alive(None);
        socket.set_timeout(Some(SILENCE_TIMEOUT));
        drop(endpoint);
        self.add_work(index, level);
    }
}
