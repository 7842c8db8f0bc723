//! Waiting for a socket to change.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};

use upshift_core::Level;

use super::{Socket, State};
use crate::executor;
use crate::net::endpoint::endpoint;
use crate::net::lists::Index;
use crate::net::requests::requests;

impl Socket {
    /// Waits until there is something to take, or will never be.
    pub(crate) async fn readable(&self) {
        let look = |state: &mut State| match *state {
            State::Stream(index) => {
                let mut endpoint = endpoint(index);
                let socket = endpoint.tcp();
                (socket.can_recv() || !socket.may_recv()).then_some(())
            }
            State::Datagrams(index) => endpoint(index).udp().can_recv().then_some(()),
            _ => Some(()),
        };
        self.until_side(look, Side::Read).await;
    }

    /// Waits until there is room, or no reader any more.
    pub(crate) async fn writable(&self) {
        let look = |state: &mut State| match *state {
            State::Stream(index) => {
                let mut endpoint = endpoint(index);
                let socket = endpoint.tcp();
                (socket.can_send() || !socket.may_send()).then_some(())
            }
            State::Datagrams(index) => endpoint(index).udp().can_send().then_some(()),
            _ => Some(()),
        };
        self.until_side(look, Side::Write).await;
    }

    pub(super) fn until<R, F>(&self, look: F) -> Until<'_, F>
    where
        F: FnMut(&mut State) -> Option<R> + Unpin,
    {
        self.until_side(look, Side::Both)
    }

    fn until_side<R, F>(&self, look: F, side: Side) -> Until<'_, F>
    where
        F: FnMut(&mut State) -> Option<R> + Unpin,
    {
        Until {
            socket: self,
            look,
            side,
            listed: None,
            level: None,
        }
    }
}

/// Side of a socket that a waiter waits for. A change of the connection's state wakes both sides;
/// arrived bytes wake readers only, and acknowledged bytes writers only.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Read,
    Write,
    Both,
}

/// Waits until `look`, called under the lock of the socket, returns a result.
pub(super) struct Until<'a, F> {
    socket: &'a Socket,
    look: F,
    side: Side,
    /// The waker that is in the list, unless it has been taken from there.
    listed: Option<Waker>,
    /// The level at which it is known to wait.
    level: Option<Level>,
}

impl<F> Until<'_, F> {
    fn waits_at(&mut self, level: Option<Level>) {
        let before = core::mem::replace(&mut self.level, level);
        if before != level {
            requests().waits(before, level);
        }
    }
}

/// Registers a waker for changes of this side of a socket. Another waiter may wait for the other
/// side.
fn register(index: Index, is_stream: bool, side: Side, waker: &Waker) {
    let mut endpoint = endpoint(index);
    if side != Side::Write {
        if is_stream {
            endpoint.tcp().register_recv_waker(waker)
        } else {
            endpoint.udp().register_recv_waker(waker)
        }
    }
    if side != Side::Read {
        if is_stream {
            endpoint.tcp().register_send_waker(waker)
        } else {
            endpoint.udp().register_send_waker(waker)
        }
    }
}

impl<R, F> Future for Until<'_, F>
where
    F: FnMut(&mut State) -> Option<R> + Unpin,
{
    type Output = R;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<R> {
        let this = self.get_mut();
        let socket = this.socket;
        let mut state = socket.state.lock();
        if let Some(found) = (this.look)(&mut state) {
            this.waits_at(None);
            return Poll::Ready(found);
        }
        let waiters = Waker::from(socket.waiters.clone());
        let indices = match &*state {
            State::Fresh { .. } => &[],
            State::Stream(index) | State::Datagrams(index) => core::slice::from_ref(index),
            State::Listener { backlog, .. } => &backlog[..],
        };
        let is_stream = !matches!(*state, State::Datagrams(_));
        for index in indices {
            register(*index, is_stream, this.side, &waiters);
        }
        socket.waiters.0.lock().add(cx.waker());
        this.listed = Some(cx.waker().clone());
        // The waiter is polled again when its level changes. Frames for its socket,
        // acknowledgements too, are as urgent.
        let level = executor::domain().waits();
        if let Some(level) = level.filter(|level| this.level != Some(*level)) {
            let mut requests = requests();
            for index in indices {
                requests.concerns(*index, level);
            }
        }
        this.waits_at(level);
        // The socket may have changed before the waker was registered.
        if let Some(found) = (this.look)(&mut state) {
            this.waits_at(None);
            return Poll::Ready(found);
        }
        Poll::Pending
    }
}

impl<F> Drop for Until<'_, F> {
    fn drop(&mut self) {
        if let Some(waker) = self.listed.take() {
            self.socket.waiters.0.lock().remove(&waker);
        }
        if self.level.is_some() {
            self.waits_at(None);
        }
    }
}
