//! Parses single values of the command line: levels, addresses, CPUs. `upshift_units` parses
//! durations, sizes and shares.
//!
//! Each function takes the text after a flag, and returns the value or a sentence with the
//! permitted values. The result depends only on the text, except for [`cpu`] and [`cpus`], which
//! ask the kernel for the permitted CPUs, and for addresses, whose names are resolved.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use upshift_load::machine;

/// Largest matrix that this command may send to a server, in rows.
pub(crate) const MAX_SIZE: usize = 1024;

/// An address to listen on, and the level of its connections, if given.
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

/// CPUs that this process may run on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cpus(pub(crate) Vec<usize>);

pub(crate) fn level(text: &str) -> Result<u8, String> {
    match text.parse::<upshift::Level>() {
        Ok(level) => Ok(level.get()),
        Err(error) => Err(format!("`{text}` is {error}")),
    }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let hint = "write IP:PORT, for example 127.0.0.1:7000 or [::1]:7000";
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    if let Some((_, rest)) = text.split_once("://") {
        let server = rest.split('/').next().unwrap_or_default();
        let server = if server.contains(':') {
            server.to_owned()
        } else {
            format!("{server}:80")
        };
        return Err(format!(
            "`{text}` is a URL; write --connect {server}, and the path with --path"
        ));
    }
    let name = text.rsplit_once(':').filter(|(name, port)| {
        !name.is_empty() && !name.contains(':') && port.parse::<u16>().is_ok()
    });
    let Some((name, _)) = name else {
        return Err(format!("`{text}` is not an address; {hint}"));
    };
    text.to_socket_addrs()
        .map_err(|error| format!("the name `{name}` has no address ({error}); {hint}"))?
        .next()
        .ok_or_else(|| format!("the name `{name}` has no address; {hint}"))
}

/// Parses `ADDR` or `ADDR@LEVEL`.
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

/// Parses `ADDR` or `ADDR@LABEL`; without a label the address is the label.
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

/// Parses a whole number of at least 1, with optional `_` between digits.
pub(crate) fn count(text: &str) -> Result<usize, String> {
    match text.replace('_', "").parse::<usize>() {
        Ok(n) if n > 0 => Ok(n),
        _ => Err(format!("`{text}` is not a whole number of at least 1")),
    }
}

/// Parses the rows of a matrix, 1..=[`MAX_SIZE`].
pub(crate) fn size(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(n) if (1..=MAX_SIZE).contains(&n) => Ok(n),
        _ => Err(format!(
            "`{text}` is not a matrix size; sizes run from 1 to {MAX_SIZE}"
        )),
    }
}

pub(crate) fn path(text: &str) -> Result<String, String> {
    if text.starts_with('/') && text.bytes().all(|b| b.is_ascii_graphic()) {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "`{text}` is not a path; it must start with `/` and hold no spaces"
        ))
    }
}

/// Parses requests per second, finite and above 0.
pub(crate) fn rate(text: &str) -> Result<f64, String> {
    match text.replace('_', "").parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(rate),
        _ => Err(format!(
            "`{text}` is not a rate; write requests per second, for example 20000"
        )),
    }
}

pub(crate) fn pid(text: &str) -> Result<u32, String> {
    match text.parse::<i32>() {
        Ok(pid) if pid > 0 => Ok(pid.unsigned_abs()),
        _ => Err(format!("`{text}` is not a process id")),
    }
}

/// Parses the CPU time of a spin request: at most a minute, possibly zero.
pub(crate) fn service(text: &str) -> Result<Duration, String> {
    let service = upshift_units::duration(text)?;
    if service.as_nanos() > upshift_load::spin::MAX_SERVICE.into() {
        return Err(format!(
            "`{text}` is too long; a request may take at most 60 s"
        ));
    }
    Ok(service)
}

/// Parses a CPU that this process may run on.
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

/// Parses a list of CPUs in taskset's notation, `0-3,8`, all of which this process may run on.
pub(crate) fn cpus(text: &str) -> Result<Cpus, String> {
    let listed = upshift_units::cpus(text)?;
    let checked = listed.iter().map(|number| cpu(&number.to_string()));
    checked.collect::<Result<_, _>>().map(Cpus)
}

pub(crate) fn nice(text: &str) -> Result<i32, String> {
    match text.parse() {
        Ok(nice) if (-20..=19).contains(&nice) => Ok(nice),
        _ => Err(format!(
            "`{text}` is not a nice value; nice values run from -20 to 19 (smallest share)"
        )),
    }
}

pub(crate) fn part(text: &str) -> Result<u8, String> {
    match text.parse::<u8>() {
        Ok(n) if (1..=3).contains(&n) => Ok(n),
        _ => Err(format!("there is no part `{text}`; the parts are 1 to 3")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_request_takes_a_minute_at_most() {
        assert_eq!(service("0").unwrap(), Duration::ZERO);
        assert!(service("61s").is_err());
    }

    #[test]
    fn lists_of_cpus_have_the_notation_of_taskset() {
        let allowed = machine::allowed_cpus();
        let (first, last) = (allowed[0], allowed[allowed.len() - 1]);
        assert_eq!(cpus(&format!("{first}")), Ok(Cpus(vec![first])));
        if allowed.len() == last - first + 1 {
            assert_eq!(cpus(&format!("{first}-{last}")), Ok(Cpus(allowed)));
        }
        assert!(cpus("0-4095").unwrap_err().contains("available"));
        assert!(cpus("all").unwrap_err().contains("0-3,8"));
    }

    #[test]
    fn an_invalid_address_is_named() {
        for (text, expected) in [
            ("http://127.0.0.1:80/a?b", "write --connect 127.0.0.1:80"),
            ("http://localhost/", "write --connect localhost:80"),
            (
                "upshift.invalid:80",
                "the name `upshift.invalid` has no address",
            ),
            ("localhost", "write IP:PORT"),
            ("127.0.0.1:x", "write IP:PORT"),
        ] {
            let error = endpoint(text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn an_absent_cpu_is_refused_with_the_list() {
        assert!(cpu("4095").unwrap_err().contains("available"));
    }
}
