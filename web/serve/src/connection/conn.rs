//! The state of a connection that its requests and the operator see.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use upshift::CoroutineId;
use upshift::net::SendQueue;

use crate::connection::client::{Connection, Tls};
use crate::connection::clocks::Clocks;
use crate::connection::direct::Direct;
use crate::connection::sending::Sending;
use crate::connection::streams::Streams;
use crate::request::in_flight::InFlight;
use crate::server::shared::Shared;

/// A connection. It is open as long as it, or one of its requests, exists, or until it is upgraded;
/// then it gives its place among the open ones to another.
pub(crate) struct Conn {
    pub(crate) shared: Arc<Shared>,
    /// Its place among the open ones.
    number: u64,
    pub(crate) peer: SocketAddr,
    /// Set if the connection speaks no TLS, also if there is a certificate.
    pub(super) plain: bool,
    pub(crate) clocks: Clocks,
    pub(crate) in_flight: InFlight,
    /// The coroutine that serves it.
    pub(super) coroutine: OnceLock<CoroutineId>,
    /// Known after the handshake.
    pub(super) tls: OnceLock<Tls>,
    /// The send queue of the socket.
    pub(super) queue: OnceLock<SendQueue>,
    /// Used by HTTP/2.
    pub(crate) streams: Streams,
    /// Used by HTTP/2.
    pub(crate) sending: Sending,
    /// Used by HTTP/1 without TLS.
    pub(super) direct: Arc<Direct>,
}

impl Conn {
    pub(crate) fn new(shared: Arc<Shared>, number: u64, peer: SocketAddr, plain: bool) -> Conn {
        Conn {
            number,
            peer,
            plain,
            clocks: Clocks::new(shared.coarse.clone()),
            in_flight: InFlight::default(),
            coroutine: OnceLock::new(),
            tls: OnceLock::new(),
            queue: OnceLock::new(),
            streams: Streams::default(),
            sending: Sending::default(),
            direct: Arc::default(),
            shared,
        }
    }

    /// Returns the coroutine that serves it, once it runs.
    pub(crate) fn coroutine(&self) -> Option<CoroutineId> {
        self.coroutine.get().copied()
    }

    /// Has the connection polled.
    pub(crate) fn wake(&self) {
        if let Some(id) = self.coroutine() {
            // It may be over.
            let _ = upshift::wake(id);
        }
    }

    /// Returns the facts that a service may know of it.
    pub(crate) fn facts(&self) -> Connection {
        Connection {
            peer: self.peer,
            tls: self.tls.get().cloned(),
        }
    }

    /// Returns the scheme of its URLs.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.tls.get().is_some() {
            "https"
        } else {
            "http"
        }
    }

    /// Returns the name under which a client that speaks TLS asked for the server (SNI).
    pub(crate) fn server_name(&self) -> Option<&str> {
        self.tls.get()?.server_name.as_deref()
    }

    /// Returns the files that the socket can be given without a copy, if nothing encrypts them.
    pub(crate) fn direct(&self) -> Option<&Arc<Direct>> {
        self.tls.get().is_none().then_some(&self.direct)
    }

    /// Returns how many sent bytes the client has not taken; `None` if that is not known.
    pub(super) fn unsent(&self) -> Option<usize> {
        self.queue.get()?.bytes()
    }

    /// Renews the clocks of writing while the client takes bytes.
    pub(crate) fn note_progress(&self, now: u64) {
        if self.clocks.is_writing()
            && let Some(unsent) = self.unsent()
        {
            self.clocks.note_progress(unsent, now);
        }
    }

    /// Notes that it has been polled and waits. True: poll it again, for it stopped to hand out a
    /// request.
    pub(super) fn polled(&self) -> bool {
        if !self.clocks.is_two() {
            return false;
        }
        self.sending.polled(!self.clocks.is_full());
        self.streams.has_stopped()
    }
}

impl Conn {
    /// Gives up its place among the open connections, unless it has done so before.
    pub(super) fn leave(&self) {
        self.shared.connections.leave(self.number, self.peer);
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        self.leave();
    }
}
