//! Counts waiting operations by level (their urgency), so that the most urgent level is found in
//! O(1).

use upshift::Level;

/// Numbers of waiting operations by level.
pub(super) struct Levels {
    counts: [u32; 64],
    bitmap: u64,
}

impl Default for Levels {
    fn default() -> Levels {
        Levels {
            counts: [0; 64],
            bitmap: 0,
        }
    }
}

impl Levels {
    pub(super) fn add(&mut self, level: Level) {
        self.counts[usize::from(level.get())] += 1;
        self.bitmap |= level.bit();
    }

    pub(super) fn remove(&mut self, level: Level) {
        let count = &mut self.counts[usize::from(level.get())];
        *count -= 1;
        if *count == 0 {
            self.bitmap &= !level.bit();
        }
    }

    pub(super) fn most_urgent(&self) -> Option<Level> {
        let bit = u8::try_from(self.bitmap.trailing_zeros()).unwrap_or(64);
        Level::new(bit).ok()
    }
}
