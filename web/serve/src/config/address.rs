//! Addresses on which a server listens.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::de::{self, IntoDeserializer};
use serde::{Deserialize, Deserializer};

/// An address on which a server listens.
///
/// ```
/// use upshift_serve::{Address, BindTo};
///
/// let all: Address = ":80,plain".parse()?;
/// assert_eq!((all.bind_to, all.plain), (BindTo::Port(80), true));
/// let socket: Address = "unix:/run/web.sock,mode=660".parse()?;
/// let path = "/run/web.sock".into();
/// assert_eq!(socket.bind_to, BindTo::Unix { path, mode: Some(0o660) });
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The port or the socket.
    pub bind_to: BindTo,
    /// Set for an address with HTTP without TLS, even if there is a certificate.
    pub plain: bool,
}

/// The port or the socket of an [`Address`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindTo {
    /// A TCP address and port.
    Ip(SocketAddr),
    /// A TCP port on all addresses of IPv6 and IPv4, or of IPv4 alone if there is no IPv6.
    Port(u16),
    /// A Unix socket.
    Unix {
        /// Path of the socket's file, which is created when the server starts and removed when the
        /// server ends.
        path: PathBuf,
        /// Permissions of the file. Write permission is permission to connect. By default the umask
        /// decides.
        mode: Option<u32>,
    },
}

impl From<BindTo> for Address {
    fn from(bind_to: BindTo) -> Address {
        Address {
            bind_to,
            plain: false,
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Address {
        BindTo::Ip(address).into()
    }
}

/// Accepts `127.0.0.1:8080`, `[::1]:8080`, a port that only this machine can reach (`8080`), a port
/// on all addresses (`:80`, `*:80`), a name and a port (`localhost:8080`), or a Unix socket
/// (`unix:/run/web.sock`, `unix:/run/web.sock,mode=660`). Each of them may end with `,plain`, for
/// HTTP without TLS.
impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        let (text, plain) = match text.strip_suffix(",plain") {
            Some(text) => (text, true),
            None => (text, false),
        };
        let bind_to = match text.strip_prefix("unix:") {
            Some(socket) => parse_unix(socket)?,
            None => parse_tcp(text)?,
        };
        Ok(Address { bind_to, plain })
    }
}

fn parse_unix(text: &str) -> Result<BindTo, String> {
    let (path, mode) = match text.rsplit_once(",mode=") {
        Some((path, mode)) => {
            let number = u32::from_str_radix(mode, 8).ok();
            let number = number.filter(|mode| *mode <= 0o777);
            let advice = || format!("mode={mode}: use an octal number up to 777, such as 660");
            (path, Some(number.ok_or_else(advice)?))
        }
        None => (text, None),
    };
    if path.is_empty() {
        return Err(format!(
            "`unix:{text}`: use a path, such as unix:/run/web.sock"
        ));
    }
    Ok(BindTo::Unix {
        path: Path::new(path).to_owned(),
        mode,
    })
}

fn parse_tcp(text: &str) -> Result<BindTo, String> {
    if let Ok(address) = text.parse() {
        return Ok(BindTo::Ip(address));
    }
    if let Ok(port) = text.parse::<u16>() {
        return Ok(BindTo::Ip((Ipv4Addr::LOCALHOST, port).into()));
    }
    let all = text.strip_prefix(':').or(text.strip_prefix("*:"));
    if let Some(Ok(port)) = all.map(str::parse::<u16>) {
        return Ok(BindTo::Port(port));
    }
    let advice =
        "use an address and a port, such as 127.0.0.1:80, a port, or unix:/PATH".to_owned();
    if text.contains("://") {
        return Err(format!("`{text}` is a URL: {advice}"));
    }
    let name = text.rsplit_once(':').filter(|(name, port)| {
        !name.is_empty() && !name.contains([':', ',']) && port.parse::<u16>().is_ok()
    });
    let Some((name, _)) = name else {
        return Err(format!("`{text}`: {advice}"));
    };
    let addresses: Vec<_> = text
        .to_socket_addrs()
        .map_err(|error| format!("`{name}` has no address ({error}): {advice}"))?
        .collect();
    let v4 = addresses.iter().find(|address| address.is_ipv4());
    let address = v4.or(addresses.first()).copied();
    address
        .map(BindTo::Ip)
        .ok_or_else(|| format!("`{name}` has no address: {advice}"))
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.bind_to {
            BindTo::Ip(address) => address.fmt(f)?,
            BindTo::Port(port) => write!(f, ":{port}")?,
            BindTo::Unix { path, mode } => {
                write!(f, "unix:{}", path.display())?;
                mode.map_or(Ok(()), |mode| write!(f, ",mode={mode:o}"))?;
            }
        }
        f.write_str(if self.plain { ",plain" } else { "" })
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Address, D::Error> {
        struct Visit;

        impl de::Visitor<'_> for Visit {
            type Value = Address;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an address in quotes")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Address, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, port: i64) -> Result<Address, E> {
                Err(E::custom(format!(
                    "write \"{port}\" for this machine alone, or \":{port}\" for all addresses"
                )))
            }
        }

        from.deserialize_any(Visit)
    }
}

pub(super) fn read_list<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Address>, D::Error> {
    struct Visit;

    impl<'de> de::Visitor<'de> for Visit {
        type Value = Vec<Address>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an address in quotes, or a list of addresses")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Vec<Address>, E> {
            Address::deserialize(text.into_deserializer()).map(|address| vec![address])
        }

        fn visit_i64<E: de::Error>(self, port: i64) -> Result<Vec<Address>, E> {
            Address::deserialize(port.into_deserializer()).map(|address| vec![address])
        }

        fn visit_seq<A: de::SeqAccess<'de>>(self, mut all: A) -> Result<Vec<Address>, A::Error> {
            let mut addresses = Vec::new();
            while let Some(address) = all.next_element()? {
                addresses.push(address);
            }
            Ok(addresses)
        }
    }

    from.deserialize_any(Visit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_addresses_are_parsed_and_formatted_and_others_refused() {
        for (text, expected) in [
            ("10.0.0.1:80", "10.0.0.1:80"),
            ("[::1]:80", "[::1]:80"),
            ("8080", "127.0.0.1:8080"),
            (":80", ":80"),
            ("*:80", ":80"),
            ("0.0.0.0:80", "0.0.0.0:80"),
            ("localhost:8080", "127.0.0.1:8080"),
            ("unix:/run/a.sock", "unix:/run/a.sock"),
            ("unix:a,b,mode=0600", "unix:a,b,mode=600"),
            (":80,plain", ":80,plain"),
            ("unix:a,mode=600,plain", "unix:a,mode=600,plain"),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), expected, "{text}");
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
            ":80,tls",
            "http://127.0.0.1:80",
        ] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
