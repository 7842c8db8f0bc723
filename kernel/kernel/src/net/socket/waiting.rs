//! Waits for changes of a socket.

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
    /// Waits until bytes, the end or an error can be read.
    pub(crate) async fn readable(&self) {
        let condition = |state: &mut State| match *state {
            State::Stream(index) => {
                let mut endpoint = endpoint(index);
                let socket = endpoint.tcp();
                (socket.can_recv() || !socket.may_recv()).then_some(())
            }
            State::Datagrams(index) => endpoint(index).udp().can_recv().then_some(()),
            _ => Some(()),
        };
        self.wait_for_side(condition, Side::Read).await;
    }

    /// Waits until there is space to write, or an error.
    pub(crate) async fn writable(&self) {
        let condition = |state: &mut State| match *state {
            State::Stream(index) => {
                let mut endpoint = endpoint(index);
                let socket = endpoint.tcp();
                (socket.can_send() || !socket.may_send()).then_some(())
            }
            State::Datagrams(index) => endpoint(index).udp().can_send().then_some(()),
            _ => Some(()),
        };
        self.wait_for_side(condition, Side::Write).await;
    }

    pub(super) fn wait_until<R, F>(&self, condition: F) -> WaitUntil<'_, F>
    where
        F: FnMut(&mut State) -> Option<R> + Unpin,
    {
        self.wait_for_side(condition, Side::Both)
    }

    fn wait_for_side<R, F>(&self, condition: F, side: Side) -> WaitUntil<'_, F>
    where
        F: FnMut(&mut State) -> Option<R> + Unpin,
    {
        WaitUntil {
            socket: self,
            condition,
            side,
            registered: None,
            level: None,
        }
    }
}

/// Side of a socket that a waiter waits for. A change of the connection's state wakes both sides;
/// received bytes wake only readers, and acknowledged bytes only writers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Read,
    Write,
    Both,
}

/// Waits until `condition`, called under the lock of the socket, returns a result.
pub(super) struct WaitUntil<'a, F> {
    socket: &'a Socket,
    condition: F,
    side: Side,
    /// Waker that is in the list, unless the list has been taken.
    registered: Option<Waker>,
    level: Option<Level>,
}

impl<F> WaitUntil<'_, F> {
    fn set_waiting_level(&mut self, level: Option<Level>) {
        let before = core::mem::replace(&mut self.level, level);
        if before != level {
            requests().move_waiter(before, level);
        }
    }
}

/// Registers a waker for changes of one side of a socket. Another waiter may wait for the other
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

impl<R, F> Future for WaitUntil<'_, F>
where
    F: FnMut(&mut State) -> Option<R> + Unpin,
{
    type Output = R;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<R> {
        let this = self.get_mut();
        let socket = this.socket;
        let mut state = socket.state.lock();
        if let Some(result) = (this.condition)(&mut state) {
            this.set_waiting_level(None);
            return Poll::Ready(result);
        }
        let waiters = Waker::from(socket.waiters.clone());
        let indices = match &*state {
            State::Unconnected { .. } => &[],
            State::Stream(index) | State::Datagrams(index) => core::slice::from_ref(index),
            State::Listener { backlog, .. } => &backlog[..],
        };
        let is_stream = !matches!(*state, State::Datagrams(_));
        for index in indices {
            register(*index, is_stream, this.side, &waiters);
        }
        socket.waiters.0.lock().add(cx.waker());
        this.registered = Some(cx.waker().clone());
        // The waiter is polled again when its level changes. Frames of its socket, including
        // acknowledgements, get its level.
        let level = executor::domain().record_wait();
        if let Some(level) = level.filter(|level| this.level != Some(*level)) {
            let mut requests = requests();
            for index in indices {
                requests.add_level(*index, level);
            }
        }
        this.set_waiting_level(level);
        // The socket may have changed before the waker was registered.
        if let Some(result) = (this.condition)(&mut state) {
            this.set_waiting_level(None);
            return Poll::Ready(result);
        }
        Poll::Pending
    }
}

impl<F> Drop for WaitUntil<'_, F> {
    fn drop(&mut self) {
        if let Some(waker) = self.registered.take() {
            self.socket.waiters.0.lock().remove(&waker);
        }
        if self.level.is_some() {
            self.set_waiting_level(None);
        }
    }
}
