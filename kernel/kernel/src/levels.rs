//! Priority inheritance for coroutines that serve waiters: such a coroutine has the level of its
//! most urgent waiter.

use upshift_core::{CoroutineId, LEVELS, Level};

use crate::executor;

/// Number of waiters at each level, and the set of levels with waiters. Each operation is O(1).
pub(crate) struct WaiterLevels {
    count: [u16; LEVELS],
    bits: u64,
}

impl WaiterLevels {
    pub(crate) const fn new() -> WaiterLevels {
        WaiterLevels {
            count: [0; LEVELS],
            bits: 0,
        }
    }

    /// Moves a waiter from level `before` to level `now`. `before` is `None` for a new waiter, and
    /// `now` is `None` for a waiter that stops waiting.
    pub(crate) fn move_waiter(&mut self, before: Option<Level>, now: Option<Level>) {
        if let Some(level) = now {
            self.count[usize::from(level.get())] += 1;
            self.bits |= level.bit();
        }
        if let Some(level) = before {
            let count = &mut self.count[usize::from(level.get())];
            *count -= 1;
            if *count == 0 {
                self.bits &= !level.bit();
            }
        }
    }

    /// Returns the levels with waiters: bit L is set if a waiter has level L.
    pub(crate) fn bits(&self) -> u64 {
        self.bits
    }
}

/// Returns the most urgent of `levels`, or [`executor::LEAST_URGENT_WORK`] if the set is empty or
/// holds only less urgent levels.
fn most_urgent(levels: u64) -> Level {
    let limit = executor::LEAST_URGENT_WORK;
    let lowest_bit = levels.trailing_zeros() as u8;
    Level::new(lowest_bit).unwrap_or(limit).min(limit)
}

/// Gives the coroutine the level of its most urgent waiter. Does nothing if the coroutine has
/// ended.
pub(crate) fn follow(coroutine: CoroutineId, levels: u64) {
    let level = most_urgent(levels);
    let domain = executor::domain();
    if domain.level(coroutine) != Ok(level) {
        let _ = domain.reprio(coroutine, level);
    }
}

/// A coroutine whose level only this value changes, so that the level can be cached.
pub(crate) struct LevelFollower {
    coroutine: CoroutineId,
    level: Level,
}

impl LevelFollower {
    pub(crate) fn new(coroutine: CoroutineId, level: Level) -> LevelFollower {
        LevelFollower { coroutine, level }
    }

    pub(crate) fn follow(&mut self, levels: u64) {
        let level = most_urgent(levels);
        if self.level != level && executor::domain().reprio(self.coroutine, level).is_ok() {
            self.level = level;
        }
    }

    pub(crate) fn wake(&self) {
        // The coroutine never ends.
        let _ = executor::domain().wake(self.coroutine);
    }
}
