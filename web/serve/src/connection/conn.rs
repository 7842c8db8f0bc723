//! The state of a connection, which its requests and the operator access.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use upshift::CoroutineId;
use upshift::net::SendQueue;

use crate::connection::client::{Connection, Tls};
use crate::connection::clocks::Clocks;
use crate::connection::send_file::SendFileQueue;
use crate::connection::sending::SendOrder;
use crate::connection::streams::Streams;
use crate::request::in_flight::InFlight;
use crate::server::shared::Shared;

/// A connection. It counts as open until it is upgraded, or until it and its requests have been
/// dropped. Then its slot is free for another connection.
pub(crate) struct Conn {
    pub(crate) shared: Arc<Shared>,
    /// Key in [`Connections`](crate::server::connections::Connections).
    id: u64,
    pub(crate) peer: SocketAddr,
    /// Set if the listener is plain, that is, without TLS even if there is a certificate.
    pub(super) plain: bool,
    pub(crate) clocks: Clocks,
    pub(crate) in_flight: InFlight,
    pub(super) coroutine: OnceLock<CoroutineId>,
    pub(super) tls: OnceLock<Tls>,
    pub(super) send_queue: OnceLock<SendQueue>,
    pub(crate) streams: Streams,
    /// Order in which HTTP/2 streams send.
    pub(crate) sending: SendOrder,
    /// Files that are sent without a copy; used by HTTP/1 without TLS.
    pub(super) send_files: Arc<SendFileQueue>,
}

impl Conn {
    pub(crate) fn new(shared: Arc<Shared>, id: u64, peer: SocketAddr, plain: bool) -> Conn {
        Conn {
            id,
            peer,
            plain,
            clocks: Clocks::new(shared.coarse_clock.clone()),
            in_flight: InFlight::default(),
            coroutine: OnceLock::new(),
            tls: OnceLock::new(),
            send_queue: OnceLock::new(),
            streams: Streams::default(),
            sending: SendOrder::default(),
            send_files: Arc::default(),
            shared,
        }
    }

    pub(crate) fn coroutine(&self) -> Option<CoroutineId> {
        self.coroutine.get().copied()
    }

    pub(crate) fn wake(&self) {
        if let Some(id) = self.coroutine() {
            // The coroutine may have ended.
            let _ = upshift::wake(id);
        }
    }

    pub(crate) fn info(&self) -> Connection {
        Connection {
            peer: self.peer,
            tls: self.tls.get().cloned(),
        }
    }

    pub(crate) fn scheme(&self) -> &'static str {
        if self.tls.get().is_some() {
            "https"
        } else {
            "http"
        }
    }

    pub(crate) fn server_name(&self) -> Option<&str> {
        self.tls.get()?.server_name.as_deref()
    }

    /// Returns the queue of files that the socket can send without a copy; `None` if the connection
    /// is encrypted.
    pub(crate) fn send_file_queue(&self) -> Option<&Arc<SendFileQueue>> {
        self.tls.get().is_none().then_some(&self.send_files)
    }

    /// Returns the number of sent bytes that the client has not taken, or `None` if it is unknown.
    pub(super) fn unsent(&self) -> Option<usize> {
        self.send_queue.get()?.bytes()
    }

    pub(crate) fn note_progress(&self, now: u64) {
        if self.clocks.awaits_client()
            && let Some(unsent) = self.unsent()
        {
            self.clocks.note_progress(unsent, now);
        }
    }

    /// Returns `true` if the connection must be polled again, because reading stopped to hand out a
    /// request.
    pub(super) fn after_poll(&self) -> bool {
        if !self.clocks.is_http2() {
            return false;
        }
        self.sending.after_poll(!self.clocks.is_write_pending());
        self.streams.take_stopped()
    }

    pub(super) fn remove_from_table(&self) {
        self.shared.connections.remove(self.id, self.peer);
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        self.remove_from_table();
    }
}
