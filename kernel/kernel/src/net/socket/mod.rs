//! Sockets: TCP connections and UDP ports, and their waiters.
//!
//! ```text
//!  Unconnected ── bind ─► Unconnected ── listen ─► Listener ── accept ─► (another) Stream
//!    ├───────────── connect ─────────────────────────────────► Stream
//!    └─ (of datagrams) bind, or the first sent ──────────────► Datagrams
//! ```
//!
//! A socket has a buffer of [`BUFFER`](slots::BUFFER) bytes for each direction. While the receive
//! buffer is full, the window makes the peer wait; while the send buffer is full, the writer waits.
//! Datagrams that do not fit are lost, which UDP permits. A listener has as many sockets as its
//! backlog, each for one connection. A further connection replaces the oldest one that its peer has
//! not confirmed, or else is refused. Each waiter is in the list of the socket, which the stack
//! wakes when the socket changes. Bytes are copied once, between the socket's buffer and the
//! program.

mod bytes;
mod connecting;
mod datagrams;
mod slots;
mod waiting;

use alloc::sync::Arc;
use alloc::task::Wake;
use alloc::vec::Vec;

use os_abi::Error;
use upshift_core::Level;

use super::lists::Index;
use super::table::Kind;
use super::{NET, Stack};
use crate::arch::lock::{IrqGuard, IrqLock};
use crate::executor::level;
use crate::process::Share;
use crate::waiters::Waiters;

enum State {
    Unconnected { port: u16, kind: Kind },
    Stream(Index),
    Datagrams(Index),
    Listener { port: u16, backlog: Vec<Index> },
}

struct SocketWaiters(IrqLock<Waiters>);

impl Wake for SocketWaiters {
    fn wake(self: Arc<SocketWaiters>) {
        let waiters = self.0.lock().take();
        waiters.wake();
    }
}

/// A socket. Dropping it closes its connection once all written bytes have been acknowledged.
pub(crate) struct Socket {
    state: IrqLock<State>,
    waiters: Arc<SocketWaiters>,
    /// Share to which the socket's memory is charged.
    share: Arc<Share>,
}

fn stack() -> IrqGuard<'static, Stack> {
    NET.get().lock()
}

impl Socket {
    pub(crate) fn stream(share: &Arc<Share>) -> Socket {
        let kind = Kind::Stream;
        Socket::with_state(share, State::Unconnected { port: 0, kind })
    }

    pub(crate) fn datagrams(share: &Arc<Share>) -> Socket {
        let kind = Kind::Datagrams;
        Socket::with_state(share, State::Unconnected { port: 0, kind })
    }

    fn with_state(share: &Arc<Share>, state: State) -> Socket {
        Socket {
            state: IrqLock::new(state),
            waiters: Arc::new(SocketWaiters(IrqLock::new(Waiters::new()))),
            share: share.clone(),
        }
    }

    /// Binds the socket to a port.
    ///
    /// # Errors
    /// [`Error::BadFile`] if the socket is connected, or listens; [`Error::InUse`];
    /// [`Error::TooMany`], [`Error::OutOfMemory`].
    pub(crate) fn bind(&self, new_port: u16) -> Result<(), Error> {
        let mut state = self.state.lock();
        match &mut *state {
            State::Unconnected {
                port,
                kind: Kind::Stream,
            } => *port = new_port,
            State::Unconnected { .. } => {
                *state = State::Datagrams(stack().add_datagrams(&self.share, new_port)?)
            }
            _ => return Err(Error::BadFile),
        }
        Ok(())
    }

    /// Ends the writing side.
    ///
    /// # Errors
    /// [`Error::BadFile`] if the socket is not connected.
    pub(crate) fn shutdown(&self, level: Level) -> Result<(), Error> {
        let state = self.state.lock();
        let State::Stream(index) = *state else {
            return Err(Error::BadFile);
        };
        let mut stack = stack();
        stack.close_write(index);
        stack.add_work(index, level);
        Ok(())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        let empty = State::Unconnected {
            port: 0,
            kind: Kind::Stream,
        };
        let old = core::mem::replace(&mut *state, empty);
        let mut stack = stack();
        match old {
            State::Unconnected { .. } => {}
            State::Stream(index) | State::Datagrams(index) => stack.orphan(index, level()),
            State::Listener { port, backlog } => {
                for index in backlog {
                    stack.orphan(index, level());
                }
                stack.table.release_port(port);
            }
        }
    }
}
