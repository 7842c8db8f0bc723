//! How urgent what serves others is: as the most urgent of those who wait for it.

use upshift_core::{CoroutineId, LEVELS, Level};

use crate::executor;

/// How many wait at each level, and which levels these are. O(1).
pub(crate) struct Levels {
    count: [u16; LEVELS],
    bits: u64,
}

impl Levels {
    /// Nobody waits.
    pub(crate) const fn new() -> Levels {
        Levels {
            count: [0; LEVELS],
            bits: 0,
        }
    }

    /// Somebody waits at this level, and not at the one before any more.
    pub(crate) fn change(&mut self, before: Option<Level>, now: Option<Level>) {
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

    /// Bit L: somebody waits at level L.
    pub(crate) fn bits(&self) -> u64 {
        self.bits
    }
}

/// Gives a coroutine the most urgent of these levels.
pub(crate) fn follow(coroutine: CoroutineId, levels: u64) {
    let least = executor::LEAST_URGENT_WORK;
    let most = levels.trailing_zeros() as u8;
    let level = Level::new(most).unwrap_or(least).min(least);
    let domain = executor::domain();
    if domain.level(coroutine) != Ok(level) {
        let _ = domain.reprio(coroutine, level);
    }
}
