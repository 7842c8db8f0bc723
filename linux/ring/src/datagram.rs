//! Receiving datagrams without end, each with the address of its sender.
//!
//! The same stream as [`RecvMulti`], but the kernel puts a header and the sender's address before the data:
//!
//! ```text
//!   | header 16 bytes | room for an address 128 bytes | data … |      one buffer of the pool
//! ```
//!
//! Taking it apart copies the address (128 bytes at most) and nothing else. No allocation per datagram.

use crate::address::Address;
use crate::recv::{RecvBuf, RecvMulti};
use io_uring::types::RecvMsgOut;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};

/// Room for any address.
const NAME: usize = size_of::<libc::sockaddr_storage>();
/// `struct io_uring_recvmsg_out`.
const HEADER: usize = 16;

/// A datagram in one of the ring's buffers.
#[derive(Debug)]
pub struct Datagram {
    /// The data. It goes back to the ring when it is dropped.
    pub data: RecvBuf,
    /// The sender's; of family `AF_UNSPEC` where senders have no address.
    pub from: Address,
    /// It was longer than the buffer; the rest is lost.
    pub truncated: bool,
}

/// The datagrams that arrive at a socket; made by [`Ring::datagram_multi`](crate::Ring::datagram_multi).
///
/// Errors (an ICMP answer to something sent earlier, for one) end the stream. A stream whose consumer is behind, or that finds
/// no buffer, waits, as [`RecvMulti`] does; what the socket's own queue cannot hold meanwhile is lost, as datagrams are.
///
/// May be polled and dropped on any thread. Dropping loses the datagrams that have been received and not been taken.
#[derive(Debug)]
pub struct DatagramMulti {
    stream: RecvMulti,
}

impl DatagramMulti {
    /// Bytes of each buffer ([`Config::buffer_size`](crate::Config::buffer_size)) that are not for data.
    pub const OVERHEAD: usize = HEADER + NAME;

    pub(crate) fn new(stream: RecvMulti) -> Self {
        Self { stream }
    }

    /// What tells the kernel how much room to leave for an address, and how to take apart what it made of it.
    pub(crate) fn header() -> libc::msghdr {
        // SAFETY: all zeroes is an empty message.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_namelen = NAME as libc::socklen_t;
        message
    }

    /// The next datagram, `None` after the end. Leaves the waker of `cx` if there is none yet.
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

    /// The next datagram, `None` after the end.
    ///
    /// # Errors
    ///
    /// What `recvmsg` answers; EMSGSIZE if buffers are too small to hold even an address.
    pub async fn next(&mut self) -> io::Result<Option<Datagram>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }
}
