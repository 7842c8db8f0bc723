//! Attempts an operation without blocking. Afterwards the operation has completed, waits until its
//! descriptor is ready, or goes to a thread that may block.

use crate::pool::BufferEntry;
use crate::readiness::blocking;
use crate::readiness::calls::{Vectors, connect_at_once, errno, result, set_nonblocking};
use crate::readiness::epoll;
use crate::readiness::sqe::{
    ACCEPT_MULTISHOT, BUFFER, BUFFER_SELECT, MORE, POLL_FIRST, POLL_MULTI, RECV_MULTISHOT, Sqe,
};
use io_uring::opcode;
use libc::c_int;
use std::ptr;
use std::sync::atomic::{AtomicU16, Ordering};

const READABLE: u32 = libc::EPOLLIN as u32;
const WRITABLE: u32 = libc::EPOLLOUT as u32;

/// Maximum number of buffers or connections that a stream takes per attempt, as in the kernel.
const MAX_PER_ATTEMPT: usize = 32;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    Done(i32),
    /// The operation must be attempted again when the descriptor is ready for these events.
    Wait(u32),
    Offload,
}

use Outcome::{Done, Offload, Wait};

/// The end of a buffer ring from which buffers are taken. With io_uring, only the kernel uses this
/// end.
#[derive(Clone, Copy)]
pub(super) struct Group {
    ring: *const BufferEntry,
    mask: u16,
    head: u16,
}

impl Group {
    /// Creates the consuming end of a ring.
    ///
    /// # Safety
    /// The memory is a ring of `entries` buffers (a power of two) while the value is in use.
    pub(super) unsafe fn new(address: u64, entries: u16) -> Self {
        Self {
            ring: ptr::with_exposed_provenance(address as usize),
            mask: entries.wrapping_sub(1),
            head: 0,
        }
    }

    fn peek(&self) -> Option<(*mut u8, usize, u16)> {
        // SAFETY: entry 0 exists, so the pointer is valid. Both ends access the tail, its last
        // field, only atomically.
        let tail: &AtomicU16 = unsafe { &(*self.ring).tail };
        if tail.load(Ordering::Acquire) == self.head {
            return None;
        }
        let index = usize::from(self.head & self.mask);
        // SAFETY: the entries between head and tail are filled, and no thread writes to them. They
        // are read field by field, because the last field of entry 0 is the tail.
        unsafe {
            let entry = self.ring.add(index);
            let address = (&raw const (*entry).address).read();
            let length = (&raw const (*entry).length).read();
            let id = (&raw const (*entry).id).read();
            let address = ptr::with_exposed_provenance_mut(address as usize);
            Some((address, length as usize, id))
        }
    }

    fn take(&mut self) {
        self.head = self.head.wrapping_add(1);
    }
}

/// Makes an attempt. If the operation must transfer all its bytes, `bytes_done` counts the bytes of
/// all attempts. `post` takes completions that are not terminal. `is_first` is set if the operation
/// has not waited for readiness yet.
pub(super) fn attempt(
    sqe: &Sqe,
    bytes_done: &mut u32,
    is_first: bool,
    groups: &mut [Option<Group>],
    post: &mut impl FnMut(i32, u32),
) -> Outcome {
    if blocking::is_blocking(sqe.opcode) {
        return Offload;
    }
    match sqe.opcode {
        opcode::Nop::CODE => Done(0),
        opcode::Read::CODE | opcode::Readv::CODE => transfer(sqe, READABLE),
        opcode::Write::CODE | opcode::Writev::CODE => transfer(sqe, WRITABLE),
        opcode::Send::CODE | opcode::SendMsg::CODE => send_or_recv(sqe, bytes_done, WRITABLE),
        opcode::Recv::CODE | opcode::RecvMsg::CODE if sqe.ioprio & POLL_FIRST != 0 && is_first => {
            Wait(READABLE)
        }
        opcode::Recv::CODE | opcode::RecvMsg::CODE if sqe.ioprio & RECV_MULTISHOT != 0 => {
            receive_stream(sqe, groups, post)
        }
        opcode::Recv::CODE | opcode::RecvMsg::CODE if sqe.flags & BUFFER_SELECT == 0 => {
            send_or_recv(sqe, bytes_done, READABLE)
        }
        opcode::Accept::CODE => accept(sqe, is_first, post),
        opcode::Connect::CODE => connect(sqe, is_first),
        opcode::PollAdd::CODE if sqe.length & POLL_MULTI == 0 => {
            match epoll::ready_events(sqe.fd, sqe.op_flags) {
                0 => Wait(sqe.op_flags),
                events if events & libc::POLLNVAL as u32 != 0 => Done(-libc::EBADF),
                events => Done(events.cast_signed()),
            }
        }
        _ => Done(-libc::EOPNOTSUPP),
    }
}

fn would_block(result: i32) -> bool {
    result == -libc::EAGAIN || result == -libc::EWOULDBLOCK
}

/// Sends or receives once; with `MSG_WAITALL`, repeatedly until all bytes are transferred.
fn send_or_recv(sqe: &Sqe, bytes_done: &mut u32, events: u32) -> Outcome {
    loop {
        let moved = transmit(sqe, *bytes_done as usize, events);
        let final_result = |error| {
            if *bytes_done == 0 {
                error
            } else {
                bytes_done.cast_signed()
            }
        };
        match moved {
            moved if would_block(moved) => {
                let gives_up = sqe.op_flags & libc::MSG_DONTWAIT as u32 != 0;
                return if gives_up {
                    Done(final_result(moved))
                } else {
                    Wait(events)
                };
            }
            moved if moved == -libc::EINTR => {}
            moved if moved <= 0 => return Done(final_result(moved)),
            moved => {
                *bytes_done += moved.cast_unsigned();
                let waits_for_all = sqe.op_flags & libc::MSG_WAITALL as u32 != 0;
                if !waits_for_all || *bytes_done as usize >= whole_length(sqe) {
                    return Done(bytes_done.cast_signed());
                }
            }
        }
    }
}

fn is_message(sqe: &Sqe) -> bool {
    matches!(sqe.opcode, opcode::SendMsg::CODE | opcode::RecvMsg::CODE)
}

/// Returns the pieces of a message.
///
/// # Safety
/// The entry points to a valid header.
unsafe fn pieces(sqe: &Sqe) -> &[libc::iovec] {
    // SAFETY: the caller guarantees a valid header.
    let header = unsafe { &*sqe.pointer::<libc::msghdr>() };
    if header.msg_iovlen == 0 {
        return &[];
    }
    // SAFETY: the header describes this many pieces, at a valid pointer that is not null.
    unsafe { std::slice::from_raw_parts(header.msg_iov, header.msg_iovlen) }
}

fn whole_length(sqe: &Sqe) -> usize {
    if is_message(sqe) {
        // SAFETY: an entry of this kind points to a header, until its terminal completion.
        let pieces = unsafe { pieces(sqe) };
        pieces.iter().map(|piece| piece.iov_len).sum()
    } else {
        sqe.length as usize
    }
}

/// Transfers the bytes after the first `bytes_done`, as many as possible without blocking.
fn transmit(sqe: &Sqe, bytes_done: usize, events: u32) -> i32 {
    let flags = sqe.op_flags.cast_signed() & !libc::MSG_WAITALL | libc::MSG_DONTWAIT;
    let sends = events == WRITABLE;
    if !is_message(sqe) {
        let length = sqe.length as usize - bytes_done;
        // SAFETY: the entry's buffer is valid for its whole length, of which `bytes_done` bytes
        // have been transferred, so the rest is valid, too.
        return result(unsafe {
            let buffer = sqe.pointer::<u8>().add(bytes_done);
            if sends {
                libc::send(sqe.fd, buffer.cast(), length, flags)
            } else {
                libc::recv(sqe.fd, buffer.cast(), length, flags)
            }
        } as i64);
    }
    let message = sqe.pointer::<libc::msghdr>();
    let mut remaining_pieces;
    let mut remaining_message;
    let message = if bytes_done == 0 {
        message
    } else {
        // SAFETY: as in `whole_length`.
        remaining_pieces = skip(unsafe { pieces(sqe) }, bytes_done);
        // SAFETY: as above.
        remaining_message = unsafe { *message };
        remaining_message.msg_iov = remaining_pieces.as_mut_ptr();
        remaining_message.msg_iovlen = remaining_pieces.len() as _;
        &raw mut remaining_message
    };
    // SAFETY: the header is valid, and the pieces that it describes lie in the operation's buffers.
    result(unsafe {
        if sends {
            libc::sendmsg(sqe.fd, message, flags)
        } else {
            libc::recvmsg(sqe.fd, message, flags)
        }
    } as i64)
}

/// Returns the pieces without their first `bytes` bytes.
fn skip(pieces: &[libc::iovec], mut bytes: usize) -> Vec<libc::iovec> {
    let mut remaining = Vec::new();
    for piece in pieces {
        let skipped = bytes.min(piece.iov_len);
        bytes -= skipped;
        if skipped < piece.iov_len {
            remaining.push(libc::iovec {
                // SAFETY: the sum is within the piece, because `skipped` is less than its length.
                iov_base: unsafe { piece.iov_base.cast::<u8>().add(skipped) }.cast(),
                iov_len: piece.iov_len - skipped,
            });
        }
    }
    remaining
}

/// Receives into buffers of the group until the socket or the group is empty.
fn receive_stream(
    sqe: &Sqe,
    groups: &mut [Option<Group>],
    post: &mut impl FnMut(i32, u32),
) -> Outcome {
    let Some(Some(group)) = groups.get_mut(usize::from(sqe.buffer_group)) else {
        return Done(-libc::ENOBUFS);
    };
    let is_message = is_message(sqe);
    for filled_buffers in 0..MAX_PER_ATTEMPT {
        let Some((buffer, length, id)) = group.peek() else {
            // The lack of a buffer matters only if there is more to receive.
            return match filled_buffers {
                0 => Done(-libc::ENOBUFS),
                _ => Wait(READABLE),
            };
        };
        let received = if is_message {
            // SAFETY: the buffer can be written, because it belongs to the stream until its
            // completion is posted. The entry of such a stream points to a header.
            unsafe { receive_datagram(sqe, buffer, length) }
        } else {
            // SAFETY: as above.
            result(unsafe { libc::recv(sqe.fd, buffer.cast(), length, libc::MSG_DONTWAIT) } as i64)
        };
        match received {
            received if would_block(received) => return Wait(READABLE),
            received if received == -libc::EINTR => {}
            received if received <= 0 => return Done(received),
            received => {
                group.take();
                post(received, MORE | BUFFER | u32::from(id) << 16);
                // The socket is empty now; data that arrives later makes the descriptor readable.
                if !is_message && (received as usize) < length {
                    return Wait(READABLE);
                }
            }
        }
    }
    Wait(READABLE)
}

/// The kernel's `struct io_uring_recvmsg_out`, which precedes the address and the data.
#[repr(C)]
struct Datagram {
    name_length: u32,
    control_length: u32,
    payload_length: u32,
    flags: u32,
}

/// Receives a datagram with its sender, in the kernel's layout.
///
/// # Safety
/// The buffer can be written, and the entry points to a header.
unsafe fn receive_datagram(sqe: &Sqe, buffer: *mut u8, length: usize) -> i32 {
    // SAFETY: the caller guarantees that the entry points to a header.
    let template = unsafe { &*sqe.pointer::<libc::msghdr>() };
    let name_length = template.msg_namelen as usize;
    let control_length = template.msg_controllen;
    let data_offset = size_of::<Datagram>() + name_length + control_length;
    if length < data_offset {
        return -libc::EFAULT;
    }
    // SAFETY: the sums are within the buffer, which has at least `data_offset` bytes.
    let (name, control, data) = unsafe {
        let name = buffer.add(size_of::<Datagram>());
        (name, name.add(name_length), buffer.add(data_offset))
    };
    let mut piece = libc::iovec {
        iov_base: data.cast(),
        iov_len: length - data_offset,
    };
    // SAFETY: all zeroes is an empty message.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = name.cast();
    message.msg_namelen = name_length as libc::socklen_t;
    message.msg_control = control.cast();
    message.msg_controllen = control_length as _;
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    let flags = sqe.op_flags.cast_signed() | libc::MSG_DONTWAIT;
    // SAFETY: the pointers and lengths in the header describe parts of the buffer, which can be
    // written.
    let received = result(unsafe { libc::recvmsg(sqe.fd, &raw mut message, flags) } as i64);
    if received < 0 {
        return received;
    }
    let header = Datagram {
        name_length: message.msg_namelen,
        control_length: message.msg_controllen as u32,
        payload_length: received.cast_unsigned(),
        flags: message.msg_flags.cast_unsigned(),
    };
    // SAFETY: the buffer has room for the header; its alignment is unknown.
    unsafe { buffer.cast::<Datagram>().write_unaligned(header) };
    data_offset as i32 + received
}

/// Accepts one connection or, for a stream, all waiting connections. Makes the listening socket
/// nonblocking permanently, because another thread may accept the connection first, and this call
/// must not block then.
fn accept(sqe: &Sqe, is_first: bool, post: &mut impl FnMut(i32, u32)) -> Outcome {
    if is_first && set_nonblocking(sqe.fd) < 0 {
        return Done(-errno());
    }
    let flags = sqe.op_flags.cast_signed();
    for _ in 0..MAX_PER_ATTEMPT {
        // SAFETY: with null pointers the call writes no address.
        let accepted =
            result(unsafe { libc::accept4(sqe.fd, ptr::null_mut(), ptr::null_mut(), flags) });
        match accepted {
            accepted if would_block(accepted) => return Wait(READABLE),
            accepted if accepted == -libc::EINTR => {}
            accepted if accepted < 0 => return Done(accepted),
            accepted if sqe.ioprio & ACCEPT_MULTISHOT == 0 => return Done(accepted),
            accepted => post(accepted, MORE),
        }
    }
    Wait(READABLE)
}

/// Starts to connect or, once the socket is ready, returns the outcome.
fn connect(sqe: &Sqe, is_first: bool) -> Outcome {
    if !is_first {
        let mut error: c_int = 0;
        let mut length = size_of::<c_int>() as libc::socklen_t;
        // SAFETY: the pointers are valid, because they point to locals of the given length.
        let status = result(unsafe {
            libc::getsockopt(
                sqe.fd,
                libc::SOL_SOCKET,
                libc::SO_ERROR,
                (&raw mut error).cast(),
                &raw mut length,
            )
        });
        return Done(if status < 0 { status } else { -error });
    }
    let connected = connect_at_once(sqe);
    match connected {
        connected if connected == -libc::EINPROGRESS || connected == -libc::EINTR => Wait(WRITABLE),
        // If the queue of a local socket's peer is full, the socket does not become ready when
        // there is room, so a thread tries again.
        connected if would_block(connected) => Offload,
        connected => Done(connected),
    }
}

/// Reads or writes without blocking, which is possible in the page cache and on pipes.
fn transfer(sqe: &Sqe, events: u32) -> Outcome {
    let vectors = Vectors::from_sqe(sqe);
    let (pointer, count) = (vectors.pointer(), vectors.count());
    let call = |offset: i64| {
        // SAFETY: the operation's buffers are valid until its terminal completion.
        result(unsafe {
            if events == READABLE {
                libc::preadv2(sqe.fd, pointer, count, offset, libc::RWF_NOWAIT)
            } else {
                libc::pwritev2(sqe.fd, pointer, count, offset, libc::RWF_NOWAIT)
            }
        } as i64)
    };
    loop {
        // An offset of all ones is -1, which means the file's own position.
        let mut moved = call(sqe.offset.cast_signed());
        if moved == -libc::ESPIPE {
            moved = call(-1);
        }
        match moved {
            moved if would_block(moved) => return Wait(events),
            moved if moved == -libc::EINTR => {}
            moved if moved == -libc::EOPNOTSUPP || moved == -libc::ENOSYS => {
                // A terminal, for example, supports readiness but no nonblocking reads.
                return match epoll::ready_events(sqe.fd, events) {
                    0 => Wait(events),
                    _ => Offload,
                };
            }
            moved if events == READABLE && is_cut_short(sqe, &vectors, moved) => return Offload,
            moved => return Done(moved),
        }
    }
}

/// Returns whether a read of a file at an offset was cut short, because the cached pages ended
/// before the file. A thread then repeats the whole read, because callers expect a complete read.
fn is_cut_short(sqe: &Sqe, vectors: &Vectors, moved: i32) -> bool {
    // SAFETY: the vectors are valid until the operation's terminal completion.
    let requested_bytes: usize = unsafe {
        let vectors = std::slice::from_raw_parts(vectors.pointer(), vectors.count() as usize);
        vectors.iter().map(|vector| vector.iov_len).sum()
    };
    if moved <= 0 || moved as usize >= requested_bytes || sqe.offset == u64::MAX {
        return false;
    }
    // SAFETY: all zeroes is a valid value, and the call only writes to it.
    let file = unsafe {
        let mut file: libc::stat = std::mem::zeroed();
        if libc::fstat(sqe.fd, &raw mut file) != 0 {
            return false;
        }
        file
    };
    file.st_mode & libc::S_IFMT == libc::S_IFREG
        && sqe.offset.saturating_add(moved as u64) < file.st_size as u64
}
