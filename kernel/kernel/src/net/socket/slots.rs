//! The part of a socket that belongs to the stack: its buffers, from creation to release.

use alloc::sync::Arc;
use alloc::vec::Vec;

use os_abi::Error;
use smoltcp::socket::tcp;
use upshift_core::Level;

use crate::memory;
use crate::net::endpoint::endpoint;
use crate::net::lists::Index;
use crate::net::table::{Kind, Owner};
use crate::net::{LINGER, Stack};
use crate::process::Share;
use crate::process::share::{Resource, Taken};

/// Bytes each way.
pub(super) const BUFFER: usize = 4096;
/// KiB of a socket: its buffers, its slot in the table.
const KIB: usize = 12;

/// Takes a socket of a share, and the memory for it.
pub(super) fn take(share: &Arc<Share>) -> Result<[Taken; 2], Error> {
    let socket = share.take(Resource::Sockets, 1)?;
    Ok([socket, share.take(Resource::Memory, KIB)?])
}

pub(super) fn buffer() -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let reserved = bytes.try_reserve_exact(BUFFER);
    reserved.map_err(|_| Error::OutOfMemory)?;
    bytes.resize(BUFFER, 0);
    Ok(bytes)
}

impl Stack {
    /// A socket with buffers of its own.
    pub(super) fn add_stream(&mut self, share: &Arc<Share>, owner: Owner) -> Result<Index, Error> {
        if memory::is_short() {
            return Err(Error::OutOfMemory);
        }
        let taken = take(share)?;
        let buffer = || buffer().map(tcp::SocketBuffer::new);
        let mut socket = tcp::Socket::new(buffer()?, buffer()?);
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(None);
        self.table.add(socket, Kind::Stream, owner, taken)
    }

    /// Gives up a socket, which has no owner any more.
    pub(in crate::net) fn give_up(&mut self, index: Index, level: Level) {
        let slot = self.table.slot(index);
        let owner = core::mem::replace(&mut slot.owner, Owner::None);
        slot.waits = None;
        if slot.kind != Kind::Stream {
            self.remove(index);
            return;
        }
        // No peer knows of the connection, or a peer that answers gets a reset.
        if endpoint(index).tcp().state() == tcp::State::SynSent {
            self.remove(index);
            return;
        }
        match owner {
            // The socket has not been used.
            Owner::Listener(_) => endpoint(index).tcp().abort(),
            _ => self.end(index),
        }
        // Without an owner it is kept for no longer than this.
        let mut endpoint = endpoint(index);
        let socket = endpoint.tcp();
        socket.set_keep_alive(None);
        socket.set_timeout(Some(LINGER));
        drop(endpoint);
        self.kick(index, level);
    }
}
