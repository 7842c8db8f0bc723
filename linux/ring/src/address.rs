//! Socket addresses in the kernel's layout, in owned storage of 128 bytes.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::{fmt, io, mem};

/// A socket address: IPv4, IPv6 or Unix.
///
/// ```
/// # use upshift_ring::Address;
/// let ip: std::net::SocketAddr = "[::1]:80".parse()?;
/// assert_eq!(Address::from(ip).ip(), Some(ip));
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Copy)]
pub struct Address {
    storage: libc::sockaddr_storage,
    length: libc::socklen_t,
}

impl Address {
    pub(crate) fn unset() -> Self {
        Self {
            // SAFETY: all zeroes is a valid value, the one of family AF_UNSPEC.
            storage: unsafe { mem::zeroed() },
            length: size_of::<libc::sockaddr_storage>() as libc::socklen_t,
        }
    }

    fn from_raw<T>(value: T) -> Self {
        const { assert!(size_of::<T>() <= size_of::<libc::sockaddr_storage>()) };
        let mut address = Self::unset();
        // SAFETY: the storage is large enough (checked above) and aligned for every address family.
        unsafe { (&raw mut address.storage).cast::<T>().write(value) };
        address.length = size_of::<T>() as libc::socklen_t;
        address
    }

    /// Returns the address of a Unix socket in the file system.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the path is empty, has 108 bytes or more, or a NUL byte.
    pub fn unix(path: &Path) -> io::Result<Self> {
        // SAFETY: all zeroes is a valid value.
        let mut raw: libc::sockaddr_un = unsafe { mem::zeroed() };
        let bytes = path.as_os_str().as_bytes();
        // An empty path would be a name in the abstract namespace.
        if bytes.is_empty() || bytes.len() >= raw.sun_path.len() || bytes.contains(&0) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the path of a Unix socket must have 1 to 107 bytes and no NUL",
            ));
        }
        raw.sun_family = libc::AF_UNIX as libc::sa_family_t;
        for (to, from) in raw.sun_path.iter_mut().zip(bytes) {
            *to = *from as libc::c_char;
        }
        let mut address = Self::from_raw(raw);
        let head = mem::offset_of!(libc::sockaddr_un, sun_path);
        address.length = (head + bytes.len() + 1) as libc::socklen_t;
        Ok(address)
    }

    /// Returns the address of a Unix socket in the abstract namespace. Such a socket needs no file,
    /// and its name vanishes with the socket.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the name has 108 bytes or more.
    pub fn unix_abstract(name: &[u8]) -> io::Result<Self> {
        // SAFETY: all zeroes is a valid value.
        let mut raw: libc::sockaddr_un = unsafe { mem::zeroed() };
        if name.len() >= raw.sun_path.len() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the abstract name of a Unix socket must have fewer than 108 bytes",
            ));
        }
        raw.sun_family = libc::AF_UNIX as libc::sa_family_t;
        for (to, from) in raw.sun_path[1..].iter_mut().zip(name) {
            *to = *from as libc::c_char;
        }
        let mut address = Self::from_raw(raw);
        let head = mem::offset_of!(libc::sockaddr_un, sun_path);
        address.length = (head + 1 + name.len()) as libc::socklen_t;
        Ok(address)
    }

    /// Copies an address from the kernel's layout. Returns `None` if `bytes` is longer than any
    /// address.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut address = Self::unset();
        if bytes.len() > size_of_val(&address.storage) {
            return None;
        }
        // SAFETY: the storage has room for `bytes` (just checked) and does not overlap them; every
        // byte pattern is a valid address.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                (&raw mut address.storage).cast(),
                bytes.len(),
            );
        }
        address.length = bytes.len() as libc::socklen_t;
        Some(address)
    }

    /// Returns the Internet address, or `None` for other families.
    pub fn ip(&self) -> Option<SocketAddr> {
        let base = &raw const self.storage;
        match i32::from(self.storage.ss_family) {
            // The bytes after a short address are zeroes.
            libc::AF_INET => {
                // SAFETY: the storage is initialised, and large enough and aligned for a
                // `sockaddr_in`.
                let raw = unsafe { base.cast::<libc::sockaddr_in>().read() };
                let ip = Ipv4Addr::from(u32::from_be(raw.sin_addr.s_addr));
                Some(SocketAddrV4::new(ip, u16::from_be(raw.sin_port)).into())
            }
            libc::AF_INET6 => {
                // SAFETY: as above, for `sockaddr_in6`.
                let raw = unsafe { base.cast::<libc::sockaddr_in6>().read() };
                let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
                let port = u16::from_be(raw.sin6_port);
                Some(SocketAddrV6::new(ip, port, raw.sin6_flowinfo, raw.sin6_scope_id).into())
            }
            _ => None,
        }
    }

    /// Returns the address family: `AF_INET`, `AF_INET6`, `AF_UNIX`, …
    pub fn family(&self) -> i32 {
        i32::from(self.storage.ss_family)
    }

    /// Returns a pointer for system calls, valid for [`len`](Self::len) bytes.
    pub fn as_ptr(&self) -> *const libc::sockaddr {
        (&raw const self.storage).cast()
    }

    /// Returns the number of bytes in use.
    #[expect(clippy::len_without_is_empty, reason = "an address is never empty")]
    pub fn len(&self) -> libc::socklen_t {
        self.length
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        match address {
            SocketAddr::V4(v4) => Self::from_raw(libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from(*v4.ip()).to_be(),
                },
                sin_zero: [0; 8],
            }),
            SocketAddr::V6(v6) => Self::from_raw(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            }),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ip() {
            Some(ip) => ip.fmt(f),
            None => write!(f, "Address(family {})", self.family()),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn internet_addresses_survive_conversion_in_both_directions() {
        for text in ["127.0.0.1:80", "[::1]:443", "[fe80::1%3]:9"] {
            let ip: SocketAddr = text.parse().unwrap();
            assert_eq!(Address::from(ip).ip(), Some(ip), "{text}");
        }
    }

    #[test]
    fn an_address_is_restored_from_its_bytes() {
        let address = Address::from("[2001:db8::1]:8".parse::<SocketAddr>().unwrap());
        // SAFETY: `len` bytes are initialised.
        let bytes = unsafe {
            std::slice::from_raw_parts(address.as_ptr().cast::<u8>(), address.len() as usize)
        };
        assert_eq!(Address::from_bytes(bytes).unwrap().ip(), address.ip());
        assert!(Address::from_bytes(&[0; 129]).is_none());
        assert!(Address::from_bytes(&[]).unwrap().ip().is_none());
    }

    #[test]
    fn an_abstract_name_that_is_too_long_is_an_error() {
        assert_eq!(Address::unix_abstract(b"x").unwrap().len(), 4);
        assert!(Address::unix_abstract(&[b'x'; 107]).is_ok());
        assert!(Address::unix_abstract(&[b'x'; 108]).is_err());
    }

    #[test]
    fn a_unix_path_that_is_too_long_is_an_error() {
        assert!(Address::unix(Path::new("/tmp/x")).is_ok());
        assert!(Address::unix(Path::new("")).is_err());
        assert!(Address::unix(Path::new(&"x".repeat(108))).is_err());
    }
}
