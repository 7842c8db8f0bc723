//! The table of open connections, which limits their number.
//!
//! Each connection has a descriptor and uses another to read a file. So the number of connections
//! is limited to half of the descriptors that were free at the start. Open connections can then be
//! served regardless of the number of clients.
//!
//! A rejected connection has a descriptor only between its `accept` and its `close`, which follow
//! immediately ([`Listener`](crate::server::bind::Listener)).

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use upshift::sync::Notify;

use crate::admission::rates::peer_key;
use crate::connection::conn::Conn;
use crate::operator::notice::Notices;

/// Number of descriptors that no connection uses. They are for the control socket, for settings and
/// certificates that are read again, and for the access log.
const RESERVED_DESCRIPTORS: u64 = 16;

#[derive(Debug, Default)]
pub(crate) struct Connections {
    table: Mutex<Table>,
    /// Number of connections that the descriptors allow, and the limit of descriptors.
    capacity: Option<(usize, u64)>,
    pub(crate) all_closed: Notify,
}

#[derive(Debug, Default)]
struct Table {
    /// Number of the connection that was added last.
    last_number: u64,
    open: HashMap<u64, Weak<Conn>>,
    per_peer: HashMap<IpAddr, usize>,
}

impl Connections {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates an empty table. `limit` is the process's limit of descriptors (`None` if unlimited),
    /// `reserved` the number of descriptors that are opened later for other purposes.
    pub(crate) fn with_limit(limit: Option<u64>, reserved: usize) -> Connections {
        let used = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count) as u64;
        let capacity = limit.map(|limit| {
            let free = limit.saturating_sub(used + RESERVED_DESCRIPTORS + reserved as u64) / 2;
            (usize::try_from(free).unwrap_or(usize::MAX).max(1), limit)
        });
        Connections {
            capacity,
            ..Connections::default()
        }
    }

    pub(crate) fn warn_if_full(&self) {
        static FULL: Notices = Notices::new();
        if let Some((max, limit)) = self.capacity
            && self.count() >= max
        {
            FULL.report(format_args!(
                "a connection was closed: {max} are open, as many as can be served with {limit} descriptors; raise the limit \
                 (`ulimit -Hn`, LimitNOFILE=)"
            ));
        }
    }

    /// Adds the connection that `open` creates from its number, unless there are too many
    /// connections. Dropping the connection [removes](Connections::remove) it.
    pub(crate) fn insert(
        &self,
        peer: SocketAddr,
        max: usize,
        max_per_peer: usize,
        open: impl FnOnce(u64) -> Arc<Conn>,
    ) -> Option<Arc<Conn>> {
        let max = self.capacity.map_or(max, |(capacity, _)| max.min(capacity));
        let mut table = self.table();
        let key = peer_key(peer.ip());
        let count = table.per_peer.get(&key).copied().unwrap_or(0);
        if table.open.len() >= max || (count >= max_per_peer && !key.is_unspecified()) {
            return None;
        }
        table.per_peer.insert(key, count + 1);
        table.last_number += 1;
        let number = table.last_number;
        let conn = open(number);
        table.open.insert(number, Arc::downgrade(&conn));
        Some(conn)
    }

    pub(crate) fn remove(&self, number: u64, peer: SocketAddr) {
        let mut table = self.table();
        if table.open.remove(&number).is_none() {
            return;
        }
        let key = peer_key(peer.ip());
        if let Some(count) = table.per_peer.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                table.per_peer.remove(&key);
            }
        }
        if table.open.is_empty() {
            self.all_closed.notify_one();
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.table().open.len()
    }

    pub(crate) fn for_each(&self, visit: impl FnMut(&Conn)) {
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
