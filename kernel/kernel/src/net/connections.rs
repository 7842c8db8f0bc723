//! Determines when a socket sends its next frame, when a stalled peer times out, and when a
//! connection has ended.

use smoltcp::socket::tcp;
use smoltcp::time::Instant;

use super::endpoint::{Endpoint, endpoint};
use super::lists::Index;
use super::requests::requests;
use super::table::{Kind, Owner, key_of};
use super::{MAX_FRAMES_PER_POLL, ORPHAN_TIMEOUT, SILENCE_TIMEOUT, STALL_TIMEOUT, Stack, now};

impl Stack {
    /// Updates the stack after a change of a socket. Returns false if the socket was removed.
    pub(super) fn update_socket(&mut self, index: Index) -> bool {
        match self.table.slot(index).kind {
            Kind::Stream => {
                if !self.update_stream(index) {
                    return false;
                }
            }
            Kind::Datagrams => {}
            Kind::Dhcp => self.address_changed(index),
        }
        self.schedule(index);
        true
    }

    /// Updates the table after a change of a TCP socket. Returns false if the socket was removed.
    pub(super) fn update_stream(&mut self, index: Index) -> bool {
        let owner = self.table.slot(index).owner;
        let mut endpoint = endpoint(index);
        let is_ending = endpoint.is_ending;
        let socket = endpoint.tcp();
        if owner == Owner::Program && !is_ending && socket.state() == tcp::State::Established {
            // The key was set when the connection began.
            return true;
        }
        match owner {
            Owner::Listener(port) => {
                let is_half_open = socket.state() == tcp::State::SynReceived;
                if socket.state() == tcp::State::Closed {
                    // The connection was reset, or dropped in favour of another. The call cannot
                    // fail, because the port is not 0.
                    let _ = socket.listen(port);
                }
                socket.set_timeout(is_half_open.then_some(SILENCE_TIMEOUT));
                self.table.set_half_open(index, port, is_half_open);
            }
            // See `close_write`.
            _ if is_ending
                && (socket.state() != tcp::State::CloseWait || socket.send_queue() == 0) =>
            {
                socket.close();
                endpoint.is_ending = false;
            }
            _ => {}
        }
        if owner == Owner::None {
            if self.has_ended(&mut endpoint) {
                drop(endpoint);
                self.remove(index);
                return false;
            }
            let socket = endpoint.tcp();
            if socket.recv_queue() > 0 {
                // No owner will read the received bytes.
                socket.abort();
            }
        }
        let key = key_of(endpoint.tcp());
        drop(endpoint);
        self.table.set_key(index, key);
        true
    }

    /// Schedules the socket's next frame: now, or at its deadline.
    pub(super) fn schedule(&mut self, index: Index) {
        let now = now();
        let at = self.interface.poll_at(now, &endpoint(index).set);
        let is_due = at.is_some_and(|at| at <= now);
        self.table.set_sending(index, is_due);
        let limit = self.stall_deadline(index, now);
        if is_due {
            // The socket is scheduled again when it has sent.
            return;
        }
        match at.into_iter().chain(limit).min() {
            Some(at) => self.table.deadlines.set_no_later_than(index, at),
            None => self.table.deadlines.set(index, None),
        }
    }

    /// Returns the time at which a connection is reset if its peer makes no progress; `None` while
    /// no bytes are outstanding. A connection without an owner is reset at a fixed time after it
    /// has lost its owner.
    pub(super) fn stall_deadline(&mut self, index: Index, now: Instant) -> Option<Instant> {
        let slot = self.table.slot(index);
        let (is_orphan, limit) = match (slot.kind, slot.owner) {
            (Kind::Stream, Owner::Program) => (false, STALL_TIMEOUT),
            (Kind::Stream, Owner::None) => (true, ORPHAN_TIMEOUT),
            _ => return None,
        };
        let outstanding = endpoint(index).tcp().send_queue();
        let since = match slot.stalled_since {
            // The peer has acknowledged no bytes, or acknowledges them for a socket without an
            // owner.
            Some((since, before)) if is_orphan || outstanding >= before => since,
            _ => now,
        };
        slot.stalled_since = (is_orphan || outstanding > 0).then_some((since, outstanding));
        slot.stalled_since.map(|(since, _)| since + limit)
    }

    /// Serves the sockets whose deadline has passed. Returns false if any are left.
    pub(super) fn serve_deadlines(&mut self) -> bool {
        let now = now();
        for _ in 0..MAX_FRAMES_PER_POLL {
            match self.table.deadlines.first() {
                Some((deadline, index)) if deadline <= now => {
                    self.table.deadlines.set(index, None);
                    if self
                        .stall_deadline(index, now)
                        .is_some_and(|end| end <= now)
                    {
                        // The reset notifies the peer.
                        endpoint(index).tcp().abort();
                        self.table.slot(index).stalled_since = None;
                        self.update_socket(index);
                    } else {
                        self.schedule(index);
                    }
                }
                _ => return true,
            }
        }
        false
    }

    /// Ends the writing side of a socket.
    ///
    /// If the peer has ended its side, too, the end is sent once all bytes are acknowledged,
    /// because in LAST-ACK `smoltcp` ignores a window that the peer opens again.
    pub(super) fn close_write(&self, index: Index) {
        let mut endpoint = endpoint(index);
        let socket = endpoint.tcp();
        if socket.state() != tcp::State::CloseWait || socket.send_queue() == 0 {
            socket.close();
        } else {
            endpoint.is_ending = true;
        }
    }

    /// Returns whether the connection has ended. A connection in TIME-WAIT has ended as soon as
    /// nothing is left to be sent. A closed connection has ended as soon as the socket has no
    /// remote endpoint, because the reset has then been sent.
    pub(super) fn has_ended(&mut self, endpoint: &mut Endpoint) -> bool {
        let socket = endpoint.tcp();
        match socket.state() {
            tcp::State::Closed => socket.remote_endpoint().is_none(),
            tcp::State::TimeWait => {
                let now = now();
                let at = self.interface.poll_at(now, &endpoint.set);
                at.is_none_or(|at| at > now)
            }
            _ => false,
        }
    }

    pub(super) fn remove(&mut self, index: Index) {
        if self.table.slot(index).is_stuck {
            self.stuck.retain(|stuck| *stuck != index);
        }
        self.table.remove(index);
        // Wake the coroutine, so that it drops its timer if no deadline is left. A hart frees the
        // memory of its timers only when no timer is left.
        if self.alarm.is_some() && self.table.deadlines.first().is_none() {
            requests().wake();
        }
    }
}
