//! Converts Unix socket addresses between the types of `std`, `socket2` and the ring.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::SocketAddr;
use std::path::Path;

use socket2::SockAddr;
use upshift_ring::Address;

pub(super) fn to_ring(address: &SocketAddr) -> io::Result<Address> {
    match (address.as_pathname(), address.as_abstract_name()) {
        (Some(path), _) => Address::unix(path),
        (None, Some(name)) => Address::unix_abstract(name),
        (None, None) => Err(unnamed()),
    }
}

pub(super) fn to_socket2(address: &SocketAddr) -> io::Result<SockAddr> {
    match (address.as_pathname(), address.as_abstract_name()) {
        (Some(path), _) => SockAddr::unix(path),
        (None, Some(name)) => {
            let mut path = vec![0];
            path.extend_from_slice(name);
            SockAddr::unix(Path::new(OsStr::from_bytes(&path)))
        }
        (None, None) => Err(unnamed()),
    }
}

pub(super) fn from_socket2(address: &SockAddr) -> io::Result<SocketAddr> {
    match (address.as_pathname(), address.as_abstract_namespace()) {
        (Some(path), _) => SocketAddr::from_pathname(path),
        (None, Some(name)) => SocketAddr::from_abstract_name(name),
        // An empty path makes an address without a name.
        (None, None) => SocketAddr::from_pathname(""),
    }
}

fn unnamed() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        "a Unix socket without a name cannot be reached by its address",
    )
}
