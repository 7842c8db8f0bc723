//! The requests in progress of a connection. They can be listed, and moved to another level.
//!
//! Each connection has its own table, which its requests share only with the operator. Listing all
//! requests therefore visits all connections. A request gets a number when it is first listed,
//! since only a listed request is referred to by number.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use upshift::{CoroutineId, Level};

use crate::request::priority::Urgency;
use crate::request::rules::Facts;

/// A request in progress, as the operator, HTTP/2 frames and the order of streams see it.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Number for the operator; 0 until the request is listed.
    number: AtomicU64,
    /// HTTP/2 stream of the request, if known. `PRIORITY_UPDATE` frames refer to streams.
    stream: Option<u32>,
    pub(crate) facts: Facts,
    /// Urgency that the client or the service requests.
    urgency: AtomicU8,
    /// Level that the request has without rules.
    default_level: AtomicU8,
    /// Arrival of the request, in ns of the clock.
    pub(crate) since: u64,
    /// Current level.
    level: AtomicU8,
    coroutine: OnceLock<CoroutineId>,
}

impl Entry {
    /// Creates an entry at `level`; `default_level` is the level without rules.
    pub(crate) fn new(
        facts: Facts,
        stream: Option<u32>,
        (urgency, default_level): (Urgency, Level),
        level: Level,
        since: u64,
    ) -> Arc<Entry> {
        Arc::new(Entry {
            number: AtomicU64::new(0),
            stream,
            facts,
            urgency: AtomicU8::new(urgency_bits(urgency)),
            default_level: AtomicU8::new(default_level.get()),
            since,
            level: AtomicU8::new(level.get()),
            coroutine: OnceLock::new(),
        })
    }

    pub(crate) fn number(&self) -> u64 {
        self.number.load(Relaxed)
    }

    /// Returns the number for the operator; the first call assigns it.
    pub(crate) fn assign_number(&self) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        if self.number() == 0 {
            let next = NEXT.fetch_add(1, Relaxed);
            // A concurrent listing may just have assigned a number.
            let _ = self.number.compare_exchange(0, next, Relaxed, Relaxed);
        }
        self.number()
    }

    pub(crate) fn level(&self) -> Level {
        Level::new(self.level.load(Relaxed)).unwrap_or_default()
    }

    pub(crate) fn default_level(&self) -> Level {
        Level::new(self.default_level.load(Relaxed)).unwrap_or_default()
    }

    pub(crate) fn urgency(&self) -> Urgency {
        let bits = self.urgency.load(Relaxed);
        Urgency {
            u: bits / 2,
            incremental: bits % 2 == 1,
        }
    }

    pub(crate) fn is_incremental(&self) -> bool {
        self.urgency().incremental
    }

    pub(crate) fn set_urgency(&self, urgency: Urgency, default_level: Level) {
        self.urgency.store(urgency_bits(urgency), Relaxed);
        self.default_level.store(default_level.get(), Relaxed);
    }

    /// Moves the request to a level. The caller holds the lock of the connection's table, so the
    /// coroutine has not continued with another request.
    fn move_to(&self, runtime: &upshift::Handle, level: Level) -> bool {
        self.level.store(level.get(), Relaxed);
        // The coroutine may have been cancelled.
        self.coroutine
            .get()
            .is_some_and(|id| runtime.reprio(*id, level).is_ok())
    }

    pub(crate) fn set_coroutine(&self) {
        if let Some(id) = upshift::get_cid() {
            let _ = self.coroutine.set(id);
        }
    }
}

fn urgency_bits(urgency: Urgency) -> u8 {
    2 * urgency.u.min(7) + u8::from(urgency.incremental)
}

#[derive(Debug, Default)]
pub(crate) struct InFlight {
    entries: Mutex<Vec<Arc<Entry>>>,
}

impl InFlight {
    fn entries(&self) -> MutexGuard<'_, Vec<Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn insert(&self, entry: &Arc<Entry>) {
        self.entries().push(entry.clone());
    }

    pub(crate) fn remove(&self, entry: &Arc<Entry>) {
        let mut entries = self.entries();
        if let Some(index) = entries.iter().position(|other| Arc::ptr_eq(other, entry)) {
            entries.swap_remove(index);
        }
    }

    pub(crate) fn list(&self, list: &mut Vec<Arc<Entry>>) {
        list.extend(self.entries().iter().cloned());
    }

    pub(crate) fn find_stream(&self, number: u32) -> Option<Arc<Entry>> {
        let entries = self.entries();
        let mut entries = entries.iter();
        entries.find(|entry| entry.stream == Some(number)).cloned()
    }

    /// Moves requests to the levels that `new_level` returns. Runs under the lock, so no request
    /// ends, and no coroutine continues with another request, meanwhile. Returns the number of
    /// requests whose level has changed.
    pub(crate) fn reprio(
        &self,
        runtime: &upshift::Handle,
        new_level: impl Fn(&Entry) -> Option<Level>,
    ) -> usize {
        let entries = self.entries();
        let mut moved = 0;
        for entry in entries.iter() {
            let Some(level) = new_level(entry).filter(|level| *level != entry.level()) else {
                continue;
            };
            moved += usize::from(entry.move_to(runtime, level));
        }
        moved
    }
}
