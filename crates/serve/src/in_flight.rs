//! The requests that are under way, so that they can be listed and given another level.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use upshift::{CoroutineId, Level};

use crate::rules::Facts;

/// A request that is under way.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: u64,
    pub(crate) facts: Facts,
    /// The level it would have without rules.
    pub(crate) own: Level,
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
        own: Level,
        level: Level,
        since: u64,
    ) -> (usize, Arc<Entry>) {
        let mut slots = self.slots();
        slots.next += 1;
        let entry = Arc::new(Entry {
            id: slots.next,
            facts,
            own,
            since,
            level: AtomicU8::new(level.get()),
            coroutine: OnceLock::new(),
        });
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
            entry.level.store(to.get(), Relaxed);
            if let Some(id) = entry.coroutine.get() {
                // It may have been cancelled.
                moved += usize::from(runtime.reprio(*id, to).is_ok());
            }
        }
        moved
    }
}
