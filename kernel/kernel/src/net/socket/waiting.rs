//! Waiting for a socket to change.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};

use upshift_core::Level;

use super::{Socket, State, stack};
use crate::executor;
use crate::net::Stack;
use crate::net::lists::Index;
use crate::net::table::Kind;

impl Socket {
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
        self.until_side(look, Side::Read).await;
    }

    /// Waits until there is room, or no reader any more.
    pub(crate) async fn writable(&self) {
        let look = |state: &mut State, stack: &mut Stack| match *state {
            State::Stream(handle) => {
                let socket = stack.tcp(handle);
                (socket.can_send() || !socket.may_send()).then_some(())
            }
            State::Datagrams(index) => stack.udp(index).can_send().then_some(()),
            _ => Some(()),
        };
        self.until_side(look, Side::Write).await;
    }

    pub(super) fn until<R, F>(&self, look: F) -> Until<'_, F>
    where
        F: FnMut(&mut State, &mut Stack) -> Option<R> + Unpin,
    {
        self.until_side(look, Side::Both)
    }

    fn until_side<R, F>(&self, look: F, side: Side) -> Until<'_, F>
    where
        F: FnMut(&mut State, &mut Stack) -> Option<R> + Unpin,
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

/// What of a socket is waited for. All of it changes with the state of the connection; bytes that come, and those that are
/// acknowledged, wake only what waits for them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Read,
    Write,
    Both,
}

/// Waits until `look`, called under the locks, finds what it wants.
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
    fn waits_at(&mut self, stack: &mut Stack, level: Option<Level>) {
        let before = core::mem::replace(&mut self.level, level);
        if before != level {
            stack.waits(before, level);
        }
    }
}

impl Stack {
    /// What waits for this side of a socket is woken when that changes. Something else may wait for the other side.
    fn register(&mut self, index: Index, side: Side, waker: &Waker) {
        let is_stream = self.table.slot(index).kind != Kind::Datagrams;
        if side != Side::Write {
            match is_stream {
                true => self.tcp(index).register_recv_waker(waker),
                false => self.udp(index).register_recv_waker(waker),
            }
        }
        if side != Side::Read {
            match is_stream {
                true => self.tcp(index).register_send_waker(waker),
                false => self.udp(index).register_send_waker(waker),
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
        let waiters = Waker::from(socket.waiters.clone());
        let indices = match &*state {
            State::Fresh { .. } => &[],
            State::Stream(index) | State::Datagrams(index) => core::slice::from_ref(index),
            State::Listener { backlog, .. } => &backlog[..],
        };
        for index in indices {
            stack.register(*index, this.side, &waiters);
        }
        socket.waiters.0.lock().add(cx.waker());
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
            self.socket.waiters.0.lock().remove(&waker);
        }
        if self.level.is_some() {
            self.waits_at(&mut stack(), None);
        }
    }
}
