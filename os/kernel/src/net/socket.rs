//! Sockets: TCP connections and UDP ports, and what waits for them.
//!
//! ```text
//!  Fresh ── bind ─► Fresh ── listen ─► Listener ── accept ─► (another) Stream
//!    ├───────────── connect ─────────────────────────────────► Stream
//!    └─ (of datagrams) bind, or the first sent ──────────────► Datagrams
//! ```
//!
//! A socket has room for [`BUFFER`] bytes each way: a full one makes the peer wait, by the
//! window, or the writer; datagrams that find no room are lost, as they may be. A listener has
//! as many sockets as its backlog, each of which is one connection to be; further ones are
//! refused. Whatever waits is in the list of the socket's *bell*, which the stack rings when
//! the socket changes. Bytes are copied once, between the socket's buffer and the program.

use alloc::sync::Arc;
use alloc::task::Wake;
use alloc::vec;
use alloc::vec::Vec;
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::AtomicU16;
use core::sync::atomic::Ordering::Relaxed;
use core::task::{Context, Poll, Waker};

use os_abi::{Error, datagram};
use smoltcp::socket::{tcp, udp};
use smoltcp::wire::{IpAddress, IpEndpoint, Ipv4Address};
use upshift_core::Level;

use super::lists::Index;
use super::table::{Key, Kind, Owner, UDP};
use super::{ASK, GONE, LINGER, NET, Stack};
use crate::arch::lock::{IrqGuard, IrqLock};
use crate::executor::level;
use crate::process::Share;
use crate::process::share::{Resource, Taken};
use crate::waiters::Waiters;
use crate::{executor, memory};

/// Bytes each way.
const BUFFER: usize = 4096;
/// KiB of a socket: its buffers, its slot in the table.
const KIB: usize = 12;
/// Datagrams each way.
const DATAGRAMS: usize = 16;
/// The most connections to be of a listener.
const MAX_BACKLOG: usize = 128;
/// Ports of those that have none of their own.
const EPHEMERAL: u16 = 49_152;

static PORT: AtomicU16 = AtomicU16::new(0);

enum State {
    Fresh { port: u16, kind: Kind },
    Stream(Index),
    Datagrams(Index),
    Listener { port: u16, backlog: Vec<Index> },
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
    /// What it takes counts there.
    share: Arc<Share>,
}

fn stack() -> IrqGuard<'static, Stack> {
    NET.get().lock()
}

fn ephemeral() -> u16 {
    EPHEMERAL + PORT.fetch_add(1, Relaxed) % (u16::MAX - EPHEMERAL)
}

/// A socket of a share, and the memory for it.
fn take(share: &Arc<Share>) -> Result<[Taken; 2], Error> {
    let socket = share.take(Resource::Sockets, 1)?;
    Ok([socket, share.take(Resource::Memory, KIB)?])
}

fn buffer() -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let reserved = bytes.try_reserve_exact(BUFFER);
    reserved.map_err(|_| Error::OutOfMemory)?;
    bytes.resize(BUFFER, 0);
    Ok(bytes)
}

impl Stack {
    /// A socket with buffers of its own.
    fn add_stream(&mut self, share: &Arc<Share>, owner: Owner) -> Result<Index, Error> {
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

    /// One more place of a listener's backlog.
    fn add_listening(&mut self, share: &Arc<Share>, port: u16) -> Result<Index, Error> {
        let index = self.add_stream(share, Owner::Listener(port))?;
        // It listens from now on, as whatever of a listener is closed.
        self.changed(index);
        Ok(index)
    }

    /// A connection has an owner, who is to hear when its peer is gone.
    fn is_taken(&mut self, index: Index) {
        self.table.slot(index).owner = Owner::Program;
        let socket = self.tcp(index);
        socket.set_keep_alive(Some(ASK));
        socket.set_timeout(Some(GONE));
        self.changed(index);
    }

    pub(super) fn add_datagrams(&mut self, share: &Arc<Share>, port: u16) -> Result<Index, Error> {
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
                let mut candidates = (0..=u16::MAX - EPHEMERAL).map(|_| ephemeral());
                let is_free = |port: &u16| self.table.find(key(*port)).is_none();
                candidates.find(is_free).ok_or(Error::TooMany)?
            }
            port if self.table.find(key(port)).is_some() => return Err(Error::InUse),
            port => port,
        };
        let taken = take(share)?;
        let places = || vec![udp::PacketMetadata::EMPTY; DATAGRAMS];
        let buffer = || Ok(udp::PacketBuffer::new(places(), buffer()?));
        let mut socket = udp::Socket::new(buffer()?, buffer()?);
        // The port is not 0, and the socket is fresh.
        let _ = socket.bind(port);
        let index = self
            .table
            .add(socket, Kind::Datagrams, Owner::Program, taken)?;
        self.table.set_key(index, Some(key(port)));
        Ok(index)
    }

    pub(super) fn udp(&mut self, index: Index) -> &mut udp::Socket<'static> {
        self.table.socket(index)
    }

    /// Nobody has the socket any more.
    pub(super) fn give_up(&mut self, index: Index, level: Level) {
        let slot = self.table.slot(index);
        let owner = core::mem::replace(&mut slot.owner, Owner::Nobody);
        if slot.kind != Kind::Stream {
            self.remove(index);
            return;
        }
        match owner {
            // Nobody has spoken through it.
            Owner::Listener(_) => self.tcp(index).abort(),
            _ => self.end(index),
        }
        // Kept alive by nobody, for no longer than this.
        let socket = self.tcp(index);
        socket.set_keep_alive(None);
        socket.set_timeout(Some(LINGER));
        self.kick(index, level);
    }
}

impl Socket {
    /// A socket for TCP.
    pub(crate) fn stream(share: &Arc<Share>) -> Socket {
        let kind = Kind::Stream;
        Socket::of(share, State::Fresh { port: 0, kind })
    }

    /// A socket for UDP.
    pub(crate) fn datagrams(share: &Arc<Share>) -> Socket {
        let kind = Kind::Datagrams;
        Socket::of(share, State::Fresh { port: 0, kind })
    }

    fn of(share: &Arc<Share>, state: State) -> Socket {
        Socket {
            state: IrqLock::new(state),
            bell: Arc::new(Bell(IrqLock::new(Waiters::new()))),
            share: share.clone(),
        }
    }

    /// Gives it a port.
    ///
    /// # Errors
    /// [`Error::BadFile`]: it is connected, or listens. [`Error::InUse`];
    /// [`Error::TooMany`], [`Error::OutOfMemory`].
    pub(crate) fn bind(&self, wanted: u16) -> Result<(), Error> {
        let mut state = self.state.lock();
        match &mut *state {
            State::Fresh {
                port,
                kind: Kind::Stream,
            } => *port = wanted,
            State::Fresh { .. } => {
                *state = State::Datagrams(stack().add_datagrams(&self.share, wanted)?)
            }
            _ => return Err(Error::BadFile),
        }
        Ok(())
    }

    /// Lets so many connections come in until they are accepted.
    ///
    /// # Errors
    /// [`Error::BadArgument`] without a port, or with no backlog; [`Error::InUse`];
    /// [`Error::TooMany`], [`Error::OutOfMemory`].
    pub(crate) fn listen(&self, count: usize) -> Result<(), Error> {
        let mut state = self.state.lock();
        let State::Fresh {
            port,
            kind: Kind::Stream,
        } = *state
        else {
            return Err(Error::BadFile);
        };
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
        let look = |state: &mut State, stack: &mut Stack| {
            let State::Listener { port, backlog } = state else {
                return Some(Err(Error::BadFile));
            };
            let waits = |state| matches!(state, tcp::State::Listen | tcp::State::SynReceived);
            let is_there = |index: &Index| !waits(stack.tcp(*index).state());
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
            let State::Fresh {
                port,
                kind: Kind::Stream,
            } = *state
            else {
                return Err(Error::BadFile);
            };
            let remote = IpEndpoint::new(IpAddress::Ipv4(Ipv4Address::from(address)), to);
            let mut stack = stack();
            let port = match port {
                0 => stack.free_port(address, to)?,
                port if stack.is_connected(port, address, to) => return Err(Error::InUse),
                port => port,
            };
            let index = stack.add_stream(&self.share, Owner::Program)?;
            let Stack {
                interface, table, ..
            } = &mut *stack;
            let socket = table.socket::<tcp::Socket<'_>>(index);
            let begun = socket.connect(interface.context(), remote, port);
            if begun.is_err() {
                stack.remove(index);
                return Err(Error::BadArgument);
            }
            *state = State::Stream(index);
            stack.is_taken(index);
            stack.kick(index, level());
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
        stack.kick(handle, level);
        Ok(())
    }

    /// Gives what has come to `take`, at most so many bytes, in one or two pieces with their
    /// places; 0 bytes at the end. `None`: nothing yet.
    pub(crate) fn read(
        &self,
        most: usize,
        mut take: impl FnMut(usize, &[u8]) -> Result<(), Error>,
    ) -> Option<Result<usize, Error>> {
        let state = self.state.lock();
        let State::Stream(index) = *state else {
            return Some(Err(Error::BadFile));
        };
        let mut stack = stack();
        let socket = stack.tcp(index);
        let waiting = socket.recv_queue();
        if waiting == 0 && socket.may_recv() && most > 0 {
            return None;
        }
        let (mut done, mut failed) = (0, None);
        // Bytes lie in at most two pieces.
        while done < most.min(waiting) && failed.is_none() {
            let taken = socket.recv(|bytes| {
                let bytes = &bytes[..bytes.len().min(most - done)];
                match take(done, bytes) {
                    Ok(()) => (bytes.len(), Ok(bytes.len())),
                    Err(error) => (0, Err(error)),
                }
            });
            match taken.unwrap_or(Err(Error::BrokenPipe)) {
                Ok(count) => done += count,
                Err(error) => failed = Some(error),
            }
        }
        // The peer may wait for room. It is told of more once that has doubled, so at last
        // when all is taken.
        if waiting >= BUFFER / 2 || done == waiting {
            stack.kick(index, level());
        }
        match failed {
            Some(error) if done == 0 => Some(Err(error)),
            _ => Some(Ok(done)),
        }
    }

    /// Lets `put` write so many bytes, `all` of them or those that there is room for, in one or
    /// two pieces with their places. `None`: there is no room.
    pub(crate) fn write(
        &self,
        len: usize,
        all: bool,
        mut put: impl FnMut(usize, &mut [u8]) -> Result<(), Error>,
    ) -> Option<Result<usize, Error>> {
        let state = self.state.lock();
        let State::Stream(index) = *state else {
            return Some(Err(Error::BadFile));
        };
        let mut stack = stack();
        let is_ending = stack.table.slot(index).is_ending;
        let socket = stack.tcp(index);
        if is_ending || !socket.may_send() {
            return Some(Err(Error::BrokenPipe));
        }
        let room = socket.send_capacity() - socket.send_queue();
        if room < if all { len } else { len.min(1) } {
            return None;
        }
        let (mut done, mut failed) = (0, None);
        while done < len.min(room) && failed.is_none() {
            let written = socket.send(|bytes| {
                let fits = bytes.len().min(len - done);
                match put(done, &mut bytes[..fits]) {
                    Ok(()) => (fits, Ok(fits)),
                    Err(error) => (0, Err(error)),
                }
            });
            match written.unwrap_or(Err(Error::BrokenPipe)) {
                Ok(count) => done += count,
                Err(error) => failed = Some(error),
            }
        }
        stack.kick(index, level());
        match failed {
            Some(error) if done == 0 => Some(Err(error)),
            _ => Some(Ok(done)),
        }
    }

    /// Sends a datagram of `len` bytes that `put` writes. `None`: there is no room.
    pub(crate) fn send_to(
        &self,
        len: usize,
        address: u32,
        port: u16,
        put: impl FnOnce(&mut [u8]) -> Result<(), Error>,
    ) -> Option<Result<usize, Error>> {
        let mut state = self.state.lock();
        let mut stack = stack();
        if let State::Fresh {
            kind: Kind::Datagrams,
            ..
        } = *state
        {
            match stack.add_datagrams(&self.share, 0) {
                Ok(index) => *state = State::Datagrams(index),
                Err(error) => return Some(Err(error)),
            }
        }
        let State::Datagrams(index) = *state else {
            return Some(Err(Error::BadFile));
        };
        let to = IpEndpoint::new(IpAddress::Ipv4(Ipv4Address::from(address)), port);
        if len > datagram::MOST || port == 0 || to.addr.is_unspecified() {
            return Some(Err(Error::BadArgument));
        }
        let outcome = match stack.udp(index).send(len, to) {
            Err(udp::SendError::BufferFull) => return None,
            Err(udp::SendError::Unaddressable) => Err(Error::BadArgument),
            Ok(room) => put(room).map(|()| len),
        };
        stack.kick(index, level());
        Some(outcome)
    }

    /// Gives the datagram that came first to `take`, with where it comes from. `None`: there is
    /// none.
    pub(crate) fn receive_from(
        &self,
        take: impl FnOnce(u32, u16, &[u8]) -> Result<usize, Error>,
    ) -> Option<Result<usize, Error>> {
        let state = self.state.lock();
        let State::Datagrams(index) = *state else {
            return Some(Err(Error::BadFile));
        };
        let mut stack = stack();
        let (bytes, from) = stack.udp(index).recv().ok()?;
        let IpAddress::Ipv4(address) = from.endpoint.addr;
        Some(take(address.to_bits(), from.endpoint.port, bytes))
    }

    /// Waits until there is something to take, or will never be.
    pub(crate) async fn readable(&self) {
        let look = |state: &mut State, stack: &mut Stack| match *state {
            State::Stream(handle) => {
                let socket = stack.tcp(handle);
                (socket.can_recv() || !socket.may_recv()).then_some(())
            }
            State::Datagrams(index) => stack.udp(index).can_recv().then_some(()),
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
            State::Datagrams(index) => stack.udp(index).can_send().then_some(()),
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

impl Stack {
    /// Is there such a connection?
    fn is_connected(&self, port: u16, address: u32, to: u16) -> bool {
        let key = Key {
            protocol: super::table::TCP,
            port,
            peer: (address, to),
        };
        self.table.find(key).is_some()
    }

    /// A port for a connection there.
    fn free_port(&self, address: u32, to: u16) -> Result<u16, Error> {
        let mut candidates = (0..=u16::MAX - EPHEMERAL).map(|_| ephemeral());
        let is_free = |port: &u16| !self.is_connected(*port, address, to);
        candidates.find(is_free).ok_or(Error::TooMany)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        let nothing = State::Fresh {
            port: 0,
            kind: Kind::Stream,
        };
        let old = core::mem::replace(&mut *state, nothing);
        let mut stack = stack();
        match old {
            State::Fresh { .. } => {}
            State::Stream(index) | State::Datagrams(index) => stack.give_up(index, level()),
            State::Listener { port, backlog } => {
                for index in backlog {
                    stack.give_up(index, level());
                }
                stack.table.give_port(port);
            }
        }
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
        let indices = match &*state {
            State::Fresh { .. } => &[],
            State::Stream(index) | State::Datagrams(index) => core::slice::from_ref(index),
            State::Listener { backlog, .. } => &backlog[..],
        };
        for index in indices {
            if stack.table.slot(*index).kind == Kind::Datagrams {
                let socket = stack.udp(*index);
                socket.register_recv_waker(&bell);
                socket.register_send_waker(&bell);
            } else {
                let socket = stack.tcp(*index);
                socket.register_recv_waker(&bell);
                socket.register_send_waker(&bell);
            }
        }
        socket.bell.0.lock().add(cx.waker());
        this.listed = Some(cx.waker().clone());
        // It is polled again when its level changes. What is sent for it, acknowledgements say,
        // is as urgent.
        let level = executor::domain().waits();
        if let Some(level) = level.filter(|level| this.level != Some(*level)) {
            for index in indices {
                stack.table.call(*index, level);
            }
        }
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
