//! The header before the bytes of a received datagram: its source address.

/// Length of the header in bytes: address and port, each with the most significant byte first.
pub const HEADER: usize = 6;

/// Maximum length of a datagram, which is sent in one frame.
pub const MAX_LEN: usize = 1472;

/// Returns the header of a datagram from this address and port.
#[must_use]
pub const fn header(address: u32, port: u16) -> [u8; HEADER] {
    let ([a, b, c, d], [e, f]) = (address.to_be_bytes(), port.to_be_bytes());
    [a, b, c, d, e, f]
}

/// Returns the source of a datagram, and its bytes; `None` if there is no header.
#[must_use]
pub fn parse(range: &[u8]) -> Option<([u8; 4], u16, &[u8])> {
    let (header, bytes) = range.split_first_chunk::<HEADER>()?;
    let [a, b, c, d, e, f] = *header;
    Some(([a, b, c, d], u16::from_be_bytes([e, f]), bytes))
}
