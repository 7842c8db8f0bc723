//! Keeps track of the open connections of a server, and shuts them down gracefully.

use std::collections::HashSet;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::Poll;
use std::time::Duration;

use upshift_core::CoroutineId;

use crate::notice::notice;
use crate::sync::Notify;
use crate::time;

#[derive(Default)]
pub(super) struct Connections {
    draining: AtomicBool,
    open: Mutex<OpenConnections>,
    /// Notified when a connection ends while the server drains.
    closed: Notify,
}

#[derive(Default)]
struct OpenConnections {
    count: usize,
    ids: HashSet<CoroutineId>,
}

impl Connections {
    fn open(&self) -> std::sync::MutexGuard<'_, OpenConnections> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection, which counts as open until its guard is dropped.
    pub(super) fn insert(self: &Arc<Connections>) -> ConnectionGuard {
        self.open().count += 1;
        ConnectionGuard {
            connections: self.clone(),
            id: OnceLock::new(),
        }
    }

    fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Returns the output of `future`, or `None` if the server drains first.
    pub(super) async fn or_shutdown<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        poll_fn(|cx| {
            if self.is_draining() {
                return Poll::Ready(None);
            }
            future.as_mut().poll(cx).map(Some)
        })
        .await
    }

    /// Returns the output of `connection`. If the server drains first, shuts the connection down
    /// gracefully, once, and still waits for the output.
    pub(super) async fn with_graceful_shutdown<C: Future>(
        &self,
        connection: C,
        shut_down: fn(Pin<&mut C>),
    ) -> C::Output {
        let mut connection = pin!(connection);
        let mut is_shut_down = false;
        poll_fn(|cx| {
            if self.is_draining() && !is_shut_down {
                is_shut_down = true;
                shut_down(connection.as_mut());
            }
            connection.as_mut().poll(cx)
        })
        .await
    }

    /// Shuts all connections down gracefully, and cancels connections that have not ended within
    /// the limit.
    pub(super) async fn drain(&self, limit: Duration) {
        self.draining.store(true, Ordering::SeqCst);
        // The connection may have ended meanwhile.
        let wake = |id| _ = crate::wake(id);
        if time::timeout(limit, self.wait_until_closed(wake))
            .await
            .is_ok()
        {
            return;
        }
        let count = self.open().count;
        notice(format_args!(
            "connections that did not end within {limit:?} of the shutdown, and are cancelled: {count}"
        ));
        let Ok(runtime) = crate::Handle::current() else {
            return;
        };
        self.wait_until_closed(|id| _ = runtime.cancel(id)).await;
    }

    /// Waits until no connection is open. Calls `action` for each open connection, now and whenever
    /// a connection ends.
    async fn wait_until_closed(&self, action: impl Fn(CoroutineId)) {
        loop {
            let closed = self.closed.notified();
            let ids: Vec<_> = {
                let open = self.open();
                if open.count == 0 {
                    return;
                }
                open.ids.iter().copied().collect()
            };
            ids.into_iter().for_each(&action);
            closed.await;
        }
    }
}

/// The entry of a connection; removed when dropped.
pub(super) struct ConnectionGuard {
    pub(super) connections: Arc<Connections>,
    id: OnceLock<CoroutineId>,
}

impl ConnectionGuard {
    /// Registers the calling coroutine, which serves the connection. A connection registers before
    /// it first reads `draining`, so that it misses no wake.
    pub(super) fn register(&self) {
        if let Some(id) = crate::get_cid() {
            let _ = self.id.set(id);
            self.connections.open().ids.insert(id);
        }
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        {
            let mut open = self.connections.open();
            open.count -= 1;
            if let Some(id) = self.id.get() {
                open.ids.remove(id);
            }
        }
        if self.connections.is_draining() {
            self.connections.closed.notify_one();
        }
    }
}
