//! The table of sockets, which finds the recipient of each frame, the sockets with frames to send,
//! and their deadlines.
//!
//! ```text
//!  frame ─► key: protocol, port, peer ─► bucket ─► slot          O(1)
//!  call, frame, clock ─► slot has something to send ─► list of its level
//! ```
//!
//! A slot contains the fields that only the stack accesses; the socket itself, which calls access
//! too, is in its endpoint (`endpoint.rs`). The cost of a frame does not depend on the number of
//! idle sockets.

use alloc::boxed::Box;
use alloc::vec::Vec;

use os_abi::Error;
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::{AnySocket, tcp};
use smoltcp::time::Instant;
use upshift_core::{LEVELS, Level};

use super::SOCKETS;
use super::deadlines::Deadlines;
use super::endpoint::{Endpoint, endpoint, replace};
use super::lists::{Index, Lists};
use super::requests::requests;
use crate::executor;
use crate::process::share::Charge;

/// Number of buckets of the hash table of keys.
const BUCKETS: usize = 1024;
/// Number of lists of half-open connections, which are assigned by port.
const HALF_OPEN_LISTS: usize = 64;

/// Key of the recipient of a frame: the local port, and the peer, which is 0 for a socket that
/// accepts frames of any peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) protocol: u8,
    pub(super) port: u16,
    pub(super) peer: (u32, u16),
}

impl Key {
    /// Returns the key of a frame: TCP and UDP in IPv4, without options that `smoltcp` would not
    /// accept.
    pub(super) fn of(frame: &[u8]) -> Option<Key> {
        let header = frame.get(14)?;
        if frame.get(12..14) != Some(&[8, 0]) || header >> 4 != 4 {
            return None;
        }
        let protocol = *frame.get(23)?;
        if protocol != TCP && protocol != UDP {
            return None;
        }
        let ports = 14 + usize::from(header & 15) * 4;
        let ports = frame.get(ports..ports + 4)?;
        let word = |at: usize| u16::from_be_bytes([ports[at], ports[at + 1]]);
        let address = frame.get(26..30)?.try_into().map_or(0, u32::from_be_bytes);
        Some(Key {
            protocol,
            port: word(2),
            peer: (address, word(0)),
        })
    }

    /// Returns the key of a socket that accepts frames of any peer.
    pub(super) fn wildcard(self) -> Key {
        Key {
            peer: (0, 0),
            ..self
        }
    }

    /// Returns whether the frame, which has this key, begins a connection.
    pub(super) fn is_syn(self, frame: &[u8]) -> bool {
        const SYN: u8 = 2;
        const ACK: u8 = 16;
        let header = frame
            .get(14)
            .map_or(0, |header| usize::from(header & 15) * 4);
        let flags = frame.get(14 + header + 13).copied().unwrap_or(0);
        self.protocol == TCP && flags & (SYN | ACK) == SYN
    }

    fn bucket(self, seed: u64) -> usize {
        let word = u64::from(self.peer.0) << 32
            | u64::from(self.peer.1) << 16
            | u64::from(self.port ^ u16::from(self.protocol) << 8);
        let mixed = (word ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 32).wrapping_mul(0xff51_afd7_ed55_8ccd) as usize >> 32 & (BUCKETS - 1)
    }
}

pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Program,
    /// A listener at this port owns the socket until its connection is accepted.
    Listener(u16),
    /// The socket has no owner; it is removed when its connection has ended.
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Stream,
    Datagrams,
    Dhcp,
}

/// The part of a socket that only the stack accesses.
pub(super) struct Slot {
    pub(super) kind: Kind,
    key: Option<Key>,
    pub(super) owner: Owner,
    /// Set while the socket has announced a frame, but could not send it. The socket may wait for
    /// the hardware address of its next hop.
    pub(super) is_stuck: bool,
    /// Set while `smoltcp` may keep the socket silent for a peer whose hardware address is unknown.
    pub(super) lacks_neighbour: bool,
    /// Time since which the peer has acknowledged no bytes, and the number of unacknowledged bytes
    /// at the last check; for a socket without an owner, the time at which it lost its owner.
    pub(super) stalled_since: Option<(Instant, usize)>,
    /// Levels of the calls for the socket since it last had no frame to send.
    calls: u64,
    /// Most urgent level of earlier calls.
    level: Level,
    /// Charges for memory and socket to a share; the kernel's own sockets have none.
    _charge: Option<[Charge; 2]>,
}

impl Slot {
    pub(super) fn level(&self) -> Level {
        let lowest_bit = self.calls.trailing_zeros() as u8;
        Level::new(lowest_bit).unwrap_or(self.level)
    }
}

pub(super) struct Table {
    slots: Vec<Option<Box<Slot>>>,
    free: Vec<Index>,
    seed: u64,
    by_key: Lists,
    /// Sockets with frames to send, in a list for each level.
    to_send: Lists,
    /// Levels of the non-empty lists in `to_send`.
    levels: u64,
    /// Connections that the peer has begun and not confirmed, oldest first.
    half_open: Lists,
    /// Ports with a listener.
    ports: Vec<u16>,
    pub(super) deadlines: Deadlines,
}

impl Table {
    pub(super) fn new(seed: u64) -> Table {
        let mut slots = Vec::new();
        slots.resize_with(SOCKETS, || None);
        Table {
            slots,
            free: (0..SOCKETS as Index).rev().collect(),
            seed,
            by_key: Lists::new(BUCKETS, SOCKETS),
            to_send: Lists::new(LEVELS, SOCKETS),
            levels: 0,
            half_open: Lists::new(HALF_OPEN_LISTS, SOCKETS),
            ports: Vec::with_capacity(SOCKETS),
            deadlines: Deadlines::new(SOCKETS),
        }
    }

    pub(super) fn add<T: AnySocket<'static>>(
        &mut self,
        socket: T,
        kind: Kind,
        owner: Owner,
        charge: impl Into<Option<[Charge; 2]>>,
    ) -> Result<Index, Error> {
        if self.free.is_empty() {
            return Err(Error::TooMany);
        }
        let mut storage = Vec::new();
        let reserved = storage.try_reserve_exact(1);
        reserved.map_err(|_| Error::OutOfMemory)?;
        let mut set = SocketSet::new(storage);
        set.add(socket);
        let index = self.free.pop().ok_or(Error::TooMany)?;
        let endpoint = Endpoint {
            set,
            is_ending: false,
            was_half_full: false,
        };
        replace(index, Some(endpoint));
        self.slots[usize::from(index)] = Some(Box::new(Slot {
            kind,
            key: None,
            owner,
            is_stuck: false,
            lacks_neighbour: false,
            stalled_since: None,
            calls: 0,
            level: executor::LEAST_URGENT_WORK,
            _charge: charge.into(),
        }));
        Ok(index)
    }

    #[cfg(feature = "selftest")]
    pub(super) fn kind_of(&self, index: Index) -> Option<Kind> {
        self.slots[usize::from(index)]
            .as_ref()
            .map(|slot| slot.kind)
    }

    pub(super) fn slot(&mut self, index: Index) -> &mut Slot {
        let slot = self.slots[usize::from(index)].as_mut();
        slot.expect("a socket has its slot until its index is free")
    }

    /// Prepares a socket for another peer.
    ///
    /// `smoltcp` keeps a socket silent for a second when it does not find the hardware address of
    /// its peer, even if the peer changes.
    pub(super) fn reset_neighbour(&mut self, index: Index) {
        let slot = self.slot(index);
        if core::mem::take(&mut slot.lacks_neighbour) {
            let set = &mut endpoint(index).set;
            let socket = set.remove(SocketHandle::default());
            set.add(socket);
        }
    }

    pub(super) fn remove(&mut self, index: Index) {
        self.set_key(index, None);
        self.set_sending(index, false);
        self.half_open.remove(index);
        self.deadlines.set(index, None);
        self.slots[usize::from(index)] = None;
        drop(replace(index, None));
        requests().clear(index);
        self.free.push(index);
    }

    /// Sets the key of the frames that the socket receives.
    pub(super) fn set_key(&mut self, index: Index, key: Option<Key>) {
        let seed = self.seed;
        let slot = self.slot(index);
        if slot.key == key {
            return;
        }
        slot.key = key;
        self.by_key.remove(index);
        if let Some(key) = key {
            self.by_key.push(key.bucket(seed), index);
        }
    }

    pub(super) fn find(&self, key: Key) -> Option<Index> {
        let has_key = |index: &Index| {
            let slot = self.slots[usize::from(*index)].as_ref();
            slot.is_some_and(|slot| slot.key == Some(key))
        };
        self.by_key.iter(key.bucket(self.seed)).find(has_key)
    }

    /// Sets whether a connection waits for its confirmation.
    pub(super) fn set_half_open(&mut self, index: Index, port: u16, is_half_open: bool) {
        match (self.half_open.list_of(index), is_half_open) {
            (None, true) => {
                let list = usize::from(port) % HALF_OPEN_LISTS;
                self.half_open.push(list, index)
            }
            (Some(_), false) => self.half_open.remove(index),
            _ => {}
        }
    }

    /// Returns the connection of a port that has waited longest for its confirmation.
    pub(super) fn oldest_half_open(&self, port: u16) -> Option<Index> {
        let has_port = |index: &Index| {
            let slot = self.slots[usize::from(*index)].as_ref();
            slot.is_some_and(|slot| slot.owner == Owner::Listener(port))
        };
        let list = usize::from(port) % HALF_OPEN_LISTS;
        self.half_open.iter(list).find(has_port)
    }

    /// Claims a port for a listener. Returns false if another listener has it. O(listeners).
    pub(super) fn claim_port(&mut self, port: u16) -> bool {
        let is_free = !self.ports.contains(&port);
        // Each listener has at least one socket, so the list has space.
        if is_free && self.ports.len() < SOCKETS {
            self.ports.push(port);
        }
        is_free
    }

    pub(super) fn release_port(&mut self, port: u16) {
        self.ports.retain(|other| *other != port);
    }

    pub(super) fn add_levels(&mut self, index: Index, levels: u64) {
        self.slot(index).calls |= levels;
        if self.to_send.list_of(index).is_some() {
            // The level may have changed.
            self.set_sending(index, true);
        }
    }

    pub(super) fn set_sending(&mut self, index: Index, has_data: bool) {
        let level = self.slot(index).level();
        let list = usize::from(level.get());
        let current = self.to_send.list_of(index);
        if has_data && current == Some(list) {
            return;
        }
        self.unlist(index);
        if has_data {
            self.to_send.push(list, index);
            self.levels |= level.bit();
        } else {
            let slot = self.slot(index);
            slot.calls = 0;
            slot.level = level;
        }
    }

    fn unlist(&mut self, index: Index) {
        if let Some(list) = self.to_send.list_of(index) {
            self.to_send.remove(index);
            if self.to_send.first(list).is_none() {
                self.levels &= !(1 << list);
            }
        }
    }

    pub(super) fn next_to_send(&self) -> Option<Index> {
        match self.levels {
            0 => None,
            levels => self.to_send.first(levels.trailing_zeros() as usize),
        }
    }

    pub(super) fn has_to_send(&self, index: Index) -> bool {
        self.to_send.list_of(index).is_some()
    }

    /// Removes the socket from the list of its level. If it has further frames to send, the caller
    /// adds it again, behind the other sockets of the level.
    pub(super) fn end_burst(&mut self, index: Index) {
        self.unlist(index);
    }

    pub(super) fn levels(&self) -> u64 {
        self.levels
    }
}

/// Returns the key of a TCP socket in its current state.
pub(super) fn key_of(socket: &tcp::Socket<'_>) -> Option<Key> {
    let key = |port, peer| {
        Some(Key {
            protocol: TCP,
            port,
            peer,
        })
    };
    match (socket.local_endpoint(), socket.remote_endpoint()) {
        (Some(local), Some(remote)) => {
            let smoltcp::wire::IpAddress::Ipv4(address) = remote.addr;
            key(local.port, (address.to_bits(), remote.port))
        }
        _ if socket.is_listening() => key(socket.listen_endpoint().port, (0, 0)),
        _ => None,
    }
}
