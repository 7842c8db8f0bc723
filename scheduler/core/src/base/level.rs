//! Levels of urgency: 0 is the most urgent, 63 the least.
//!
//! A [`Level`] is always in range: [`Level::at`] checks its constant when the program is compiled,
//! and [`Level::new`] returns an error value.

use core::fmt;
use core::str::FromStr;

/// Number of levels. Each has one bit in a 64-bit bitmap.
pub const LEVELS: usize = 64;

/// The urgency of a coroutine: 0 (most urgent) to 63 (least urgent).
///
/// `Level`s order by number, so *more urgent* is *less than*.
///
/// ```
/// use upshift_core::Level;
///
/// const REQUESTS: Level = Level::at::<8>();
/// assert!(REQUESTS < Level::NORMAL);
/// assert!(Level::new(64).is_err());
/// assert_eq!("low".parse(), Ok(Level::LOW));
/// assert_eq!("8".parse(), Ok(REQUESTS));
/// ```
///
/// Five levels have names. They lie 16 apart, so that other levels fit between them; see
/// `docs/levels.md` for how to choose one.
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
    /// Level 0: short work that must not wait, such as heartbeats and cancellation.
    pub const URGENT: Level = Level(0);
    /// Level 16: requests that somebody waits for.
    pub const HIGH: Level = Level(16);
    /// Level 32: work without a stated priority.
    pub const NORMAL: Level = Level(32);
    /// Level 48: work that nobody waits for but that must end by a deadline, such as reports and
    /// imports.
    pub const LOW: Level = Level(48);
    /// Level 63: work that runs only while no other is ready.
    pub const BACKGROUND: Level = Level(63);

    /// The most urgent level: [`Level::URGENT`].
    pub const MOST_URGENT: Level = Level::URGENT;
    /// The level of a coroutine without a stated priority: [`Level::NORMAL`].
    pub const DEFAULT: Level = Level::NORMAL;
    /// The least urgent level: [`Level::BACKGROUND`].
    pub const LEAST_URGENT: Level = Level::BACKGROUND;

    /// Returns level `N`, checked by the compiler.
    #[must_use]
    pub const fn at<const N: u8>() -> Level {
        const { assert!(N < LEVELS as u8, "levels go from 0 to 63") };
        Level(N)
    }

    /// Returns level `n`.
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

    /// Returns the level in the low six bits of `n`, for values that this crate has stored.
    pub(crate) const fn from_stored(n: u8) -> Level {
        Level(n & (LEVELS as u8 - 1))
    }

    /// Returns the number of the level, `0..=63`.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    #[inline]
    pub(crate) const fn index(self) -> usize {
        // The mask changes nothing, but shows the compiler that the index is in range.
        (self.0 & (LEVELS as u8 - 1)) as usize
    }

    /// Returns the bit of this level in a bitmap.
    #[must_use]
    pub const fn bit(self) -> u64 {
        1 << self.0
    }

    /// Returns the bits of all levels more urgent than this one.
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

/// Parses a number from 0 to 63, or one of the five names in upper or lower case.
impl FromStr for Level {
    type Err = ParseLevelError;
    fn from_str(text: &str) -> Result<Level, ParseLevelError> {
        const NAMES: [(&str, Level); 5] = [
            ("urgent", Level::URGENT),
            ("high", Level::HIGH),
            ("normal", Level::NORMAL),
            ("low", Level::LOW),
            ("background", Level::BACKGROUND),
        ];
        let named = NAMES
            .into_iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(text));
        if let Some((_, level)) = named {
            return Ok(level);
        }
        let number = text.parse().map_err(|_| ParseLevelError(()))?;
        Level::new(number).map_err(|_| ParseLevelError(()))
    }
}

/// The error of parsing a text that is not a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseLevelError(());

impl fmt::Display for ParseLevelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "not a level: use 0 (most urgent) to 63 (least urgent), or urgent, high, normal, low, background",
        )
    }
}

impl core::error::Error for ParseLevelError {}

/// The error of [`Level::new`] for a number that is not a level.
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

/// Priority of a new coroutine: a level, or the spawner's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Priority {
    /// The effective level of the coroutine that spawns; [`Level::DEFAULT`] outside of a coroutine.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_of_levels_are_parsed() {
        for (text, level) in [
            ("0", Level::URGENT),
            ("urgent", Level::URGENT),
            ("High", Level::HIGH),
            ("NORMAL", Level::DEFAULT),
            ("48", Level::LOW),
            ("background", Level::LEAST_URGENT),
        ] {
            assert_eq!(text.parse(), Ok(level), "{text}");
        }
        for text in ["", "64", "-1", "256", " 1", "lowest", "low "] {
            assert!(text.parse::<Level>().is_err(), "{text}");
        }
    }
}
