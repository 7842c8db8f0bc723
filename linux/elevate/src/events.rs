//! [`Events`]: the kernel's reports (proc connector) of processes and threads that are born, end,
//! or change their program, user or name.
//!
//! A subscription needs CAP_NET_ADMIN and the machine's own network namespace. If events come
//! faster than they are read, some are lost, which [`Event::Lost`] reports. After a loss, or
//! without a subscription, a listener must scan `/proc`. The messages are laid out as in
//! linux/netlink.h, connector.h and cn_proc.h.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// An event of a process or a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A thread was born. If `process` and `thread` are equal, it is the main thread of a new
    /// process.
    Born {
        /// The thread that made the new thread.
        parent: i32,
        /// The process that the new thread belongs to.
        process: i32,
        /// The tid of the new thread.
        thread: i32,
    },
    /// A thread has ended.
    Ended {
        /// The process that the thread belonged to.
        process: i32,
        /// The thread's tid.
        thread: i32,
    },
    /// A process runs another program, or has another user or name.
    Changed {
        /// The process.
        process: i32,
    },
    /// Events were lost.
    Lost,
}

/// A subscription to events, which ends when it is dropped.
#[derive(Debug)]
pub struct Events {
    socket: OwnedFd,
}

/// `NETLINK_CONNECTOR`, the protocol of the socket.
const CONNECTOR: libc::c_int = 11;
/// Index and value of the connector for processes, and its multicast group.
const PROC: u32 = 1;
/// `PROC_CN_MCAST_LISTEN`: the request to subscribe.
const LISTEN: u32 = 1;
/// `NLMSG_DONE`, the type of the message.
const DONE: u16 = 3;
/// Bytes of a `struct nlmsghdr` and a `struct cn_msg`.
const HEADERS: usize = 16 + 20;

const FORK: u32 = 1;
const EXEC: u32 = 2;
const UID: u32 = 4;
const COMM: u32 = 0x200;
const EXIT: u32 = 0x8000_0000;

/// The events that a subscription delivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// All of [`Event`].
    All,
    /// Births and ends. The kernel drops all other events, and wakes no thread for them.
    Threads,
}

impl Events {
    /// Subscribes to events from now on.
    ///
    /// # Errors
    /// The kernel's error if a right is missing; EOPNOTSUPP if there is no such connector here.
    pub fn subscribe(interest: Interest) -> io::Result<Events> {
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: the call takes only integers, so it has no preconditions.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, CONNECTOR) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and has no other owner.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: zeroes are a valid value, because the structure consists of integers.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        address.nl_groups = PROC;
        // SAFETY: the pointer is valid for the given length.
        let result = unsafe {
            let length = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
            libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length)
        };
        if result != 0 {
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
        // SAFETY: the pointer is valid for the given length.
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
        let events = Events { socket };
        // The kernel answers before `send` returns. It never answers a process that is inside a
        // namespace.
        let mut answers = std::iter::from_fn(|| events.receive());
        if !answers.any(|received| received.is_ok_and(|event| event.is_none())) {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        if interest == Interest::Threads {
            attach_filter(events.as_fd())?;
        }
        Ok(events)
    }

    /// Receives the next message. `Ok(None)` is the kernel's answer to the subscription; `None`
    /// means that there is no message now.
    fn receive(&self) -> Option<io::Result<Option<Event>>> {
        loop {
            let mut message = [0u8; 256];
            // SAFETY: the kernel writes at most as many bytes as the buffer has.
            let received = unsafe {
                libc::recv(
                    self.socket.as_raw_fd(),
                    message.as_mut_ptr().cast(),
                    message.len(),
                    libc::MSG_DONTWAIT,
                )
            };
            if received < 0 {
                let error = io::Error::last_os_error();
                let lost = error.raw_os_error() == Some(libc::ENOBUFS);
                return lost.then_some(Err(error));
            }
            let event = message[..usize::try_from(received).unwrap_or(0)].get(HEADERS..);
            match event {
                Some([0, 0, 0, 0, ..]) => return Some(Ok(None)),
                event => {
                    if let Some(event) = event.and_then(parse) {
                        return Some(Ok(Some(event)));
                    }
                }
            }
        }
    }

    /// Returns the next event, or `None` if there is none now. One system call.
    pub fn next(&self) -> Option<Event> {
        loop {
            match self.receive()? {
                Ok(Some(event)) => return Some(event),
                Ok(None) => {}
                Err(_) => return Some(Event::Lost),
            }
        }
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Makes the kernel drop all events but births and ends. The filter executes at most four
/// instructions for each message.
fn attach_filter(socket: BorrowedFd<'_>) -> io::Result<()> {
    let code = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    // The filter loads words in network byte order.
    let word = |number: u32| u32::from_be_bytes(number.to_ne_bytes());
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let mut program = [
        code(
            libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
            HEADERS as u32,
            0,
            0,
        ),
        code(equal, word(FORK), 1, 0),
        code(equal, word(EXIT), 0, 1),
        code(libc::BPF_RET | libc::BPF_K, u32::MAX, 0, 0),
        code(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
    ];
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: `program` and its instructions outlive the call; the kernel copies and checks them.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Parses a `struct proc_event`: type, CPU, time, and then numbers.
fn parse(event: &[u8]) -> Option<Event> {
    let word = |at: usize| Some(u32::from_ne_bytes(event.get(at..at + 4)?.try_into().ok()?));
    let number = |index: usize| Some(word(16 + 4 * index)? as i32);
    match word(0)? {
        FORK => Some(Event::Born {
            parent: number(1)?,
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
        let event = |kind: u32, numbers: [i32; 4]| {
            let mut bytes = kind.to_ne_bytes().to_vec();
            bytes.extend([0; 12]);
            bytes.extend(numbers.into_iter().flat_map(i32::to_ne_bytes));
            parse(&bytes)
        };
        let born = Event::Born {
            parent: 6,
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

    #[test]
    fn births_and_ends_of_threads_are_reported_and_nothing_else() {
        let Ok(events) = Events::subscribe(Interest::Threads) else {
            eprintln!("skipped: the kernel reports no events here");
            return;
        };
        let own = std::process::id() as i32;
        let name = || {
            let tid = crate::current_tid();
            // Naming the thread is an event that must not be reported.
            std::fs::write(format!("/proc/self/task/{tid}/comm"), "renamed").unwrap();
            tid
        };
        let tid = std::thread::spawn(name).join().unwrap();
        let (mut born, mut ended) = (false, false);
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while !(born && ended) && std::time::Instant::now() < deadline {
            match events.next() {
                Some(Event::Born {
                    process, thread, ..
                }) => born |= (process, thread) == (own, tid),
                Some(Event::Ended { process, thread }) => ended |= (process, thread) == (own, tid),
                Some(Event::Changed { process }) => panic!("{process} has changed"),
                Some(Event::Lost) => return,
                None => std::thread::yield_now(),
            }
        }
        assert!(born && ended);
    }
}
