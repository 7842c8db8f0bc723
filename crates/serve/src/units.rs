//! Durations and sizes as people write them: `100ms`, `30s`, `16k`, `1MiB`.

use std::fmt;
use std::time::Duration;

use serde::{Deserializer, de};

/// Reads `250us`, `100ms`, `30s`, `5m` or `1h`; `0` needs no unit.
///
/// # Errors
/// What is wrong with the text.
pub fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text)?;
    let seconds = match unit {
        "us" | "µs" => number * 1e-6,
        "ms" => number * 1e-3,
        "s" => number,
        "m" | "min" => number * 60.0,
        "h" => number * 3600.0,
        "" if number == 0.0 => 0.0,
        _ => {
            return Err(format!(
                "`{text}`: write a time with its unit, e.g. `100ms` or `30s`"
            ));
        }
    };
    Duration::try_from_secs_f64(seconds).map_err(|_| format!("`{text}` is too long a time"))
}

/// Reads `4096`, `16k` or `1MiB`; k, M and G are powers of 1024.
///
/// # Errors
/// What is wrong with the text.
pub fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text)?;
    let factor = match unit.trim_end_matches("iB").trim_end_matches('B') {
        "" => 1.0,
        "k" | "K" => 1024.0,
        "m" | "M" => 1024.0 * 1024.0,
        "g" | "G" => 1024.0 * 1024.0 * 1024.0,
        _ => {
            return Err(format!(
                "`{text}`: write a size in bytes, e.g. `4096`, `16k` or `1M`"
            ));
        }
    };
    Ok((number * factor) as u64)
}

fn split(text: &str) -> Result<(f64, &str), String> {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let number = text[..end]
        .parse()
        .map_err(|_| format!("`{text}` does not begin with a number"))?;
    Ok((number, text[end..].trim()))
}

/// A number, or a text that one of the readers above takes.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_have_units() {
        assert_eq!(duration("100ms"), Ok(Duration::from_millis(100)));
        assert_eq!(duration("1.5 s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        assert!(duration("5").is_err() && duration("s").is_err());
        assert_eq!(size("16k"), Ok(16384));
        assert_eq!(size("1MiB"), Ok(1 << 20));
        assert!(size("12 bits").is_err());
    }
}
