//! The requests that are under way, so that they can be listed and given another level.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use upshift::{CoroutineId, Level};

use crate::priority::Urgency;
use crate::rules::Facts;

/// A request that is under way.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: u64,
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
        let bits = 2 * urgency.u.min(7) + u8::from(urgency.incremental);
        self.urgency.store(bits, Relaxed);
        self.own.store(own.get(), Relaxed);
    }

    /// Under the lock of the table, so that the coroutine is not on to another request.
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

#[derive(Debug, Default)]
struct Slots {
    entries: Vec<Option<Arc<Entry>>>,
    free: Vec<usize>,
    next: u64,
}

/// All requests under way.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    slots: Mutex<Slots>,
}

impl InFlight {
    fn slots(&self) -> std::sync::MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a request; [`leave`](InFlight::leave) with the place that is returned.
    pub(crate) fn enter(
        &self,
        facts: Facts,
        (urgency, own): (Urgency, Level),
        level: Level,
        since: u64,
    ) -> (usize, Arc<Entry>) {
        let mut slots = self.slots();
        slots.next += 1;
        let entry = Arc::new(Entry {
            id: slots.next,
            facts,
            urgency: AtomicU8::new(0),
            own: AtomicU8::new(0),
            since,
            level: AtomicU8::new(level.get()),
            coroutine: OnceLock::new(),
        });
        entry.asks(urgency, own);
        let place = slots.free.pop().unwrap_or(slots.entries.len());
        if place == slots.entries.len() {
            slots.entries.push(None);
        }
        slots.entries[place] = Some(entry.clone());
        (place, entry)
    }

    pub(crate) fn leave(&self, place: usize) {
        let mut slots = self.slots();
        slots.entries[place] = None;
        slots.free.push(place);
    }

    /// All of them, oldest first.
    pub(crate) fn list(&self) -> Vec<Arc<Entry>> {
        let mut entries: Vec<_> = self.slots().entries.iter().flatten().cloned().collect();
        entries.sort_by_key(|entry| entry.id);
        entries
    }

    /// Gives requests other levels while they are under way: what `level` says of each. Under
    /// the lock, so that no request ends, and its coroutine goes on to another one, meanwhile.
    pub(crate) fn reprio(
        &self,
        runtime: &upshift::Handle,
        level: impl Fn(&Entry) -> Option<Level>,
    ) -> usize {
        let slots = self.slots();
        let mut moved = 0;
        for entry in slots.entries.iter().flatten() {
            let Some(to) = level(entry).filter(|to| *to != entry.level()) else {
                continue;
            };
            moved += usize::from(entry.move_to(runtime, to));
        }
        moved
    }

    /// Gives the request of this place another level, if it is under way.
    pub(crate) fn reprio_one(
        &self,
        runtime: &upshift::Handle,
        place: usize,
        entry: &Arc<Entry>,
        to: Level,
    ) {
        let slots = self.slots();
        let listed = slots.entries.get(place).and_then(Option::as_ref);
        if listed.is_some_and(|listed| Arc::ptr_eq(listed, entry)) && to != entry.level() {
            entry.move_to(runtime, to);
        }
    }
}
