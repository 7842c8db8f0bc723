//! The table of open connections.
//!
//! Each connection has a descriptor and reads a file with another one. So their number is limited
//! to half of the descriptors that were free at the start: open connections can be served
//! regardless of the number of clients.
//!
//! A connection that is turned away has a descriptor only between its `accept` and its `close`,
//! which follow each other ([`Listener`](crate::server::bind::Listener)).

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use upshift::sync::Notify;

use crate::admission::rates::peer_key;
use crate::connection::conn::Conn;
use crate::operator::notice::Notices;

/// Number of descriptors that no connection uses: for the control socket, settings and certificates
/// that are read again, and the access log.
const SPARE: u64 = 16;

/// The table of open connections.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    table: Mutex<Table>,
    /// Number of connections that the descriptors allow, and the limit of descriptors.
    allowed: Option<(usize, u64)>,
    /// Notified when the last connection has closed.
    pub(crate) closed: Notify,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    open: HashMap<u64, Weak<Conn>>,
    of_peer: HashMap<IpAddr, usize>,
}

impl Connections {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates an empty table. `limit` is the number of descriptors that the process may have
    /// (`None`: unlimited), `kept` the number of descriptors that are opened later for other
    /// purposes.
    pub(crate) fn within(limit: Option<u64>, kept: usize) -> Connections {
        let has = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count) as u64;
        let allowed = limit.map(|limit| {
            let free = limit.saturating_sub(has + SPARE + kept as u64) / 2;
            (usize::try_from(free).unwrap_or(usize::MAX).max(1), limit)
        });
        Connections {
            allowed,
            ..Connections::default()
        }
    }

    /// Notes that a connection was turned away, and warns if descriptors are the reason.
    pub(crate) fn remark(&self) {
        static FULL: Notices = Notices::new();
        if let Some((most, limit)) = self.allowed
            && self.count() >= most
        {
            FULL.say(format_args!(
                "a connection was closed: {most} are open, as many as can be served with {limit} descriptors; raise the limit \
                 (`ulimit -Hn`, LimitNOFILE=)"
            ));
        }
    }

    /// Adds the connection that `open` creates from its number, unless there are too many. Its drop
    /// [leaves](Connections::leave).
    pub(crate) fn enter(
        &self,
        peer: SocketAddr,
        most: usize,
        of_peer: usize,
        open: impl FnOnce(u64) -> Arc<Conn>,
    ) -> Option<Arc<Conn>> {
        let most = self.allowed.map_or(most, |(allowed, _)| most.min(allowed));
        let mut table = self.table();
        let key = peer_key(peer.ip());
        let has = table.of_peer.get(&key).copied().unwrap_or(0);
        if table.open.len() >= most || (has >= of_peer && !key.is_unspecified()) {
            return None;
        }
        table.of_peer.insert(key, has + 1);
        table.next += 1;
        let number = table.next;
        let conn = open(number);
        table.open.insert(number, Arc::downgrade(&conn));
        Some(conn)
    }

    /// Removes a connection, which is over.
    pub(crate) fn leave(&self, number: u64, peer: SocketAddr) {
        let mut table = self.table();
        if table.open.remove(&number).is_none() {
            return;
        }
        let key = peer_key(peer.ip());
        if let Some(has) = table.of_peer.get_mut(&key) {
            *has -= 1;
            if *has == 0 {
                table.of_peer.remove(&key);
            }
        }
        if table.open.is_empty() {
            self.closed.notify_one();
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.table().open.len()
    }

    pub(crate) fn each(&self, visit: impl FnMut(&Conn)) {
        // The last reference to a connection may be dropped here, which removes it from the table.
        let open: Vec<_> = self
            .table()
            .open
            .values()
            .filter_map(Weak::upgrade)
            .collect();
        open.iter().map(|conn| &**conn).for_each(visit);
    }
}
