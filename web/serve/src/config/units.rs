//! Durations and sizes in the configuration file: texts with a unit, and plain numbers where no unit is needed.

use std::fmt;
use std::time::Duration;

use serde::{Deserializer, de};
use upshift_units::{duration, size};

/// A number, or a text that a function of `upshift_units` reads.
struct Visit<T>(fn(&str) -> Result<T, String>, fn(u64) -> Option<T>);

impl<T> de::Visitor<'_> for Visit<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number with its unit, in quotes")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.0)(text).map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        u64::try_from(number).ok().and_then(self.1).ok_or_else(|| {
            E::custom(format!(
                "{number}: a unit is missing, or the number is negative"
            ))
        })
    }
}

pub(crate) fn read_duration<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    from.deserialize_any(Visit(duration, |n| (n == 0).then_some(Duration::ZERO)))
}

pub(crate) fn read_size<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    from.deserialize_any(Visit(size, Some))
}
