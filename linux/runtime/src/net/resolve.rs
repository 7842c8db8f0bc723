//! Resolves host names to addresses.
//!
//! The resolver is the C library's (`getaddrinfo`). Because it blocks, it runs on a thread for
//! blocking calls, at the level of the caller. An argument that already is an address, even as
//! text, needs no thread and no system call.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::blocking;
use crate::notice::errno_of;

/// An address, or a name to look up. The trait is sealed; the types that implement it are the same
/// as for [`std::net::ToSocketAddrs`].
pub trait ToSocketAddrs: sealed::Sealed {}

impl<T: sealed::Sealed + ?Sized> ToSocketAddrs for T {}

mod sealed {
    /// A parsed argument.
    #[derive(Debug)]
    pub enum Target {
        Addresses(Vec<std::net::SocketAddr>),
        Name(String, u16),
    }

    pub trait Sealed {
        fn target(&self) -> std::io::Result<Target>;
    }
}

use sealed::{Sealed, Target};

fn single_address(address: impl Into<SocketAddr>) -> io::Result<Target> {
    Ok(Target::Addresses(vec![address.into()]))
}

macro_rules! addresses {
    ($($type:ty),*) => { $(
        impl Sealed for $type {
            fn target(&self) -> io::Result<Target> {
                single_address(*self)
            }
        }
    )* };
}

addresses!(
    SocketAddr,
    SocketAddrV4,
    SocketAddrV6,
    (IpAddr, u16),
    (Ipv4Addr, u16),
    (Ipv6Addr, u16)
);

impl Sealed for [SocketAddr] {
    fn target(&self) -> io::Result<Target> {
        Ok(Target::Addresses(self.to_vec()))
    }
}

impl<const N: usize> Sealed for [SocketAddr; N] {
    fn target(&self) -> io::Result<Target> {
        self.as_slice().target()
    }
}

impl Sealed for Vec<SocketAddr> {
    fn target(&self) -> io::Result<Target> {
        self.as_slice().target()
    }
}

impl Sealed for (&str, u16) {
    fn target(&self) -> io::Result<Target> {
        match self.0.parse::<IpAddr>() {
            Ok(address) => single_address((address, self.1)),
            Err(_) => Ok(Target::Name(self.0.to_owned(), self.1)),
        }
    }
}

impl Sealed for (String, u16) {
    fn target(&self) -> io::Result<Target> {
        (self.0.as_str(), self.1).target()
    }
}

impl Sealed for str {
    fn target(&self) -> io::Result<Target> {
        if let Ok(address) = self.parse::<SocketAddr>() {
            return single_address(address);
        }
        match self
            .rsplit_once(':')
            .map(|(name, port)| (name, port.parse()))
        {
            Some((name, Ok(port))) if !name.is_empty() => Ok(Target::Name(name.to_owned(), port)),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "{self:?} is not an address: write HOST:PORT, as in \"localhost:80\" or \"[::1]:80\""
                ),
            )),
        }
    }
}

impl Sealed for String {
    fn target(&self) -> io::Result<Target> {
        self.as_str().target()
    }
}

impl<T: Sealed + ?Sized> Sealed for &T {
    fn target(&self) -> io::Result<Target> {
        (**self).target()
    }
}

pub(crate) async fn resolve(addresses: impl ToSocketAddrs) -> io::Result<Vec<SocketAddr>> {
    let target = addresses.target()?;
    drop(addresses);
    match target {
        Target::Addresses(addresses) => Ok(addresses),
        Target::Name(name, port) => look_up(name, port).await,
    }
}

async fn look_up(name: String, port: u16) -> io::Result<Vec<SocketAddr>> {
    let host = name.clone();
    blocking::run(move || {
        std::net::ToSocketAddrs::to_socket_addrs(&(host.as_str(), port)).map(Vec::from_iter)
    })
    .await
    .map_err(|error| match errno_of(&error) {
        // The resolver did not run, because no thread could be started.
        Some(_) => error,
        None => io::Error::new(error.kind(), LookupError { name, error }),
    })
}

/// The error of a lookup: the resolver does not know the host name, or did not answer.
///
/// It is the inner error of the [`io::Error`] of [`lookup_host`], and of the functions that bind or
/// connect to a name.
///
/// ```
/// use upshift::net::{LookupError, lookup_host};
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let error = lookup_host("no such host:80").await.err().unwrap();
/// let inner = error.get_ref().unwrap().downcast_ref::<LookupError>().unwrap();
/// assert_eq!(inner.name(), "no such host");
/// # });
/// ```
#[derive(Debug)]
pub struct LookupError {
    name: String,
    error: io::Error,
}

impl LookupError {
    /// Returns the name that was looked up.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for LookupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot look up {:?}: {}", self.name, self.error)
    }
}

impl std::error::Error for LookupError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Looks up the addresses of a host.
///
/// # Cancellation safety
/// The future may be dropped at any time; the lookup then still runs to its end on its thread, and
/// the result is dropped.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let addresses: Vec<_> = upshift::net::lookup_host("127.0.0.1:80").await?.collect();
/// assert_eq!(addresses, ["127.0.0.1:80".parse().unwrap()]);
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
///
/// # Errors
/// An error that contains a [`LookupError`] for an unknown name; `InvalidInput` for text that is
/// not an address; also fails outside a runtime.
pub async fn lookup_host(
    host: impl ToSocketAddrs,
) -> io::Result<impl Iterator<Item = SocketAddr> + Send> {
    Ok(resolve(host).await?.into_iter())
}
