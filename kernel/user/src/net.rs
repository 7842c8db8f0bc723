//! TCP: sockets are descriptors, read and written like pipes. UDP: datagrams, sent to and received
//! from ports.

use alloc::vec::Vec;

use os_abi::Error;
pub use os_abi::datagram;

use crate::asynchronous::{self, Call, Read};
use crate::coroutine::Cid;
use crate::sys;

/// The machine itself.
pub const SELF: [u8; 4] = [127, 0, 0, 1];

/// A socket that listens at a port, for so many connections that wait to be accepted.
///
/// # Errors
/// No memory, too many sockets or descriptors, a backlog other than 1 to 128; [`Error::InUse`].
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

/// A socket for datagrams with a port, 0: any.
///
/// # Errors
/// No memory, too many sockets or descriptors, [`Error::InUse`].
pub fn datagrams(port: u16) -> Result<usize, Error> {
    let socket = sys::datagram_socket()? as usize;
    if let Err(error) = sys::bind(socket, usize::from(port)) {
        sys::close(socket)?;
        return Err(error);
    }
    Ok(socket)
}

/// Sends a datagram to a port of an address.
///
/// # Errors
/// [`Error::BadArgument`]: more than [`datagram::MOST`] bytes, or no host can have the address.
pub fn send_to(socket: usize, bytes: &[u8], to: ([u8; 4], u16)) -> Result<usize, Error> {
    let (address, port) = (u32::from_be_bytes(to.0) as usize, usize::from(to.1));
    let start = bytes.as_ptr() as usize;
    let count = sys::send_to(socket, start, bytes.len(), address, port)?;
    Ok(count as usize)
}

/// The same; the coroutine `cid` is woken.
pub fn send_to_async(socket: usize, bytes: Vec<u8>, to: ([u8; 4], u16), cid: Cid) -> Read {
    asynchronous::send_to(socket, bytes, to, cid)
}

/// Waits for a datagram: how many bytes of the buffer hold it, and before it where it comes
/// from ([`datagram::parse`]).
///
/// # Errors
/// [`Error::BadArgument`]: there is no room for where it comes from.
pub fn receive_from(socket: usize, buffer: &mut [u8]) -> Result<usize, Error> {
    let start = buffer.as_mut_ptr() as usize;
    let count = sys::receive_from(socket, start, buffer.len())?;
    Ok(count as usize)
}

/// The same; the coroutine `cid` is woken.
pub fn receive_from_async(socket: usize, buffer: Vec<u8>, cid: Cid) -> Read {
    asynchronous::receive_from(socket, buffer, cid)
}
