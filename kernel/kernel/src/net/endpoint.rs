//! The sockets of `smoltcp`, each behind its own lock.
//!
//! ```text
//!  program ── read, write ─► endpoint ◄─ frame, clock ── stack
//!              copies bytes              takes or makes one frame
//! ```
//!
//! A call that transfers bytes takes only the lock of its endpoint, so it waits for at most one
//! frame of the same socket. The stack takes this lock while it holds the stack's own lock. The
//! slot of an endpoint (`table.rs`) has the fields that belong to the stack.

use core::ops::{Deref, DerefMut};

use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::{AnySocket, tcp, udp};

use super::SOCKETS;
use super::lists::Index;
use crate::arch::lock::{IrqGuard, IrqLock};

static ENDPOINTS: [IrqLock<Option<Endpoint>>; SOCKETS] = [const { IrqLock::new(None) }; SOCKETS];

pub(super) struct Endpoint {
    /// A set of one socket: `smoltcp` would process all sockets of a set.
    pub(super) set: SocketSet<'static>,
    /// Set when the socket is closed. The connection then ends once all written bytes have been
    /// acknowledged.
    pub(super) is_ending: bool,
    /// Set when the receive buffer is at least half full, until all of it has been read.
    pub(super) was_half_full: bool,
}

impl Endpoint {
    /// Returns the socket, which must be of kind `T`.
    pub(super) fn socket<T: AnySocket<'static>>(&mut self) -> &mut T {
        self.set.get_mut(SocketHandle::default())
    }

    pub(super) fn tcp(&mut self) -> &mut tcp::Socket<'static> {
        self.socket()
    }

    pub(super) fn udp(&mut self) -> &mut udp::Socket<'static> {
        self.socket()
    }
}

pub(super) struct EndpointGuard(IrqGuard<'static, Option<Endpoint>>);

const HAS_ENDPOINT: &str = "a socket has its endpoint until its index is free";

impl Deref for EndpointGuard {
    type Target = Endpoint;
    fn deref(&self) -> &Endpoint {
        self.0.as_ref().expect(HAS_ENDPOINT)
    }
}

impl DerefMut for EndpointGuard {
    fn deref_mut(&mut self) -> &mut Endpoint {
        self.0.as_mut().expect(HAS_ENDPOINT)
    }
}

pub(super) fn endpoint(index: Index) -> EndpointGuard {
    EndpointGuard(ENDPOINTS[usize::from(index)].lock())
}

/// Sets or removes the endpoint of an index; returns the old one.
pub(super) fn replace(index: Index, new: Option<Endpoint>) -> Option<Endpoint> {
    core::mem::replace(&mut *ENDPOINTS[usize::from(index)].lock(), new)
}
