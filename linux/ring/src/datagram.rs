//! Multishot receive of datagrams, each with the address of its sender.
//!
//! The stream is a [`RecvMulti`] in whose buffers the kernel puts a header and the sender's address
//! before the data:
//!
//! ```text
//!   | header 16 bytes | room for an address 128 bytes | data … |      one buffer of the pool
//! ```
//!
//! Parsing copies the address (at most 128 bytes) and nothing else, and does not allocate.

use crate::address::Address;
use crate::recv::{RecvBuf, RecvMulti};
use io_uring::types::RecvMsgOut;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};

/// Bytes that are reserved for the sender's address, enough for every address family.
const NAME: usize = size_of::<libc::sockaddr_storage>();
/// Bytes of the header that the kernel writes before the address.
const HEADER: usize = 16;

/// A datagram in one of the ring's buffers.
#[derive(Debug)]
pub struct Datagram {
    /// The data. Dropping the data returns its buffer to the ring.
    pub data: RecvBuf,
    /// The sender's address; its family is `AF_UNSPEC` if senders have no address.
    pub from: Address,
    /// Set if the datagram was longer than the buffer; the rest is lost.
    pub truncated: bool,
}

/// A stream of the datagrams that arrive at a socket; made by
/// [`Ring::datagram_multi`](crate::Ring::datagram_multi).
///
/// Errors, such as an ICMP reply to an earlier send, end the stream. A stream whose consumer is
/// behind, or that finds no buffer, waits as [`RecvMulti`] does; datagrams that overflow the
/// socket's own queue meanwhile are lost.
///
/// The stream may be polled and dropped on any thread. Dropping it loses unread datagrams.
#[derive(Debug)]
pub struct DatagramMulti {
    stream: RecvMulti,
}

impl DatagramMulti {
    /// Bytes of each buffer ([`Config::buffer_size`](crate::Config::buffer_size)) that hold no
    /// data.
    pub const OVERHEAD: usize = HEADER + NAME;

    pub(crate) fn new(stream: RecvMulti) -> Self {
        Self { stream }
    }

    /// Returns the message header. It tells the kernel and the parser how many bytes are reserved
    /// for an address.
    pub(crate) fn header() -> libc::msghdr {
        // SAFETY: all zeroes is an empty message.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_namelen = NAME as libc::socklen_t;
        message
    }

    /// Returns the next datagram, or `None` after the end. Registers the waker of `cx` if there
    /// is none yet.
    ///
    /// # Errors
    ///
    /// Those of [`next`](Self::next).
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Datagram>>> {
        let mut data = ready!(self.stream.poll_next(cx))?;
        if data.is_empty() {
            return Poll::Ready(Ok(None));
        }
        let Ok(parts) = RecvMsgOut::parse(&data, &Self::header()) else {
            return Poll::Ready(Err(io::Error::from_raw_os_error(libc::EMSGSIZE)));
        };
        let from = Address::from_bytes(parts.name_data()).unwrap_or_else(Address::unset);
        let truncated = parts.flags() & libc::MSG_TRUNC as u32 != 0;
        data.advance(Self::OVERHEAD);
        Poll::Ready(Ok(Some(Datagram {
            data,
            from,
            truncated,
        })))
    }

    /// Waits for the next datagram; `None` after the end.
    ///
    /// # Errors
    ///
    /// The errno of `recvmsg`, or EMSGSIZE if buffers are too small to hold even an address.
    ///
    /// # Cancellation safety
    ///
    /// This method is cancellation safe, because a datagram is either returned or stays in the
    /// stream.
    pub async fn next(&mut self) -> io::Result<Option<Datagram>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }
}
