//! Giving back at the end: of a thread, and of the process by `exit`.
//!
//! One list of the sets of this process, read by an `atexit` handler, by the destructor of a thread-local value of each
//! thread that elevated itself, and to find threads that another set of this process has elevated already. The list is
//! locked only to copy it; a set's own lock is taken afterwards, never the other way round.
//!
//! Deaths without `exit` (`_exit`, `abort`, signals) run nothing here: this process's threads end with it, and the guardian
//! gives back those of other processes.

use std::sync::{Arc, Once, Weak};

use crate::elevator::Inner;
use crate::lock::Lock;
use crate::sys::{Tid, current_tid};

static SETS: Lock<Vec<Weak<Inner>>> = Lock::new(Vec::new());
static AT_EXIT: Once = Once::new();

/// How many ms the handler waits for a lock that another thread holds.
const PATIENCE: usize = 100;

/// Adds a set to the list.
pub(crate) fn register(inner: &Arc<Inner>) {
    AT_EXIT.call_once(|| {
        // SAFETY: the handler is a function of this program without arguments. If it cannot be registered, the guards and
        // the guardian remain.
        unsafe { libc::atexit(process_exits) };
    });
    let mut sets = SETS.lock();
    sets.retain(|set| set.strong_count() > 0);
    sets.push(Arc::downgrade(inner));
}

fn sets() -> Vec<Arc<Inner>> {
    let sets = SETS.lock();
    sets.iter().filter_map(Weak::upgrade).collect()
}

/// Whether a set other than `inner` holds the thread.
pub(crate) fn is_elevated_elsewhere(inner: &Arc<Inner>, tid: Tid, birth: u64) -> bool {
    sets()
        .iter()
        .any(|set| !Arc::ptr_eq(set, inner) && set.holds(tid, birth))
}

extern "C" fn process_exits() {
    let sets = match SETS.try_lock() {
        Some(sets) => sets.iter().filter_map(Weak::upgrade).collect(),
        None => Vec::new(),
    };
    for set in sets {
        set.process_exits(PATIENCE);
    }
}

/// Its destructor runs when a thread ends.
struct ThreadEnd;

impl Drop for ThreadEnd {
    fn drop(&mut self) {
        let tid = current_tid();
        for set in sets() {
            set.thread_ends(tid);
        }
    }
}

thread_local! {
    static THREAD_END: ThreadEnd = const { ThreadEnd };
}

/// From now on the calling thread is given back when it ends.
pub(crate) fn watch_this_thread() {
    // A thread whose destructors already run is about to end, and its guard with it.
    let _ = THREAD_END.try_with(|_| {});
}
