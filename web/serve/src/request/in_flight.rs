//! The requests of a connection that are under way, so that they can be listed and given another level.
//!
//! Each connection has a table of its own, which its requests share with nothing but the operator: to list the requests of all is to go
//! through the connections. A request gets a number when it is listed first, since only what has been listed is referred to by it.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use upshift::{CoroutineId, Level};

use crate::request::priority::Urgency;
use crate::request::rules::Facts;

/// A request that is under way.
#[derive(Debug)]
pub(crate) struct Entry {
    /// 0: it has not been listed.
    number: AtomicU64,
    /// Of HTTP/2, if it is known: what `PRIORITY_UPDATE` frames refer to.
    stream: Option<u32>,
    pub(crate) facts: Facts,
    /// What the client, or the service, asks for.
    urgency: AtomicU8,
    /// The level it would have without rules.
    own: AtomicU8,
    /// Nanoseconds of the clock.
    pub(crate) since: u64,
    level: AtomicU8,
    /// Known from its first poll on.
    coroutine: OnceLock<CoroutineId>,
}

impl Entry {
    /// `level` by its rule, or `own` without one.
    pub(crate) fn new(
        facts: Facts,
        stream: Option<u32>,
        (urgency, own): (Urgency, Level),
        level: Level,
        since: u64,
    ) -> Arc<Entry> {
        Arc::new(Entry {
            number: AtomicU64::new(0),
            stream,
            facts,
            urgency: AtomicU8::new(bits(urgency)),
            own: AtomicU8::new(own.get()),
            since,
            level: AtomicU8::new(level.get()),
            coroutine: OnceLock::new(),
        })
    }

    /// What the operator knows it by; 0 if it has not been listed.
    pub(crate) fn number(&self) -> u64 {
        self.number.load(Relaxed)
    }

    /// It is listed.
    pub(crate) fn numbered(&self) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        if self.number() == 0 {
            let next = NEXT.fetch_add(1, Relaxed);
            // Another list may just have numbered it.
            let _ = self.number.compare_exchange(0, next, Relaxed, Relaxed);
        }
        self.number()
    }

    pub(crate) fn level(&self) -> Level {
        Level::new(self.level.load(Relaxed)).unwrap_or_default()
    }

    /// The level it would have without rules.
    pub(crate) fn own(&self) -> Level {
        Level::new(self.own.load(Relaxed)).unwrap_or_default()
    }

    /// What the client, or the service, asks for.
    pub(crate) fn urgency(&self) -> Urgency {
        let bits = self.urgency.load(Relaxed);
        Urgency {
            u: bits / 2,
            incremental: bits % 2 == 1,
        }
    }

    /// Is a part of the response of use before the whole is there?
    pub(crate) fn is_incremental(&self) -> bool {
        self.urgency().incremental
    }

    /// Another urgency, which becomes this level where no rule says otherwise.
    pub(crate) fn asks(&self, urgency: Urgency, own: Level) {
        self.urgency.store(bits(urgency), Relaxed);
        self.own.store(own.get(), Relaxed);
    }

    /// Under the lock of the connection's table, so that the coroutine is not on to another request.
    fn move_to(&self, runtime: &upshift::Handle, to: Level) -> bool {
        self.level.store(to.get(), Relaxed);
        // It may have been cancelled.
        self.coroutine
            .get()
            .is_some_and(|id| runtime.reprio(*id, to).is_ok())
    }

    /// The calling coroutine is the one that runs it.
    pub(crate) fn begun(&self) {
        if let Some(id) = upshift::get_cid() {
            let _ = self.coroutine.set(id);
        }
    }
}

fn bits(urgency: Urgency) -> u8 {
    2 * urgency.u.min(7) + u8::from(urgency.incremental)
}

/// The requests of a connection that are under way.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    entries: Mutex<Vec<Arc<Entry>>>,
}

impl InFlight {
    fn entries(&self) -> MutexGuard<'_, Vec<Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request is under way, until [`leave`](InFlight::leave).
    pub(crate) fn enter(&self, entry: &Arc<Entry>) {
        self.entries().push(entry.clone());
    }

    pub(crate) fn leave(&self, entry: &Arc<Entry>) {
        let mut entries = self.entries();
        if let Some(at) = entries.iter().position(|one| Arc::ptr_eq(one, entry)) {
            entries.swap_remove(at);
        }
    }

    /// Adds all of them to a list.
    pub(crate) fn list(&self, to: &mut Vec<Arc<Entry>>) {
        to.extend(self.entries().iter().cloned());
    }

    /// The request of a stream.
    pub(crate) fn of_stream(&self, number: u32) -> Option<Arc<Entry>> {
        let entries = self.entries();
        let mut entries = entries.iter();
        entries.find(|entry| entry.stream == Some(number)).cloned()
    }

    /// Gives requests other levels while they are under way: what `level` says of each. Under
    /// the lock, so that no request ends, and its coroutine goes on to another one, meanwhile. How many have another level.
    pub(crate) fn reprio(
        &self,
        runtime: &upshift::Handle,
        level: impl Fn(&Entry) -> Option<Level>,
    ) -> usize {
        let entries = self.entries();
        let mut moved = 0;
        for entry in entries.iter() {
            let Some(to) = level(entry).filter(|to| *to != entry.level()) else {
                continue;
            };
            moved += usize::from(entry.move_to(runtime, to));
        }
        moved
    }
}
