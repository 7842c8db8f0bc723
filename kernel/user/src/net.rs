//! Sockets: a TCP socket is a descriptor that is read and written like a pipe; a UDP socket sends
//! datagrams to ports, and receives them.

use os_abi::Error;
pub use os_abi::datagram;

pub use crate::calls::{
    accept, accept_async, connect_async, receive_from, receive_from_async, send_to, send_to_async,
};
use crate::{calls, sys};

/// Address of the machine itself.
pub const SELF: [u8; 4] = [127, 0, 0, 1];

/// Creates a socket that listens at a port; at most `backlog` connections wait to be accepted.
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

/// Opens a connection to a port of an address.
///
/// # Errors
/// [`Error::Refused`]. No memory, too many sockets or descriptors.
pub fn connect(address: [u8; 4], port: u16) -> Result<usize, Error> {
    let socket = sys::socket()? as usize;
    if let Err(error) = calls::connect(socket, address, port) {
        sys::close(socket)?;
        return Err(error);
    }
    Ok(socket)
}

/// Creates a datagram socket with a port, or with any free port if `port` is 0.
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
