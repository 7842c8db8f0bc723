//! Parses durations, sizes, shares and CPU lists as they are written on command lines, in
//! configuration files, and in `/sys`.
//!
//! Each function takes the whole text and returns the value, or a sentence that names the error and
//! the right form. Spaces around the text and before a unit are allowed. Only errors and lists
//! allocate memory. The feature `socket-file` adds the files of Unix sockets.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

#[cfg(all(feature = "socket-file", target_os = "linux"))]
#[cfg_attr(docsrs, doc(cfg(feature = "socket-file")))]
pub mod socket_file;

use std::ops::RangeInclusive;
use std::time::Duration;

/// Longest duration, about thirty years, so that its sum with the time of any clock is a valid
/// time.
const MAX_DURATION: Duration = Duration::from_secs(1_000_000_000);

/// Largest CPU number: far more than a kernel can have, few enough for a list.
const MAX_CPU: usize = 65_535;

/// Reads a duration: a number and `ns`, `us`, `ms`, `s`, `min` (or `m`) or `h`; `0` needs no unit.
/// At most 1,000,000,000 s.
///
/// ```
/// use std::time::Duration;
///
/// assert_eq!(upshift_units::duration("2.5ms"), Ok(Duration::from_micros(2500)));
/// assert!(upshift_units::duration("5").is_err());
/// ```
///
/// # Errors
/// The message says what is wrong with the text.
pub fn duration(text: &str) -> Result<Duration, String> {
    let hint = || {
        format!(
            "`{text}` is not a duration: write a number and ns, us, ms, s, min or h, for example 100ms or 5s"
        )
    };
    let (number, unit) = split(text).ok_or_else(hint)?;
    let unit_ns = match unit {
        "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "m" | "min" => 60e9,
        "h" => 3600e9,
        "" if number == 0.0 => 0.0,
        _ => return Err(hint()),
    };
    let ns = (number * unit_ns).round();
    if ns > MAX_DURATION.as_nanos() as f64 {
        return Err(format!("`{text}` is too long: at most 1000000000s"));
    }
    Ok(Duration::from_nanos(ns as u64))
}

/// Reads a [`duration`] of at least 1 ns.
///
/// # Errors
/// The message says what is wrong with the text.
pub fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err(format!(
            "`{text}` is zero: write a longer duration, for example 100ms or 5s"
        )),
        duration => Ok(duration),
    }
}

/// Reads a size in bytes: `4096`, `16k` or `1MiB`; k, M and G are powers of 1024.
///
/// ```
/// assert_eq!(upshift_units::size("16k"), Ok(16_384));
/// ```
///
/// # Errors
/// The message says what is wrong with the text.
pub fn size(text: &str) -> Result<u64, String> {
    let hint =
        || format!("`{text}` is not a size: write a number of bytes, for example 4096, 16k or 1M");
    let (number, unit) = split(text).ok_or_else(hint)?;
    let factor = match unit.trim_end_matches("iB").trim_end_matches('B') {
        "" => 1.0,
        "k" | "K" => 1024.0,
        "m" | "M" => 1024.0 * 1024.0,
        "g" | "G" => 1024.0 * 1024.0 * 1024.0,
        _ => return Err(hint()),
    };
    Ok((number * factor) as u64)
}

/// Reads a share of 0 to 1: `0.005` or `0.5%`.
///
/// ```
/// assert_eq!(upshift_units::share("50%"), Ok(0.5));
/// ```
///
/// # Errors
/// The message says what is wrong with the text.
pub fn share(text: &str) -> Result<f64, String> {
    let share = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().map(|percent| percent / 100.0),
        None => text.parse(),
    };
    match share {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err(format!(
            "`{text}` is not a share: write for example 0.5% or 0.005"
        )),
    }
}

/// Reads a list of CPUs as the kernel writes it, `0-3,8`, in the order of the list.
///
/// ```
/// assert_eq!(upshift_units::cpus("0-2,8\n"), Ok(vec![0, 1, 2, 8]));
/// ```
///
/// # Errors
/// The message says what is wrong with the text.
pub fn cpus(text: &str) -> Result<Vec<usize>, String> {
    let ranges: Option<Vec<_>> = text.trim().split(',').map(range).collect();
    match ranges {
        Some(ranges) => Ok(ranges.into_iter().flatten().collect()),
        None => Err(format!(
            "`{}` is not a list of CPUs: write for example 0-3,8",
            text.trim()
        )),
    }
}

/// Reads `3` or `0-3`.
fn range(text: &str) -> Option<RangeInclusive<usize>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last && last <= MAX_CPU).then_some(first..=last)
}

fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    Some((text[..end].parse().ok()?, text[end..].trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        for (text, ns) in [
            ("0", 0),
            ("0ms", 0),
            ("7ns", 7),
            ("20us", 20_000),
            ("250µs", 250_000),
            ("0.2ms", 200_000),
            ("100ms", 100_000_000),
            ("1.5 s", 1_500_000_000),
            (" 5min ", 300_000_000_000),
            ("2m", 120_000_000_000),
            ("1h", 3_600_000_000_000),
            ("1000000000s", 1_000_000_000_000_000_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_nanos(ns)), "{text}");
        }
        for bad in [
            "",
            "5",
            "s",
            "-1s",
            "nans",
            "1e400s",
            "1.2.3s",
            "5 parsecs",
            "1h 5m",
        ] {
            assert!(duration(bad).is_err(), "{bad}");
        }
        let error = duration("10000000000000000000s").unwrap_err();
        assert!(error.contains("too long"), "{error}");
        assert!(positive_duration("0s").is_err() && positive_duration("0.1ns").is_err());
    }

    #[test]
    fn sizes_are_powers_of_1024() {
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(size("16k"), Ok(16_384));
        assert_eq!(size("1MiB"), Ok(1 << 20));
        assert_eq!(size("1.5 GB"), Ok(3 << 29));
        for bad in ["", "k", "-1", "12 bits"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn shares_are_percent_or_fractions() {
        assert_eq!(share("50%"), Ok(0.5));
        assert_eq!(share("0.25"), Ok(0.25));
        for bad in ["", "%", "-1%", "1.1", "nan", "5 percent"] {
            assert!(share(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lists_of_cpus_are_numbers_and_ranges() {
        assert_eq!(cpus("0-3,8,10-11\n"), Ok(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(cpus("0"), Ok(vec![0]));
        for bad in ["", "nonsense", "0,", "3-1", "0-", "0-99999999999"] {
            assert!(cpus(bad).is_err(), "{bad}");
        }
    }
}
