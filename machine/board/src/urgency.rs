//! The meaning of the words that a vCPU (the run queues of one CPU) publishes, and the rule for
//! when it rings, that is, notifies the daemon.
//!
//! The functions take plain values and share no memory. All are O(1). Levels are 0 (most urgent) to
//! 63; 64, [`NO_LEVEL`], means "no level".

/// Number of levels.
pub const LEVELS: u8 = 64;

/// The absence of a level: nothing runs, waits or competes. Less urgent than every level.
pub const NO_LEVEL: u8 = LEVELS;

/// The words of one vCPU, as read at one moment. Untrusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// Levels with a runnable coroutine, arrivals included.
    pub bitmap: u64,
    /// Level of the poll in progress, or [`NO_LEVEL`].
    pub running: u8,
    /// The most urgent level that waits for I/O, time or other coroutines, or [`NO_LEVEL`].
    pub awaited: u8,
}

impl Default for Claim {
    /// Returns the claim of an idle vCPU that waits for nothing.
    fn default() -> Claim {
        Claim {
            bitmap: 0,
            running: NO_LEVEL,
            awaited: NO_LEVEL,
        }
    }
}

impl Claim {
    /// Returns the claim limited to `ceiling`: more urgent levels count as `ceiling`, invalid ones
    /// as [`NO_LEVEL`].
    #[must_use]
    pub fn within(self, ceiling: u8) -> Claim {
        Claim {
            bitmap: clamp_bitmap(self.bitmap, ceiling),
            running: clamp(self.running, ceiling),
            awaited: clamp(self.awaited, ceiling),
        }
    }

    /// Returns the levels that run or could run now, bit L for level L.
    pub fn levels(&self) -> u64 {
        match self.running {
            running @ 0..LEVELS => self.bitmap | 1 << running,
            _ => self.bitmap,
        }
    }

    /// Returns the most urgent level that runs or could run now; [`NO_LEVEL`] if the vCPU is idle.
    pub fn runnable(&self) -> u8 {
        let ready = self.bitmap.trailing_zeros() as u8;
        ready.min(self.running).min(NO_LEVEL)
    }

    /// Returns the level by which the vCPU is ranked. This is the level of its runnable work or,
    /// while the vCPU sleeps, the most urgent level that may wake it. A sleeping vCPU keeps its
    /// rank, so its wake needs no decision.
    pub fn potential(&self) -> u8 {
        match self.runnable() {
            NO_LEVEL => self.awaited.min(NO_LEVEL),
            level => level,
        }
    }
}

/// Limits a level to `ceiling`: more urgent levels count as `ceiling`, invalid ones as
/// [`NO_LEVEL`].
pub fn clamp(level: u8, ceiling: u8) -> u8 {
    if level >= NO_LEVEL {
        NO_LEVEL
    } else {
        level.max(ceiling).min(LEVELS - 1)
    }
}

/// Limits a bitmap to `ceiling`: more urgent bits become the bit of `ceiling`.
pub fn clamp_bitmap(bitmap: u64, ceiling: u8) -> u64 {
    let ceiling = ceiling.min(LEVELS - 1);
    let above = (1u64 << ceiling) - 1;
    if bitmap & above == 0 {
        bitmap
    } else {
        bitmap & !above | 1 << ceiling
    }
}

/// The rank of a vCPU among the vCPUs of its CPU: one word of the global page. The word 0 means
/// that the vCPU is alone and never rings.
///
/// ```
/// use upshift_board::Standing;
///
/// // Levels 3 to 39 keep the rank; a change beyond them rings the doorbell.
/// let standing = Standing { rise: 3, fall: 39, band: 2, outranked: false };
/// assert!(!standing.requires_ring(3) && !standing.requires_ring(39));
/// assert!(standing.requires_ring(2) && standing.requires_ring(40));
/// assert_eq!(Standing::from_word(0), Standing::UNCONTESTED);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// The vCPU rings if its potential becomes more urgent than this level. 0: no vCPU ranks above.
    pub rise: u8,
    /// The vCPU rings if its potential becomes less urgent than this level. [`NO_LEVEL`]: no vCPU
    /// ranks below.
    pub fall: u8,
    /// 0: the vCPU's threads have their own policies. Above 0: the threads are elevated; the band
    /// is higher for more urgent vCPUs.
    pub band: u8,
    /// Whether another process with more urgent work is runnable on this CPU. If the threads are
    /// not elevated, the vCPU then yields voluntarily.
    pub outranked: bool,
}

impl Standing {
    /// The standing of a vCPU without competition.
    pub const UNCONTESTED: Standing = Standing {
        rise: 0,
        fall: NO_LEVEL,
        band: 0,
        outranked: false,
    };

    /// Decodes the word of the global page.
    pub fn from_word(word: u32) -> Standing {
        let [rise, depth, band, flags] = word.to_le_bytes();
        Standing {
            rise,
            fall: NO_LEVEL.saturating_sub(depth),
            band,
            outranked: flags & 1 != 0,
        }
    }

    /// Encodes the word of the global page.
    pub fn word(self) -> u32 {
        u32::from_le_bytes([
            self.rise,
            NO_LEVEL - self.fall.min(NO_LEVEL),
            self.band,
            u8::from(self.outranked),
        ])
    }

    /// Returns whether a vCPU of this standing must ring when its potential becomes `level`.
    pub fn requires_ring(self, level: u8) -> bool {
        level < self.rise || level > self.fall
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_urgent_of_ready_and_running_counts() {
        let mut claim = Claim {
            bitmap: 1 << 40 | 1 << 50,
            ..Claim::default()
        };
        assert_eq!(claim.runnable(), 40);
        claim.running = 7;
        assert_eq!(claim.runnable(), 7);
        assert_eq!(claim.potential(), 7);
        assert_eq!(claim.levels(), 1 << 7 | 1 << 40 | 1 << 50);
    }

    #[test]
    fn a_sleeper_ranks_by_the_level_it_awaits() {
        let mut claim = Claim {
            awaited: 2,
            ..Claim::default()
        };
        assert_eq!((claim.runnable(), claim.potential()), (NO_LEVEL, 2));
        claim.bitmap = 1 << 50;
        assert_eq!(claim.potential(), 50);
        assert_eq!(Claim::default().potential(), NO_LEVEL);
    }

    #[test]
    fn invalid_levels_count_as_no_level() {
        let claim = Claim {
            bitmap: 0,
            running: 200,
            awaited: 255,
        };
        assert_eq!((claim.potential(), claim.levels()), (NO_LEVEL, 0));
        assert_eq!(claim.within(3), Claim::default());
    }

    #[test]
    fn ceilings_clamp_levels_and_bitmaps() {
        assert_eq!(clamp(0, 16), 16);
        assert_eq!(clamp(20, 16), 20);
        assert_eq!(clamp(NO_LEVEL, 16), NO_LEVEL);
        assert_eq!(clamp(3, 200), 63);
        assert_eq!(clamp_bitmap(1 | 1 << 20, 16), 1 << 16 | 1 << 20);
        assert_eq!(clamp_bitmap(1 << 20, 16), 1 << 20);
        assert_eq!(clamp_bitmap(u64::MAX, 63), 1 << 63);
        assert_eq!(clamp_bitmap(u64::MAX, 0), u64::MAX);
    }

    #[test]
    fn a_zeroed_word_is_uncontested_and_words_survive_a_round_trip() {
        assert_eq!(Standing::from_word(0), Standing::UNCONTESTED);
        assert_eq!(Standing::UNCONTESTED.word(), 0);
        for level in 0..=NO_LEVEL {
            assert!(!Standing::UNCONTESTED.requires_ring(level));
        }
        let standing = Standing {
            rise: 3,
            fall: 39,
            band: 2,
            outranked: true,
        };
        assert_eq!(Standing::from_word(standing.word()), standing);
        assert!(standing.requires_ring(2) && !standing.requires_ring(3));
        assert!(standing.requires_ring(40) && !standing.requires_ring(39));
    }
}
