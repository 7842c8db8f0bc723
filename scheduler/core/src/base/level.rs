//! Levels of urgency: 0 is the most urgent, 63 the least.
//!
//! A [`Level`] that exists is in range: it comes from a constant that the
//! compiler has checked ([`Level::at`]) or from [`Level::new`], which returns an
//! error value.

use core::fmt;

/// How many levels there are: one bit each in a 64-bit bitmap.
pub const LEVELS: usize = 64;

/// The urgency of a coroutine: 0 (most urgent) to 63 (least urgent).
///
/// `Level`s order by number, so *more urgent* is *less than*.
///
/// ```
/// use upshift_core::Level;
///
/// const REQUESTS: Level = Level::at::<8>();
/// assert!(REQUESTS < Level::DEFAULT);
/// assert!(Level::new(64).is_err());
/// ```
///
/// A constant out of range does not compile:
///
/// ```compile_fail
/// let level = upshift_core::Level::at::<64>();
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Level(u8);

impl Level {
    /// Level 0: nothing goes before it.
    pub const MOST_URGENT: Level = Level(0);
    /// Level 32: what a coroutine without a wish gets.
    pub const DEFAULT: Level = Level(32);
    /// Level 63: runs when nothing else does.
    pub const LEAST_URGENT: Level = Level(63);

    /// The level `N`, checked by the compiler.
    #[must_use]
    pub const fn at<const N: u8>() -> Level {
        const { assert!(N < LEVELS as u8, "levels go from 0 to 63") };
        Level(N)
    }

    /// The level `n`.
    ///
    /// # Errors
    /// [`LevelError`] unless `n` is in `0..=63`.
    pub const fn new(n: u8) -> Result<Level, LevelError> {
        if n < LEVELS as u8 {
            Ok(Level(n))
        } else {
            Err(LevelError(n))
        }
    }

    /// A level from the low six bits of `n`, for values this crate has stored.
    pub(crate) const fn from_stored(n: u8) -> Level {
        Level(n & (LEVELS as u8 - 1))
    }

    /// The number of the level, `0..=63`.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The same as an index below [`LEVELS`], also to the compiler's knowledge.
    #[inline]
    pub(crate) const fn index(self) -> usize {
        (self.0 & (LEVELS as u8 - 1)) as usize
    }

    /// The bit of this level in a bitmap.
    #[must_use]
    pub const fn bit(self) -> u64 {
        1 << self.0
    }

    /// The bits of all levels more urgent than this one.
    #[must_use]
    pub const fn more_urgent_bits(self) -> u64 {
        (1 << self.0) - 1
    }
}

impl Default for Level {
    fn default() -> Level {
        Level::DEFAULT
    }
}

impl TryFrom<u8> for Level {
    type Error = LevelError;
    fn try_from(n: u8) -> Result<Level, LevelError> {
        Level::new(n)
    }
}

impl From<Level> for u8 {
    fn from(level: Level) -> u8 {
        level.0
    }
}

impl fmt::Debug for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Level({})", self.0)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A number that is no level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelError(u8);

impl fmt::Display for LevelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} is not a level: use 0 (most urgent) to 63 (least urgent)",
            self.0
        )
    }
}

impl core::error::Error for LevelError {}

/// The priority asked for at spawn: a level, or the spawner's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Priority {
    /// The effective level of the coroutine that spawns; [`Level::DEFAULT`]
    /// where no coroutine does.
    #[default]
    Inherit,
    /// This level.
    At(Level),
}

impl From<Level> for Priority {
    fn from(level: Level) -> Priority {
        Priority::At(level)
    }
}
