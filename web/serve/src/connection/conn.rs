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

/// A connection. It counts as open while it or one of its requests exists, or until it is upgraded;
/// then its slot is free for another connection.
pub(crate) struct Conn {
    pub(crate) shared: Arc<Shared>,
    /// Key in the table of open connections.
    number: u64,
    pub(crate) peer: SocketAddr,
    /// Set if the connection speaks no TLS, even if there is a certificate.
    pub(super) plain: bool,
    pub(crate) clocks: Clocks,
    pub(crate) in_flight: InFlight,
    /// Coroutine that serves the connection.
    pub(super) coroutine: OnceLock<CoroutineId>,
    /// Result of the TLS handshake, once it is over.
    pub(super) tls: OnceLock<Tls>,
    /// Send queue of the socket.
    pub(super) queue: OnceLock<SendQueue>,
    /// Streams of HTTP/2.
    pub(crate) streams: Streams,
    /// Order of sending of HTTP/2.
    pub(crate) sending: Sending,
    /// Files that are sent without a copy, by HTTP/1 without TLS.
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

    /// Returns the coroutine that serves the connection, once it runs.
    pub(crate) fn coroutine(&self) -> Option<CoroutineId> {
        self.coroutine.get().copied()
    }

    /// Has the connection polled.
    pub(crate) fn wake(&self) {
        if let Some(id) = self.coroutine() {
            // The coroutine may have ended.
            let _ = upshift::wake(id);
        }
    }

    /// Returns the facts about the connection that services may know.
    pub(crate) fn facts(&self) -> Connection {
        Connection {
            peer: self.peer,
            tls: self.tls.get().cloned(),
        }
    }

    /// Returns the scheme of the connection's URLs.
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

    /// Returns the queue of files that the socket can send without a copy; `None` if the connection
    /// is encrypted.
    pub(crate) fn direct(&self) -> Option<&Arc<Direct>> {
        self.tls.get().is_none().then_some(&self.direct)
    }

    /// Returns the number of sent bytes that the client has not taken; `None` if it is not known.
    pub(super) fn unsent(&self) -> Option<usize> {
        self.queue.get()?.bytes()
    }

    /// Restarts the clocks of writing while the client takes bytes.
    pub(crate) fn note_progress(&self, now: u64) {
        if self.clocks.is_writing()
            && let Some(unsent) = self.unsent()
        {
            self.clocks.note_progress(unsent, now);
        }
    }

    /// Notes that the connection was polled and is pending. Returns true if it must be polled
    /// again, because it stopped to hand out a request.
    pub(super) fn polled(&self) -> bool {
        if !self.clocks.is_two() {
            return false;
        }
        self.sending.polled(!self.clocks.is_full());
        self.streams.has_stopped()
    }
}

impl Conn {
    /// Removes the connection from the table of open connections, at most once.
    pub(super) fn leave(&self) {
        self.shared.connections.leave(self.number, self.peer);
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        self.leave();
    }
}
