//! Beginning of a connection: listening and accepting, or connecting.

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
use crate::net::{ACKNOWLEDGE, ASK, GONE, Stack};
use crate::process::Share;

/// The most connections to be of a listener.
const MAX_BACKLOG: usize = 128;
/// First port of connections without a port of their own.
const EPHEMERAL: u16 = 49_152;
/// Number of these ports.
pub(super) const EPHEMERALS: u16 = u16::MAX - EPHEMERAL + 1;

static PORT: AtomicU16 = AtomicU16::new(0);

/// Returns the next of these ports.
pub(super) fn ephemeral() -> u16 {
    EPHEMERAL + PORT.fetch_add(1, Relaxed) % EPHEMERALS
}

impl Stack {
    /// Adds a place to a listener's backlog.
    fn add_listening(&mut self, share: &Arc<Share>, port: u16) -> Result<Index, Error> {
        let index = self.add_stream(share, Owner::Listener(port))?;
        // The new socket listens from now on, like each socket of a listener that was closed.
        self.changed(index);
        Ok(index)
    }

    /// Notes that a connection has an owner, which is to be told when its peer is gone.
    fn is_taken(&mut self, index: Index) {
        self.table.slot(index).owner = Owner::Program;
        let mut endpoint = endpoint(index);
        let socket = endpoint.tcp();
        let peer = socket.remote_endpoint();
        let is_own = peer.is_some_and(|peer| self.link.is_own(peer.addr));
        socket.set_keep_alive(Some(ASK));
        socket.set_timeout(Some(GONE));
        socket.set_ack_delay(is_own.then_some(ACKNOWLEDGE));
        drop(endpoint);
        self.changed(index);
    }

    /// Returns whether there is such a connection.
    fn is_connected(&self, port: u16, address: u32, to: u16) -> bool {
        let key = Key {
            protocol: table::TCP,
            port,
            peer: (address, to),
        };
        self.table.find(key).is_some()
    }

    /// Returns a port for a connection there.
    fn free_port(&self, address: u32, to: u16) -> Result<u16, Error> {
        let mut candidates = (0..EPHEMERALS).map(|_| ephemeral());
        let is_free = |port: &u16| !self.is_connected(*port, address, to);
        candidates.find(is_free).ok_or(Error::TooMany)
    }
}

impl State {
    /// Returns the port of a socket that neither listens nor is connected, 0: none.
    fn port_of_fresh(&self) -> Result<u16, Error> {
        match *self {
            State::Fresh {
                port,
                kind: Kind::Stream,
            } => Ok(port),
            _ => Err(Error::BadFile),
        }
    }
}

impl Socket {
    /// Lets at most `count` connections come in until they are accepted.
    ///
    /// # Errors
    /// [`Error::BadArgument`] without a port, or with no backlog; [`Error::InUse`];
    /// [`Error::TooMany`], [`Error::OutOfMemory`].
    pub(crate) fn listen(&self, count: usize) -> Result<(), Error> {
        let mut state = self.state.lock();
        let port = state.port_of_fresh()?;
        if port == 0 || !(1..=MAX_BACKLOG).contains(&count) {
            return Err(Error::BadArgument);
        }
        let mut backlog = Vec::new();
        let reserved = backlog.try_reserve_exact(count);
        reserved.map_err(|_| Error::OutOfMemory)?;
        let mut stack = stack();
        if !stack.table.take_port(port) {
            return Err(Error::InUse);
        }
        for _ in 0..count {
            match stack.add_listening(&self.share, port) {
                Ok(index) => backlog.push(index),
                Err(error) => {
                    for index in backlog {
                        stack.give_up(index, level());
                    }
                    stack.table.give_port(port);
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
    /// [`Error::BadFile`]: it does not listen.
    pub(crate) async fn accept(&self) -> Result<Socket, Error> {
        let look = |state: &mut State| {
            let State::Listener { port, backlog } = state else {
                return Some(Err(Error::BadFile));
            };
            // A connection that is there stays so until it is taken.
            let mut stack = stack();
            let waits = |state| matches!(state, tcp::State::Listen | tcp::State::SynReceived);
            let is_there = |index: &Index| !waits(endpoint(*index).tcp().state());
            let at = backlog.iter().position(is_there)?;
            // Without memory for another, the connection waits until there is.
            let next = match stack.add_listening(&self.share, *port) {
                Ok(next) => next,
                Err(error) => return Some(Err(error)),
            };
            let index = core::mem::replace(&mut backlog[at], next);
            stack.is_taken(index);
            Some(Ok(Socket::of(&self.share, State::Stream(index))))
        };
        let accepted = self.until(look).await;
        // Other waiters have to learn of the new socket in the backlog, too.
        self.waiters.clone().wake();
        accepted
    }

    /// Connects to a port of an address.
    ///
    /// # Errors
    /// [`Error::Refused`]; [`Error::BadFile`]: it is connected, or listens.
    pub(crate) async fn connect(&self, address: u32, to: u16) -> Result<(), Error> {
        {
            let mut state = self.state.lock();
            let port = state.port_of_fresh()?;
            let remote = IpEndpoint::new(IpAddress::Ipv4(Ipv4Address::from(address)), to);
            let mut stack = stack();
            let port = match port {
                0 => stack.free_port(address, to)?,
                port if stack.is_connected(port, address, to) => return Err(Error::InUse),
                port => port,
            };
            let index = stack.add_stream(&self.share, Owner::Program)?;
            let context = stack.interface.context();
            let begun = endpoint(index).tcp().connect(context, remote, port);
            if begun.is_err() {
                stack.remove(index);
                return Err(Error::BadArgument);
            }
            *state = State::Stream(index);
            stack.is_taken(index);
            stack.kick(index, level());
        }
        let look = |state: &mut State| {
            let State::Stream(index) = *state else {
                return Some(Err(Error::BadFile));
            };
            match endpoint(index).tcp().state() {
                tcp::State::SynSent | tcp::State::SynReceived => None,
                tcp::State::Closed => Some(Err(Error::Refused)),
                _ => Some(Ok(())),
            }
        };
        self.until(look).await
    }
}
