//! Opens connections: `listen` and `accept`, or `connect`.

use alloc::sync::Arc;
use alloc::task::Wake;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU16;
use core::sync::atomic::Ordering::Relaxed;

use os_abi::Error;
use smoltcp::socket::tcp;
use smoltcp::wire::{IpAddress, IpEndpoint, Ipv4Address};

use super::{Socket, State, stack};
use crate::executor::level;
use crate::net::endpoint::endpoint;
use crate::net::lists::Index;
use crate::net::table::{self, Key, Kind, Owner};
use crate::net::{ACK_DELAY, KEEP_ALIVE, STALL_TIMEOUT, Stack};
use crate::process::Share;

/// Maximum number of connections in a backlog.
const MAX_BACKLOG: usize = 128;
/// First of the ports for sockets without a port of their own.
const FIRST_EPHEMERAL: u16 = 49_152;
pub(super) const EPHEMERAL_PORTS: u16 = u16::MAX - FIRST_EPHEMERAL + 1;

/// Number of ephemeral ports that have been tried so far.
static TRIED_PORTS: AtomicU16 = AtomicU16::new(0);

pub(super) fn ephemeral() -> u16 {
    FIRST_EPHEMERAL + TRIED_PORTS.fetch_add(1, Relaxed) % EPHEMERAL_PORTS
}

impl Stack {
    fn add_listening(&mut self, share: &Arc<Share>, port: u16) -> Result<Index, Error> {
        let index = self.add_stream(share, Owner::Listener(port))?;
        // The new socket listens from now on; so does each socket of the listener whose connection
        // has closed.
        self.update_socket(index);
        Ok(index)
    }

    /// Makes a program the owner of a connection. From now on a silent peer is probed.
    fn assign_to_program(&mut self, index: Index) {
        self.table.slot(index).owner = Owner::Program;
        let mut endpoint = endpoint(index);
        let socket = endpoint.tcp();
        let peer = socket.remote_endpoint();
        let is_own = peer.is_some_and(|peer| self.link.is_own(peer.addr));
        socket.set_keep_alive(Some(KEEP_ALIVE));
        socket.set_timeout(Some(STALL_TIMEOUT));
        socket.set_ack_delay(is_own.then_some(ACK_DELAY));
        drop(endpoint);
        self.update_socket(index);
    }

    fn is_connected(&self, port: u16, address: u32, peer_port: u16) -> bool {
        let key = Key {
            protocol: table::TCP,
            port,
            peer: (address, peer_port),
        };
        self.table.find(key).is_some()
    }

    fn free_port(&self, address: u32, peer_port: u16) -> Result<u16, Error> {
        let mut candidates = (0..EPHEMERAL_PORTS).map(|_| ephemeral());
        let is_free = |port: &u16| !self.is_connected(*port, address, peer_port);
        candidates.find(is_free).ok_or(Error::TooMany)
    }
}

impl State {
    /// Returns the port of an unconnected stream socket, or 0 if it has none.
    fn unconnected_port(&self) -> Result<u16, Error> {
        match *self {
            State::Unconnected {
                port,
                kind: Kind::Stream,
            } => Ok(port),
            _ => Err(Error::BadFile),
        }
    }
}

impl Socket {
    /// Makes the socket a listener with a backlog of `count` connections.
    ///
    /// # Errors
    /// [`Error::BadArgument`] without a port or with an invalid backlog; [`Error::InUse`];
    /// [`Error::TooMany`], [`Error::OutOfMemory`].
    pub(crate) fn listen(&self, count: usize) -> Result<(), Error> {
        let mut state = self.state.lock();
        let port = state.unconnected_port()?;
        if port == 0 || !(1..=MAX_BACKLOG).contains(&count) {
            return Err(Error::BadArgument);
        }
        let mut backlog = Vec::new();
        let reserved = backlog.try_reserve_exact(count);
        reserved.map_err(|_| Error::OutOfMemory)?;
        let mut stack = stack();
        if !stack.table.claim_port(port) {
            return Err(Error::InUse);
        }
        for _ in 0..count {
            match stack.add_listening(&self.share, port) {
                Ok(index) => backlog.push(index),
                Err(error) => {
                    for index in backlog {
                        stack.orphan(index, level());
                    }
                    stack.table.release_port(port);
                    return Err(error);
                }
            }
        }
        *state = State::Listener { port, backlog };
        Ok(())
    }

    /// Waits for a connection.
    ///
    /// # Errors
    /// [`Error::BadFile`] if the socket does not listen.
    pub(crate) async fn accept(&self) -> Result<Socket, Error> {
        let condition = |state: &mut State| {
            let State::Listener { port, backlog } = state else {
                return Some(Err(Error::BadFile));
            };
            // A connection stays in the backlog until it is accepted.
            let mut stack = stack();
            let is_pending = |state| matches!(state, tcp::State::Listen | tcp::State::SynReceived);
            let is_established = |index: &Index| !is_pending(endpoint(*index).tcp().state());
            let at = backlog.iter().position(is_established)?;
            // Without memory for another socket, the connection stays in the backlog.
            let next = match stack.add_listening(&self.share, *port) {
                Ok(next) => next,
                Err(error) => return Some(Err(error)),
            };
            let index = core::mem::replace(&mut backlog[at], next);
            stack.assign_to_program(index);
            Some(Ok(Socket::with_state(&self.share, State::Stream(index))))
        };
        let accepted = self.wait_until(condition).await;
        // The other waiters register again, for the new socket in the backlog, too.
        self.waiters.clone().wake();
        accepted
    }

    /// Connects to a port of an address.
    ///
    /// # Errors
    /// [`Error::Refused`]; [`Error::BadFile`] if the socket is connected, or listens.
    pub(crate) async fn connect(&self, address: u32, peer_port: u16) -> Result<(), Error> {
        {
            let mut state = self.state.lock();
            let port = state.unconnected_port()?;
            let remote = IpEndpoint::new(IpAddress::Ipv4(Ipv4Address::from(address)), peer_port);
            let mut stack = stack();
            let port = match port {
                0 => stack.free_port(address, peer_port)?,
                port if stack.is_connected(port, address, peer_port) => {
                    return Err(Error::InUse);
                }
                port => port,
            };
            let index = stack.add_stream(&self.share, Owner::Program)?;
            let context = stack.interface.context();
            let connected = endpoint(index).tcp().connect(context, remote, port);
            if connected.is_err() {
                stack.remove(index);
                return Err(Error::BadArgument);
            }
            *state = State::Stream(index);
            stack.assign_to_program(index);
            stack.add_work(index, level());
        }
        let condition = |state: &mut State| {
            let State::Stream(index) = *state else {
                return Some(Err(Error::BadFile));
            };
            match endpoint(index).tcp().state() {
                tcp::State::SynSent | tcp::State::SynReceived => None,
                tcp::State::Closed => Some(Err(Error::Refused)),
                _ => Some(Ok(())),
            }
        };
        self.wait_until(condition).await
    }
}
