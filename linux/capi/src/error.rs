//! Converts errors to negative errno values, and catches panics before they reach C code.

use std::ffi::c_int;
use std::fmt;
use std::io::{self, Error, ErrorKind};
use std::net::{SocketAddr, ToSocketAddrs};

use upshift::SpawnError;
use upshift::net::LookupError;
pub(crate) use upshift_ring::catch_panic;

/// The errno of a panic below the ABI.
pub(crate) const PANIC_CODE: c_int = -libc::ENOTRECOVERABLE;

/// The error for a host name without an address, for which the kernel has no errno.
pub const UPSHIFT_ENAME: c_int = 0x10000;

/// A host name that the resolver of the C library rejects.
#[derive(Debug)]
struct NoAddress;

impl fmt::Display for NoAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the host name cannot be resolved")
    }
}

impl std::error::Error for NoAddress {}

/// Resolves `host:port`. A host that is not a numeric address blocks the thread.
pub(crate) fn look_up(text: &str) -> io::Result<Vec<SocketAddr>> {
    match text.to_socket_addrs() {
        Ok(addresses) => Ok(addresses.collect()),
        // The resolver's errors have neither an errno of the kernel nor their own `ErrorKind`.
        Err(error) if error.raw_os_error().is_none() && error.kind() != ErrorKind::InvalidInput => {
            Err(Error::other(NoAddress))
        }
        Err(error) => Err(error),
    }
}

/// Returns the negative errno of an error.
pub(crate) fn errno(error: &Error) -> c_int {
    if let Some(code) = upshift::errno_of(error) {
        return -code;
    }
    if let Some(inner) = error.get_ref()
        && (inner.is::<LookupError>() || inner.is::<NoAddress>())
    {
        return -UPSHIFT_ENAME;
    }
    if let Some(spawn_error) = error.get_ref().and_then(|inner| inner.downcast_ref()) {
        return refusal(*spawn_error);
    }
    -match error.kind() {
        ErrorKind::NotFound => libc::ENOENT,
        ErrorKind::PermissionDenied => libc::EACCES,
        ErrorKind::AlreadyExists => libc::EEXIST,
        ErrorKind::AddrInUse => libc::EADDRINUSE,
        ErrorKind::AddrNotAvailable => libc::EADDRNOTAVAIL,
        ErrorKind::ConnectionAborted => libc::ECONNABORTED,
        ErrorKind::ConnectionRefused => libc::ECONNREFUSED,
        ErrorKind::ConnectionReset => libc::ECONNRESET,
        ErrorKind::NotConnected => libc::ENOTCONN,
        ErrorKind::BrokenPipe => libc::EPIPE,
        ErrorKind::WouldBlock => libc::EAGAIN,
        ErrorKind::InvalidInput => libc::EINVAL,
        ErrorKind::InvalidData => libc::EBADMSG,
        ErrorKind::TimedOut => libc::ETIMEDOUT,
        ErrorKind::Interrupted => libc::EINTR,
        ErrorKind::Unsupported => libc::EOPNOTSUPP,
        ErrorKind::OutOfMemory => libc::ENOMEM,
        _ => libc::EIO,
    }
}

/// Returns the negative errno of a refused spawn.
pub(crate) fn refusal(error: SpawnError) -> c_int {
    -match error {
        SpawnError::OutOfMemory => libc::ENOMEM,
        SpawnError::Closed => libc::ESHUTDOWN,
        SpawnError::NoVcpu => libc::ENXIO,
    }
}

/// Runs `body`, and converts a panic in it to an error value.
#[inline]
pub(crate) fn catch_panic_code(body: impl FnOnce() -> c_int) -> c_int {
    catch_panic(body).unwrap_or(PANIC_CODE)
}

/// Returns the error that a null pointer or an inconsistent argument leads to.
pub(crate) fn invalid() -> Error {
    ErrorKind::InvalidInput.into()
}

/// Frees a value that `Box::into_raw` returned. Does nothing for null.
///
/// # Safety
/// The pointer is null, or the caller owns the value and frees it once.
pub(crate) unsafe fn free<T>(object: *mut T) {
    if !object.is_null() {
        // SAFETY: the pointer is not null, so the caller guarantees that it owns the value, which
        // `Box::into_raw` returned, and that it frees the value once.
        catch_panic(|| drop(unsafe { Box::from_raw(object) }));
    }
}

/// Returns 0 on success, or the negative errno of the error.
pub(crate) fn code(result: Result<(), Error>) -> c_int {
    result.map_or_else(|error| errno(&error), |()| 0)
}
