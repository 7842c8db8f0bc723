//! Restores elevated threads when they end, and when the process ends by `exit`.
//!
//! The process has a list of its sets (a set is the state of an [`Elevator`](crate::Elevator)). The
//! list has three readers: an `atexit` handler, the destructor of a thread-local value in each
//! thread that elevated itself, and the check whether another set of this process has elevated a
//! thread. The list is locked only while it is copied or extended. A set's own lock is taken
//! afterwards, never while the list is locked.
//!
//! If the process dies without `exit` (by `_exit`, `abort` or a signal), no code of this module
//! runs. The threads of this process end with it, and the guardian process restores the threads of
//! other processes.

use std::sync::{Arc, Once, Weak};

use crate::elevator::Inner;
use crate::lock::Lock;
use crate::sys::{Tid, current_tid};

static SETS: Lock<Vec<Weak<Inner>>> = Lock::new(Vec::new());
static AT_EXIT: Once = Once::new();

/// Number of times, 1 ms apart, that the handler tries a lock that another thread holds.
const LOCK_ATTEMPTS: usize = 100;

pub(crate) fn register(inner: &Arc<Inner>) {
    AT_EXIT.call_once(|| {
        // SAFETY: the handler is a function without arguments that stays valid until the process
        // ends. If it cannot be registered, the guards and the guardian still restore threads.
        unsafe { libc::atexit(restore_at_exit) };
    });
    let mut sets = SETS.lock();
    sets.retain(|set| set.strong_count() > 0);
    sets.push(Arc::downgrade(inner));
}

fn sets() -> Vec<Arc<Inner>> {
    let sets = SETS.lock();
    sets.iter().filter_map(Weak::upgrade).collect()
}

/// Returns whether a set other than `inner` has recorded the thread.
pub(crate) fn is_elevated_elsewhere(inner: &Arc<Inner>, tid: Tid, birth: u64) -> bool {
    sets()
        .iter()
        .any(|set| !Arc::ptr_eq(set, inner) && set.has_recorded(tid, birth))
}

extern "C" fn restore_at_exit() {
    let sets = match SETS.try_lock() {
        Some(sets) => sets.iter().filter_map(Weak::upgrade).collect(),
        None => Vec::new(),
    };
    for set in sets {
        set.restore_at_exit(LOCK_ATTEMPTS);
    }
}

struct ThreadEnd;

impl Drop for ThreadEnd {
    fn drop(&mut self) {
        let tid = current_tid();
        for set in sets() {
            set.restore_ending_thread(tid);
        }
    }
}

thread_local! {
    static THREAD_END: ThreadEnd = const { ThreadEnd };
}

pub(crate) fn restore_this_thread_at_end() {
    // This fails only if the thread's destructors run already. The thread is about to end then.
    let _ = THREAD_END.try_with(|_| {});
}
