//! Durations and sizes as people write them: `100ms`, `30s`, `16k`, `1MiB`.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use serde::{Deserialize, Deserializer, de};

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

/// An address to listen on: `127.0.0.1:8080`, `[::1]:8080`, a port of this machine alone (`8080`), a port on all interfaces (`:80`,
/// `*:80`), or a name and a port (`localhost:8080`).
///
/// # Errors
/// What is wrong with it.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    if let Ok(port) = text.parse::<u16>() {
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    let all = text.strip_prefix(':').or(text.strip_prefix("*:"));
    if let Some(Ok(port)) = all.map(str::parse::<u16>) {
        return Ok((Ipv4Addr::UNSPECIFIED, port).into());
    }
    let wanted = || format!("`{text}`: use an address and a port, such as 0.0.0.0:80, or a port");
    let found: Vec<_> = text.to_socket_addrs().map_err(|_| wanted())?.collect();
    let four = found.iter().find(|address| address.is_ipv4());
    four.or(found.first()).copied().ok_or_else(wanted)
}

/// A list of [`address`]es.
pub(crate) fn read_addresses<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<SocketAddr>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    let addresses = texts.iter().map(|text| address(text));
    addresses
        .collect::<Result<_, _>>()
        .map_err(de::Error::custom)
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

    #[test]
    fn addresses_are_understood_as_they_are_said() {
        for (text, means) in [
            ("10.0.0.1:80", "10.0.0.1:80"),
            ("[::1]:80", "[::1]:80"),
            ("8080", "127.0.0.1:8080"),
            (":80", "0.0.0.0:80"),
            ("*:80", "0.0.0.0:80"),
            ("localhost:8080", "127.0.0.1:8080"),
        ] {
            assert_eq!(address(text), Ok(means.parse().unwrap()), "{text}");
        }
        for text in ["", "99999", "127.0.0.1", "localhost", ":x"] {
            assert!(address(text).is_err(), "{text}");
        }
    }
}
