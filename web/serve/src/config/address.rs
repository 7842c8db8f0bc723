//! Where a server listens.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, de};

/// Where a server listens.
///
/// ```
/// use upshift_serve::Address;
///
/// let all: Address = ":80".parse()?;
/// assert_eq!(all, Address::Port(80));
/// let socket: Address = "unix:/run/web.sock,mode=660".parse()?;
/// assert_eq!(socket, Address::Unix { path: "/run/web.sock".into(), mode: Some(0o660) });
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A port of TCP.
    Ip(SocketAddr),
    /// A port of TCP on all addresses: of IPv6 and IPv4, or of IPv4 alone where there is no IPv6.
    Port(u16),
    /// A Unix socket.
    Unix {
        /// Its file, made when the server starts and removed when it ends.
        path: PathBuf,
        /// The permissions of the file: write permission is permission to connect. By default what the umask leaves.
        mode: Option<u32>,
    },
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Address {
        Address::Ip(address)
    }
}

/// `127.0.0.1:8080`, `[::1]:8080`, a port of this machine alone (`8080`), a port on all addresses
/// (`:80`, `*:80`), a name and a port (`localhost:8080`), or a Unix socket
/// (`unix:/run/web.sock`, `unix:/run/web.sock,mode=660`).
impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        match text.strip_prefix("unix:") {
            Some(socket) => unix(socket),
            None => port(text),
        }
    }
}

fn unix(text: &str) -> Result<Address, String> {
    let (path, mode) = match text.rsplit_once(",mode=") {
        Some((path, mode)) => {
            let number = u32::from_str_radix(mode, 8).ok();
            let number = number.filter(|mode| *mode <= 0o777);
            let wanted = || format!("mode={mode}: use an octal number up to 777, such as 660");
            (path, Some(number.ok_or_else(wanted)?))
        }
        None => (text, None),
    };
    if path.is_empty() {
        return Err(format!(
            "`unix:{text}`: use a path, such as unix:/run/web.sock"
        ));
    }
    Ok(Address::Unix {
        path: Path::new(path).to_owned(),
        mode,
    })
}

fn port(text: &str) -> Result<Address, String> {
    if let Ok(address) = text.parse() {
        return Ok(Address::Ip(address));
    }
    if let Ok(port) = text.parse::<u16>() {
        return Ok(Address::Ip((Ipv4Addr::LOCALHOST, port).into()));
    }
    let all = text.strip_prefix(':').or(text.strip_prefix("*:"));
    if let Some(Ok(port)) = all.map(str::parse::<u16>) {
        return Ok(Address::Port(port));
    }
    let wanted = || {
        format!("`{text}`: use an address and a port, such as 127.0.0.1:80, a port, or unix:/PATH")
    };
    let found: Vec<_> = text.to_socket_addrs().map_err(|_| wanted())?.collect();
    let four = found.iter().find(|address| address.is_ipv4());
    let address = four.or(found.first()).copied();
    address.map(Address::Ip).ok_or_else(wanted)
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Ip(address) => address.fmt(f),
            Address::Port(port) => write!(f, ":{port}"),
            Address::Unix { path, mode } => {
                write!(f, "unix:{}", path.display())?;
                mode.map_or(Ok(()), |mode| write!(f, ",mode={mode:o}"))
            }
        }
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Address, D::Error> {
        String::deserialize(from)?
            .parse()
            .map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_understood_as_they_are_said() {
        for (text, means) in [
            ("10.0.0.1:80", "10.0.0.1:80"),
            ("[::1]:80", "[::1]:80"),
            ("8080", "127.0.0.1:8080"),
            (":80", ":80"),
            ("*:80", ":80"),
            ("0.0.0.0:80", "0.0.0.0:80"),
            ("localhost:8080", "127.0.0.1:8080"),
            ("unix:/run/a.sock", "unix:/run/a.sock"),
            ("unix:a,b,mode=0600", "unix:a,b,mode=600"),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), means, "{text}");
        }
        for text in [
            "",
            "99999",
            "127.0.0.1",
            "localhost",
            ":x",
            "unix:",
            "unix:,mode=600",
            "unix:a,mode=9",
            "unix:a,mode=1777",
        ] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
