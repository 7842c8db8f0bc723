//! Durations, sizes and levels in the configuration file: texts with a unit, and plain numbers
//! where no unit is needed. An error inside one of these functions points at the value.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, de};
use upshift_units::{duration, size};

/// The range of a level.
pub(crate) const LEVELS: &str = "levels go from 0 (most urgent) to 63 (least urgent)";
/// The range of an urgency.
pub(crate) const URGENCIES: &str = "urgencies go from 0 (most urgent) to 7";

/// A text that a function of `upshift_units` reads, or a number.
struct Visit<T> {
    text: fn(&str) -> Result<T, String>,
    number: fn(u64) -> Result<T, String>,
}

impl<T> de::Visitor<'_> for Visit<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number with its unit, in quotes")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.text)(text).map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        let number = u64::try_from(number);
        let number = number.map_err(|_| E::custom("the number is negative"))?;
        (self.number)(number).map_err(E::custom)
    }
}

pub(crate) fn read_duration<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    from.deserialize_any(Visit {
        text: duration,
        number: |number| match number {
            0 => Ok(Duration::ZERO),
            _ => Err(format!("{number} has no unit: write \"{number}s\"")),
        },
    })
}

pub(crate) fn read_size<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    from.deserialize_any(Visit {
        text: size,
        number: Ok,
    })
}

pub(crate) fn read_level<'de, D: Deserializer<'de>>(from: D) -> Result<u8, D::Error> {
    up_to(63, LEVELS, from)
}

pub(crate) fn read_urgency<'de, D: Deserializer<'de>>(from: D) -> Result<u8, D::Error> {
    up_to(7, URGENCIES, from)
}

fn up_to<'de, D: Deserializer<'de>>(most: u8, range: &str, from: D) -> Result<u8, D::Error> {
    let number = i64::deserialize(from)?;
    let value = u8::try_from(number).ok().filter(|value| *value <= most);
    value.ok_or_else(|| de::Error::custom(format!("{number}: {range}")))
}
