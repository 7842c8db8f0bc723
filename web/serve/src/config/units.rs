//! Reads values of the configuration file: durations, sizes, levels and counts, as numbers or
//! texts, and switches. Errors refer to the position of the value in the file.

use std::fmt;
use std::time::Duration;

use serde::{Deserializer, de};
use upshift::Level;
use upshift_units::{duration, size};

pub(crate) const LEVELS: &str = "levels go from 0 (most urgent) to 63 (least urgent)";
pub(crate) const URGENCIES: &str = "urgencies go from 0 (most urgent) to 7";

struct Visit<T> {
    /// End of the sentence "expected …", for a value of another type.
    expected: &'static str,
    text: fn(&str) -> Result<T, String>,
    number: fn(i64) -> Result<T, String>,
}

struct Switch;

impl de::Visitor<'_> for Switch {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("true or false, or \"on\" or \"off\"")
    }

    fn visit_bool<E: de::Error>(self, on: bool) -> Result<bool, E> {
        Ok(on)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<bool, E> {
        match text {
            "on" | "true" => Ok(true),
            "off" | "false" => Ok(false),
            _ => Err(E::custom(format!("`{text}`: write true or false"))),
        }
    }
}

pub(crate) fn read_switch<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    from.deserialize_any(Switch)
}

impl<T> de::Visitor<'_> for Visit<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.text)(text).map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        (self.number)(number).map_err(E::custom)
    }
}

pub(crate) fn read_duration<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    from.deserialize_any(Visit {
        expected: "a number with its unit, in quotes",
        text: duration,
        number: |number| match number {
            0 => Ok(Duration::ZERO),
            _ => Err(format!("{number} has no unit: write \"{number}s\"")),
        },
    })
}

pub(crate) fn read_size<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    from.deserialize_any(Visit {
        expected: "a number of bytes, or a number with its unit, in quotes",
        text: size,
        number: count,
    })
}

pub(crate) fn read_level<'de, D: Deserializer<'de>>(from: D) -> Result<u8, D::Error> {
    from.deserialize_any(Visit {
        expected: "a level, from 0 (most urgent) to 63 (least urgent)",
        text: |text| match text.parse::<Level>() {
            Ok(level) => Ok(level.get()),
            Err(error) => Err(format!("`{text}` is {error}")),
        },
        number: |number| up_to(63, LEVELS, number),
    })
}

pub(crate) fn read_urgency<'de, D: Deserializer<'de>>(from: D) -> Result<u8, D::Error> {
    from.deserialize_any(Visit {
        expected: "an urgency, from 0 (most urgent) to 7",
        text: |text| match text.parse() {
            Ok(number) => up_to(7, URGENCIES, number),
            Err(_) => Err(format!("`{text}`: {URGENCIES}")),
        },
        number: |number| up_to(7, URGENCIES, number),
    })
}

/// Reads a count, with or without quotes.
pub(crate) fn read_count<'de, T, D>(from: D) -> Result<T, D::Error>
where
    T: TryFrom<i64>,
    D: Deserializer<'de>,
{
    from.deserialize_any(Visit {
        expected: "a number",
        text: |text| match text.parse() {
            Ok(number) => count(number),
            Err(_) => Err(format!("`{text}`: write a number, such as 200")),
        },
        number: count,
    })
}

fn count<T: TryFrom<i64>>(number: i64) -> Result<T, String> {
    let reason = if number < 0 { "negative" } else { "too large" };
    T::try_from(number).map_err(|_| format!("{number}: the number is {reason}"))
}

fn up_to(max: u8, range: &str, number: i64) -> Result<u8, String> {
    let value = u8::try_from(number).ok().filter(|value| *value <= max);
    value.ok_or_else(|| format!("{number}: {range}"))
}
