//! Parsers for single command-line values: levels, addresses, durations, CPUs.
//!
//! Each takes the text after a flag and returns the value or a sentence that says what is allowed.
//! Pure but for [`cpu`], which asks the kernel which CPUs this process may use.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use crate::machine;

/// Largest matrix the protocol of the servers accepts from this command.
pub(crate) const MAX_SIZE: usize = 1024;

/// An address to listen on and the level of its connections, if given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listen {
    pub(crate) address: SocketAddr,
    pub(crate) level: Option<u8>,
}

/// An address to connect to and its name in the result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) address: SocketAddr,
    pub(crate) label: String,
}

/// A priority level, 0..=63.
pub(crate) fn level(text: &str) -> Result<u8, String> {
    match text.parse::<u8>() {
        Ok(level) if level <= 63 => Ok(level),
        _ => Err(format!(
            "`{text}` is not a level; levels run from 0 (most urgent) to 63 (least)"
        )),
    }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let hint = "write IP:PORT, for example 127.0.0.1:7000 or [::1]:7000";
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    text.to_socket_addrs()
        .map_err(|_| format!("`{text}` is not an address; {hint}"))?
        .next()
        .ok_or_else(|| format!("`{text}` has no address; {hint}"))
}

/// `ADDR` or `ADDR@LEVEL`.
pub(crate) fn listen(text: &str) -> Result<Listen, String> {
    let (addr, level_text) = match text.rsplit_once('@') {
        Some((addr, level_text)) => (addr, Some(level_text)),
        None => (text, None),
    };
    Ok(Listen {
        address: address(addr)?,
        level: level_text.map(level).transpose()?,
    })
}

/// `ADDR` or `ADDR@LABEL`; without a label the address is the label.
pub(crate) fn endpoint(text: &str) -> Result<Endpoint, String> {
    match text.split_once('@') {
        Some((_, "")) => Err(format!(
            "`{text}` has an empty label; write ADDR@LABEL or ADDR"
        )),
        Some((addr, label)) => Ok(Endpoint {
            address: address(addr)?,
            label: label.to_owned(),
        }),
        None => Ok(Endpoint {
            address: address(text)?,
            label: text.to_owned(),
        }),
    }
}

/// A whole number of at least 1; `1_000_000` is understood.
pub(crate) fn count(text: &str) -> Result<usize, String> {
    match text.replace('_', "").parse::<usize>() {
        Ok(n) if n > 0 => Ok(n),
        _ => Err(format!("`{text}` is not a whole number of at least 1")),
    }
}

/// Rows of a matrix, 1..=[`MAX_SIZE`].
pub(crate) fn size(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(n) if (1..=MAX_SIZE).contains(&n) => Ok(n),
        _ => Err(format!(
            "`{text}` is not a matrix size; sizes run from 1 to {MAX_SIZE}"
        )),
    }
}

/// An HTTP path.
pub(crate) fn path(text: &str) -> Result<String, String> {
    if text.starts_with('/') && text.bytes().all(|b| b.is_ascii_graphic()) {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "`{text}` is not a path; it must start with `/` and hold no spaces"
        ))
    }
}

/// Requests per second, finite and above 0.
pub(crate) fn rate(text: &str) -> Result<f64, String> {
    match text.replace('_', "").parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(rate),
        _ => Err(format!(
            "`{text}` is not a rate; write requests per second, for example 20000"
        )),
    }
}

/// A process id.
pub(crate) fn pid(text: &str) -> Result<u32, String> {
    match text.parse::<i32>() {
        Ok(pid) if pid > 0 => Ok(pid.unsigned_abs()),
        _ => Err(format!("`{text}` is not a process id")),
    }
}

/// A duration above zero: a number with `ns`, `us`, `ms` or `s`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    match duration_or_zero(text)? {
        Duration::ZERO => Err(format!(
            "`{text}` is no time at all; write for example 100ms or 5s"
        )),
        duration => Ok(duration),
    }
}

/// Some thirty years, which added to any clock's time is a time.
const LONGEST: Duration = Duration::from_secs(1_000_000_000);

/// A duration: a number with `ns`, `us`, `ms` or `s`, or plain `0`.
pub(crate) fn duration_or_zero(text: &str) -> Result<Duration, String> {
    let hint = || {
        format!(
            "`{text}` is not a duration; write a number and ns, us, ms or s, for example 100ms or 5s"
        )
    };
    let unit_at = text
        .find(|c: char| c.is_ascii_alphabetic())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let seconds = match unit {
        "ns" => 1e-9,
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "" if number == "0" => 1.0,
        _ => return Err(hint()),
    };
    let number: f64 = number.trim().parse().map_err(|_| hint())?;
    match Duration::try_from_secs_f64(number * seconds) {
        Ok(duration) if duration > LONGEST => {
            Err(format!("`{text}` is too long; 1000000000s is the most"))
        }
        result => result.map_err(|_| hint()),
    }
}

/// CPU time of a spin request: at most a minute, possibly none.
pub(crate) fn service(text: &str) -> Result<Duration, String> {
    let service = duration_or_zero(text)?;
    if service.as_nanos() > upshift_load::spin::MAX_SERVICE.into() {
        return Err(format!("`{text}` is too long; a request may take 60 s"));
    }
    Ok(service)
}

/// A share of 0 to 1: `0.005`, or `0.5%`.
pub(crate) fn share(text: &str) -> Result<f64, String> {
    let share = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().map(|p| p / 100.0),
        None => text.parse(),
    };
    match share {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err(format!(
            "`{text}` is not a share; write for example 0.5% or 0.005"
        )),
    }
}

/// A CPU this process may run on.
pub(crate) fn cpu(text: &str) -> Result<usize, String> {
    let cpus = machine::allowed_cpus();
    let list = || {
        cpus.iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", ")
    };
    match text.parse::<usize>() {
        Ok(cpu) if cpus.contains(&cpu) => Ok(cpu),
        Ok(cpu) => Err(format!(
            "CPU {cpu} is not available to this process; available: {}",
            list()
        )),
        Err(_) => Err(format!(
            "`{text}` is not a CPU number; available: {}",
            list()
        )),
    }
}

/// A nice value, -20 to 19.
pub(crate) fn nice(text: &str) -> Result<i32, String> {
    match text.parse() {
        Ok(nice) if (-20..=19).contains(&nice) => Ok(nice),
        _ => Err(format!(
            "`{text}` is not a nice value; they run from -20 to 19 (least)"
        )),
    }
}

/// The number of an experiment of the demo.
pub(crate) fn experiment(text: &str) -> Result<u8, String> {
    match text.parse::<u8>() {
        Ok(n) if (1..=6).contains(&n) => Ok(n),
        _ => Err(format!(
            "there is no experiment `{text}`; the experiments are 1 to 6"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_take_units() {
        assert_eq!(duration("100ms").unwrap(), Duration::from_millis(100));
        assert_eq!(duration("1.5s").unwrap(), Duration::from_millis(1500));
        assert_eq!(duration("20us").unwrap(), Duration::from_micros(20));
        assert_eq!(duration_or_zero("0").unwrap(), Duration::ZERO);
        for bad in ["", "5", "5min", "-1s", "s", "0s", "nans", "1e400s"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
        assert!(duration("1000000000s").is_ok());
        let error = duration("10000000000000000000s").unwrap_err();
        assert!(error.contains("too long"), "{error}");
    }

    #[test]
    fn addresses_carry_levels_and_labels() {
        assert_eq!(listen("127.0.0.1:7@63").unwrap().level, Some(63));
        assert_eq!(listen("[::1]:7").unwrap().address.port(), 7);
        assert!(listen("7000").unwrap_err().contains("127.0.0.1:7000"));
        assert!(listen("127.0.0.1:7@").is_err());
        assert_eq!(endpoint("127.0.0.1:7@a b").unwrap().label, "a b");
        assert_eq!(endpoint("127.0.0.1:7").unwrap().label, "127.0.0.1:7");
        assert!(endpoint("127.0.0.1:7@").is_err());
    }

    #[test]
    fn counts_and_sizes_have_bounds() {
        assert_eq!(count("1_000_000").unwrap(), 1_000_000);
        assert!(count("0").is_err());
        assert!(size("0").is_err());
        assert!(size("1025").unwrap_err().contains("1024"));
        assert!(rate("inf").is_err());
        assert!(path("hello").is_err());
        assert!(pid("0").is_err());
    }

    #[test]
    fn shares_are_percent_or_fractions() {
        assert_eq!(share("50%").unwrap(), 0.5);
        assert_eq!(share("0.25").unwrap(), 0.25);
        for bad in ["", "%", "-1%", "1.1", "nan", "5 percent"] {
            assert!(share(bad).is_err(), "{bad}");
        }
        assert_eq!(service("0").unwrap(), Duration::ZERO);
        assert!(service("61s").is_err());
    }

    #[test]
    fn an_absent_cpu_is_refused_with_the_list() {
        assert!(cpu("4095").unwrap_err().contains("available"));
    }
}
