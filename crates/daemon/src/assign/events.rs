//! [`Events`]: processes and threads that are born, end, or become another program or user, as the kernel tells them (proc connector).
//!
//! It takes CAP_NET_ADMIN and the machine's own network namespace. Events that come faster than they are read are lost, which is told;
//! then, or without any, whoever wants to know has to look around. Layout of the messages: linux/netlink.h, connector.h, cn_proc.h.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// What has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// A thread was born to `process`, a new one if `thread` is its number.
    Born { process: i32, thread: i32 },
    /// A thread has ended.
    Ended { process: i32, thread: i32 },
    /// The process is another program or another user's, or has another name.
    Changed { process: i32 },
    /// Events were lost.
    Lost,
}

/// A subscription. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Events {
    socket: OwnedFd,
}

const CONNECTOR: libc::c_int = 11;
/// Index and value of the connector for processes, and its multicast group.
const PROC: u32 = 1;
const LISTEN: u32 = 1;
const DONE: u16 = 3;
/// Bytes of a `struct nlmsghdr` and a `struct cn_msg`.
const HEADERS: usize = 16 + 20;

const FORK: u32 = 1;
const EXEC: u32 = 2;
const UID: u32 = 4;
const COMM: u32 = 0x200;
const EXIT: u32 = 0x8000_0000;

impl Events {
    pub(crate) fn subscribe() -> io::Result<Events> {
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: integers only.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, CONNECTOR) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it was just made and belongs to nobody else.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: a structure of integers, for which zeroes are valid.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        address.nl_groups = PROC;
        // SAFETY: a live address of the length stated.
        let bound = unsafe {
            let length = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
            libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length)
        };
        if bound != 0 {
            return Err(io::Error::last_os_error());
        }
        let mut message = Vec::with_capacity(HEADERS + 4);
        message.extend((HEADERS as u32 + 4).to_ne_bytes());
        message.extend(DONE.to_ne_bytes());
        message.extend([0; 10]);
        for word in [PROC, PROC, 0, 0] {
            message.extend(word.to_ne_bytes());
        }
        message.extend(4u16.to_ne_bytes());
        message.extend([0; 2]);
        message.extend(LISTEN.to_ne_bytes());
        // SAFETY: a live buffer of the length stated.
        let sent = unsafe {
            libc::send(
                socket.as_raw_fd(),
                message.as_ptr().cast(),
                message.len(),
                0,
            )
        };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Events { socket })
    }

    /// The next one; `None`: there is none now.
    pub(crate) fn next(&self) -> Option<Event> {
        loop {
            let mut message = [0u8; 256];
            // SAFETY: the kernel writes at most as many bytes as the live buffer has.
            let got = unsafe {
                libc::recv(
                    self.socket.as_raw_fd(),
                    message.as_mut_ptr().cast(),
                    message.len(),
                    libc::MSG_DONTWAIT,
                )
            };
            if got < 0 {
                let lost = io::Error::last_os_error().raw_os_error() == Some(libc::ENOBUFS);
                return lost.then_some(Event::Lost);
            }
            let message = &message[..usize::try_from(got).unwrap_or(0)];
            if let Some(event) = message.get(HEADERS..).and_then(parse) {
                return Some(event);
            }
        }
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A `struct proc_event`: what, CPU, time, and then numbers.
fn parse(event: &[u8]) -> Option<Event> {
    let word = |at: usize| Some(u32::from_ne_bytes(event.get(at..at + 4)?.try_into().ok()?));
    let number = |index: usize| Some(word(16 + 4 * index)? as i32);
    match word(0)? {
        FORK => Some(Event::Born {
            process: number(3)?,
            thread: number(2)?,
        }),
        EXIT => Some(Event::Ended {
            process: number(1)?,
            thread: number(0)?,
        }),
        EXEC | UID | COMM => Some(Event::Changed {
            process: number(1)?,
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_as_the_kernel_writes_them() {
        let event = |what: u32, numbers: [i32; 4]| {
            let mut bytes = what.to_ne_bytes().to_vec();
            bytes.extend([0; 12]);
            bytes.extend(numbers.into_iter().flat_map(i32::to_ne_bytes));
            parse(&bytes)
        };
        let born = Event::Born {
            process: 8,
            thread: 7,
        };
        assert_eq!(event(FORK, [5, 6, 7, 8]), Some(born));
        assert_eq!(
            event(COMM, [5, 6, 0, 0]),
            Some(Event::Changed { process: 6 })
        );
        let ended = Event::Ended {
            process: 6,
            thread: 5,
        };
        assert_eq!(event(EXIT, [5, 6, 0, 0]), Some(ended));
        assert_eq!(event(0x40, [1, 2, 3, 4]), None);
        assert_eq!(parse(&[1, 0]), None);
    }
}
