//! TCP: sockets are descriptors, read and written like pipes.

use os_abi::Error;

use crate::asynchronous::{self, Call};
use crate::coroutine::Cid;
use crate::sys;

/// The machine itself.
pub const SELF: [u8; 4] = [127, 0, 0, 1];

/// A socket that listens at a port, for so many connections that wait to be accepted.
///
/// # Errors
/// No memory, too many sockets or descriptors, a backlog other than 1 to 16.
pub fn listen(port: u16, backlog: usize) -> Result<usize, Error> {
    let socket = sys::socket()? as usize;
    let listens = sys::bind(socket, usize::from(port)).and_then(|_| sys::listen(socket, backlog));
    if let Err(error) = listens {
        sys::close(socket)?;
        return Err(error);
    }
    Ok(socket)
}

/// Waits for a connection.
///
/// # Errors
/// [`Error::BadFile`]: it does not listen. No memory, too many sockets or descriptors.
pub fn accept(socket: usize) -> Result<usize, Error> {
    Ok(sys::accept(socket)? as usize)
}

/// A connection to a port of an address.
///
/// # Errors
/// [`Error::Refused`]. No memory, too many sockets or descriptors.
pub fn connect(address: [u8; 4], port: u16) -> Result<usize, Error> {
    let socket = sys::socket()? as usize;
    let address = u32::from_be_bytes(address) as usize;
    if let Err(error) = sys::connect(socket, address, usize::from(port)) {
        sys::close(socket)?;
        return Err(error);
    }
    Ok(socket)
}

/// Waits for a connection; its descriptor is the result. The coroutine `cid` is woken.
pub fn accept_async(socket: usize, cid: Cid) -> Call {
    asynchronous::accept(socket, cid)
}

/// Connects a socket. The coroutine `cid` is woken.
pub fn connect_async(socket: usize, address: [u8; 4], port: u16, cid: Cid) -> Call {
    asynchronous::connect(socket, address, port, cid)
}
