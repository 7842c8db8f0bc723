//! Defines the clients' protocol, which consists of the frames of [`upshift_load::matrix`], with a
//! meaning for one more byte.
//!
//! The upper eight bits of a request's length contain its level, 0 to 7; in a reply they contain
//! its status. A reply other than [`OK`] contains a text instead of a matrix. Clients of the
//! original protocol are served at level 0.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};

use upshift_load::matrix::{HEADER, frame};

/// Status of a reply whose body is the product.
pub const OK: u8 = 0;
/// Status of a reply after a rank has died. The service ends.
pub const UNAVAILABLE: u8 = 1;
/// Status of a reply to an invalid request. The connection ends.
pub const REFUSED: u8 = 2;

/// Number of levels of requests.
pub const LEVELS: u8 = 8;

/// Returns a header from a length and the byte above the length.
#[must_use]
pub fn header(length: usize, upper_byte: u8) -> [u8; HEADER] {
    (length as u32 & 0x00ff_ffff | u32::from(upper_byte) << 24).to_le_bytes()
}

/// Splits a header into the length and the byte above it.
#[must_use]
pub fn parts(header: [u8; HEADER]) -> (u32, u8) {
    let word = u32::from_le_bytes(header);
    (word & 0x00ff_ffff, (word >> 24) as u8)
}

/// A reply of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The product, in the bytes of the protocol.
    Product(Vec<u8>),
    /// The service ends; carries the reason.
    Unavailable(String),
    /// The request was invalid; carries the reason.
    Refused(String),
}

/// A blocking connection, for tests and measurements.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
}

impl Client {
    /// Connects to a server.
    ///
    /// # Errors
    /// Returns the errors of the operating system.
    pub fn connect(address: impl ToSocketAddrs) -> io::Result<Client> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Client { stream })
    }

    /// Requests the square of the matrix of order `n` that `seed` generates.
    ///
    /// # Errors
    /// Returns the errors of the operating system.
    pub fn square(&mut self, level: u8, n: usize, seed: u64) -> io::Result<Reply> {
        let mut request = frame(n, seed);
        request[HEADER - 1] = level;
        self.send(&request)
    }

    /// Sends arbitrary bytes, and reads a reply.
    ///
    /// # Errors
    /// Returns the errors of the operating system.
    pub fn send(&mut self, request: &[u8]) -> io::Result<Reply> {
        self.stream.write_all(request)?;
        let mut head = [0; HEADER];
        self.stream.read_exact(&mut head)?;
        let (length, status) = parts(head);
        let mut body = vec![0; length as usize];
        self.stream.read_exact(&mut body)?;
        let text = |body: Vec<u8>| String::from_utf8_lossy(&body).into_owned();
        match status {
            OK => Ok(Reply::Product(body)),
            UNAVAILABLE => Ok(Reply::Unavailable(text(body))),
            _ => Ok(Reply::Refused(text(body))),
        }
    }
}
