//! Sockets: TCP connections, and what waits for them.
//!
//! ```text
//!  Fresh ── bind ─► Fresh ── listen ─► Listener ── accept ─► (another) Stream
//!    └───────────── connect ─────────────────────────────────► Stream
//! ```
//!
//! A socket has room for [`BUFFER`] bytes each way: a full one makes the peer wait, by the
//! window, or the writer. A listener has as many sockets as its backlog, each of which is one
//! connection to be; further ones are refused. Whatever waits is in the list of the socket's
//! *bell*, which the stack rings when the socket changes.

use alloc::sync::Arc;
use alloc::task::Wake;
use alloc::vec::Vec;
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::AtomicU16;
use core::sync::atomic::Ordering::Relaxed;
use core::task::{Context, Poll, Waker};

use os_abi::Error;
use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp;
use smoltcp::wire::{IpAddress, IpEndpoint, IpListenEndpoint, Ipv4Address};
use upshift_core::Level;

use super::{LINGER, NET, SOCKETS, Stack, is_over};
use crate::arch::lock::{IrqGuard, IrqLock};
use crate::waiters::Waiters;
use crate::{executor, memory};

/// Bytes each way.
const BUFFER: usize = 4096;
/// The most connections to be of a listener.
const MAX_BACKLOG: usize = 16;
/// Ports of those that connect without a port of their own.
const EPHEMERAL: u16 = 49_152;

static PORT: AtomicU16 = AtomicU16::new(0);

enum State {
    Fresh {
        port: u16,
    },
    Stream(SocketHandle),
    Listener {
        port: u16,
        backlog: Vec<SocketHandle>,
    },
}

/// Whatever waits for a socket.
struct Bell(IrqLock<Waiters>);

impl Wake for Bell {
    fn wake(self: Arc<Bell>) {
        let waiters = self.0.lock().take();
        waiters.wake();
    }
}

/// A socket. Dropped, its connection ends in good order.
pub(crate) struct Socket {
    state: IrqLock<State>,
    bell: Arc<Bell>,
}

fn stack() -> IrqGuard<'static, Stack> {
    NET.get().lock()
}

/// The level of the call that is carried out: of the kernel's coroutine that runs.
fn level() -> Level {
    let level = executor::domain().current_level();
    level.unwrap_or(executor::LEAST_URGENT_WORK)
}

impl Stack {
    /// A socket with buffers of its own.
    fn add(&mut self) -> Result<SocketHandle, Error> {
        if self.count >= SOCKETS {
            return Err(Error::TooMany);
        }
        if memory::is_short() {
            return Err(Error::OutOfMemory);
        }
        let buffer = || {
            let mut bytes = Vec::new();
            let reserved = bytes.try_reserve_exact(BUFFER);
            reserved.map_err(|_| Error::OutOfMemory)?;
            bytes.resize(BUFFER, 0);
            Ok(tcp::SocketBuffer::new(bytes))
        };
        let mut socket = tcp::Socket::new(buffer()?, buffer()?);
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(None);
        self.count += 1;
        Ok(self.sockets.add(socket))
    }

    /// Nobody has the socket any more.
    fn give_up(&mut self, handle: SocketHandle) {
        self.end(handle);
        let socket = self.tcp(handle);
        if is_over(socket) {
            // It was never connected.
            self.remove(handle);
            return;
        }
        socket.set_timeout(Some(LINGER));
        self.closing.push(handle);
    }
}

impl Socket {
    /// A socket for TCP.
    pub(crate) fn new() -> Socket {
        Socket::of(State::Fresh { port: 0 })
    }

    fn of(state: State) -> Socket {
        Socket {
            state: IrqLock::new(state),
            bell: Arc::new(Bell(IrqLock::new(Waiters::new()))),
        }
    }

    /// Gives it a port.
    ///
    /// # Errors
    /// [`Error::BadFile`]: it is connected, or listens.
    pub(crate) fn bind(&self, wanted: u16) -> Result<(), Error> {
        match &mut *self.state.lock() {
            State::Fresh { port } => *port = wanted,
            _ => return Err(Error::BadFile),
        }
        Ok(())
    }

    /// Lets so many connections come in until they are accepted.
    ///
    /// # Errors
    /// [`Error::BadArgument`] without a port, or with no backlog; [`Error::TooMany`],
    /// [`Error::OutOfMemory`].
    pub(crate) fn listen(&self, backlog: usize) -> Result<(), Error> {
        let mut state = self.state.lock();
        let State::Fresh { port } = *state else {
            return Err(Error::BadFile);
        };
        if port == 0 || !(1..=MAX_BACKLOG).contains(&backlog) {
            return Err(Error::BadArgument);
        }
        let mut handles = Vec::new();
        let reserved = handles.try_reserve_exact(backlog);
        reserved.map_err(|_| Error::OutOfMemory)?;
        let mut stack = stack();
        let mut failed = None;
        for _ in 0..backlog {
            match stack.add() {
                Ok(handle) => {
                    handles.push(handle);
                    listen(&mut stack, handle, port);
                }
                Err(error) => failed = Some(error),
            }
        }
        if let Some(error) = failed {
            for handle in handles {
                stack.give_up(handle);
            }
            return Err(error);
        }
        let backlog = handles;
        *state = State::Listener { port, backlog };
        Ok(())
    }

    /// Waits for a connection.
    ///
    /// # Errors
    /// [`Error::BadFile`]: it does not listen.
    pub(crate) async fn accept(&self) -> Result<Socket, Error> {
        let look = |state: &mut State, stack: &mut Stack| {
            let State::Listener { port, backlog } = state else {
                return Some(Err(Error::BadFile));
            };
            let waits = |state| matches!(state, tcp::State::Listen | tcp::State::SynReceived);
            let is_there = |handle: &SocketHandle| !waits(stack.tcp(*handle).state());
            let at = backlog.iter().position(is_there)?;
            // Without memory for another, the connection waits until there is.
            let next = match stack.add() {
                Ok(next) => next,
                Err(error) => return Some(Err(error)),
            };
            listen(stack, next, *port);
            let handle = core::mem::replace(&mut backlog[at], next);
            Some(Ok(Socket::of(State::Stream(handle))))
        };
        let accepted = self.until(look).await;
        // Others that wait are to hear of the new one in the backlog, too.
        self.bell.clone().wake();
        accepted
    }

    /// Connects to a port of an address.
    ///
    /// # Errors
    /// [`Error::Refused`]; [`Error::BadFile`]: it is connected, or listens.
    pub(crate) async fn connect(&self, address: u32, to: u16) -> Result<(), Error> {
        {
            let mut state = self.state.lock();
            let State::Fresh { port } = *state else {
                return Err(Error::BadFile);
            };
            let mut stack = stack();
            let handle = stack.add()?;
            let local = match port {
                0 => EPHEMERAL + PORT.fetch_add(1, Relaxed) % (u16::MAX - EPHEMERAL),
                port => port,
            };
            let remote = IpAddress::Ipv4(Ipv4Address::from(address));
            let Stack {
                interface, sockets, ..
            } = &mut *stack;
            let socket = sockets.get_mut::<tcp::Socket<'_>>(handle);
            let begun = socket.connect(interface.context(), IpEndpoint::new(remote, to), local);
            if begun.is_err() {
                stack.give_up(handle);
                return Err(Error::BadArgument);
            }
            *state = State::Stream(handle);
            stack.kick(level());
        }
        let look = |state: &mut State, stack: &mut Stack| {
            let State::Stream(handle) = *state else {
                return Some(Err(Error::BadFile));
            };
            match stack.tcp(handle).state() {
                tcp::State::SynSent | tcp::State::SynReceived => None,
                tcp::State::Closed => Some(Err(Error::Refused)),
                _ => Some(Ok(())),
            }
        };
        self.until(look).await
    }

    /// Nothing more will be written.
    ///
    /// # Errors
    /// [`Error::BadFile`]: it is not connected.
    pub(crate) fn shutdown(&self, level: Level) -> Result<(), Error> {
        let state = self.state.lock();
        let State::Stream(handle) = *state else {
            return Err(Error::BadFile);
        };
        let mut stack = stack();
        stack.end(handle);
        stack.kick(level);
        Ok(())
    }

    /// Takes what has come; 0 at the end. `None`: nothing yet.
    pub(crate) fn try_read(&self, to: &mut [u8]) -> Option<Result<usize, Error>> {
        let state = self.state.lock();
        let State::Stream(handle) = *state else {
            return Some(Err(Error::BadFile));
        };
        let mut stack = stack();
        let socket = stack.tcp(handle);
        let waiting = socket.recv_queue();
        if waiting == 0 && socket.may_recv() && !to.is_empty() {
            return None;
        }
        let count = socket.recv_slice(to).unwrap_or(0);
        // The peer may wait for room. It is told of more once that has doubled, so at last
        // when all is taken.
        if waiting >= BUFFER / 2 || count == waiting {
            stack.kick(level());
        }
        Some(Ok(count))
    }

    /// Puts in what fits, `all` of it or any. `None`: it does not.
    pub(crate) fn put(&self, from: &[u8], all: bool) -> Option<Result<usize, Error>> {
        let state = self.state.lock();
        let State::Stream(handle) = *state else {
            return Some(Err(Error::BadFile));
        };
        let mut stack = stack();
        let ends = stack.ending.contains(&handle);
        let socket = stack.tcp(handle);
        if ends || !socket.may_send() {
            return Some(Err(Error::BrokenPipe));
        }
        let room = socket.send_capacity() - socket.send_queue();
        if room < if all { from.len() } else { 1 } {
            return None;
        }
        let count = socket.send_slice(from).unwrap_or(0);
        stack.kick(level());
        Some(Ok(count))
    }

    /// Waits until there is something to take, or will never be.
    pub(crate) async fn readable(&self) {
        let look = |state: &mut State, stack: &mut Stack| match *state {
            State::Stream(handle) => {
                let socket = stack.tcp(handle);
                (socket.can_recv() || !socket.may_recv()).then_some(())
            }
            _ => Some(()),
        };
        self.until(look).await;
    }

    /// Waits until there is room, or nobody who would take anything.
    pub(crate) async fn writable(&self) {
        let look = |state: &mut State, stack: &mut Stack| match *state {
            State::Stream(handle) => {
                let socket = stack.tcp(handle);
                (socket.can_send() || !socket.may_send()).then_some(())
            }
            _ => Some(()),
        };
        self.until(look).await;
    }

    fn until<R, F>(&self, look: F) -> Until<'_, F>
    where
        F: FnMut(&mut State, &mut Stack) -> Option<R> + Unpin,
    {
        Until {
            socket: self,
            look,
            listed: None,
            level: None,
        }
    }
}

fn listen(stack: &mut Stack, handle: SocketHandle, port: u16) {
    let endpoint = IpListenEndpoint { addr: None, port };
    // The port is not 0, and the socket is fresh.
    let _ = stack.tcp(handle).listen(endpoint);
}

impl Drop for Socket {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        let old = core::mem::replace(&mut *state, State::Fresh { port: 0 });
        let handles = match old {
            State::Fresh { .. } => return,
            State::Stream(handle) => Vec::from([handle]),
            State::Listener { backlog, .. } => backlog,
        };
        let mut stack = stack();
        for handle in handles {
            stack.give_up(handle);
        }
        stack.kick(level());
    }
}

/// Waits until `look`, called under the locks, finds what it wants.
struct Until<'a, F> {
    socket: &'a Socket,
    look: F,
    /// The waker that is in the list, unless it has been taken from there.
    listed: Option<Waker>,
    /// The level at which it is known to wait.
    level: Option<Level>,
}

impl<F> Until<'_, F> {
    fn waits_at(&mut self, stack: &mut Stack, level: Option<Level>) {
        let before = core::mem::replace(&mut self.level, level);
        if before != level {
            if let Some(level) = level {
                stack.wait(level, true);
            }
            if let Some(before) = before {
                stack.wait(before, false);
            }
        }
    }
}

impl<R, F> Future for Until<'_, F>
where
    F: FnMut(&mut State, &mut Stack) -> Option<R> + Unpin,
{
    type Output = R;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<R> {
        let this = self.get_mut();
        let socket = this.socket;
        let mut state = socket.state.lock();
        let mut stack = stack();
        if let Some(found) = (this.look)(&mut state, &mut stack) {
            this.waits_at(&mut stack, None);
            return Poll::Ready(found);
        }
        let bell = Waker::from(socket.bell.clone());
        let handles = match &*state {
            State::Fresh { .. } => &[],
            State::Stream(handle) => core::slice::from_ref(handle),
            State::Listener { backlog, .. } => &backlog[..],
        };
        for handle in handles {
            let socket = stack.tcp(*handle);
            socket.register_recv_waker(&bell);
            socket.register_send_waker(&bell);
        }
        socket.bell.0.lock().add(cx.waker());
        this.listed = Some(cx.waker().clone());
        // It is polled again when its level changes.
        let level = executor::domain().waits();
        this.waits_at(&mut stack, level);
        Poll::Pending
    }
}

impl<F> Drop for Until<'_, F> {
    fn drop(&mut self) {
        if let Some(waker) = self.listed.take() {
            self.socket.bell.0.lock().remove(&waker);
        }
        if self.level.is_some() {
            self.waits_at(&mut stack(), None);
        }
    }
}
