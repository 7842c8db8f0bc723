//! Receiving and sending on a connection.
//!
//! A connection is two handles, one per direction, so that a coroutine may receive while another one sends. It closes when both are freed.

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_io::{AsyncRead, AsyncWrite};
use upshift::net;

use crate::buf::{Buf, lent, lent_mut, upshift_buf, upshift_bytes};
use crate::cx::upshift_cx;
use crate::error::{code, quietly, wall};
use crate::op::{Handles, start, upshift_op};

/// The receiving direction of a connection. One thread at a time, one operation at a time; it outlives its operations.
pub struct upshift_reader(Reader);

pub(super) enum Reader {
    Tcp(net::OwnedReadHalf),
    Unix(net::unix::OwnedReadHalf),
}

/// The sending direction of a connection. One thread at a time, one operation at a time; it outlives its operations.
pub struct upshift_writer(Writer);

pub(super) enum Writer {
    Tcp(net::OwnedWriteHalf),
    Unix(net::unix::OwnedWriteHalf),
}

pub(super) fn handles(reader: Reader, writer: Writer) -> Handles {
    let reader: *mut c_void = Box::into_raw(Box::new(upshift_reader(reader))).cast();
    let writer: *mut c_void = Box::into_raw(Box::new(upshift_writer(writer))).cast();
    Handles(reader, writer)
}

/// Waits for data, in a buffer of the runtime's: the result is its length, out.bytes the data; length 0: the peer has finished. Dropped early it loses
/// nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_recv(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    reader: *mut upshift_reader,
) -> c_int {
    // SAFETY: by contract it outlives the operation, and nothing else uses it meanwhile.
    let reader: &'static mut upshift_reader = unsafe { &mut *reader };
    // SAFETY: by contract. The kind of socket is asked here, and not by each poll.
    unsafe {
        match &mut reader.0 {
            Reader::Tcp(half) => start(op, cx, half.recv()),
            Reader::Unix(half) => start(op, cx, half.recv()),
        }
    }
}

/// Reads into a buffer, up to its capacity: the result is the count, 0 if the peer has finished; out.buf is the buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_recv_into(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    reader: *mut upshift_reader,
    buf: *const upshift_buf,
) -> c_int {
    // SAFETY: by contract it outlives the operation, and nothing else uses it meanwhile.
    let reader: &'static mut upshift_reader = unsafe { &mut *reader };
    // SAFETY: the caller gives it away.
    let buf = unsafe { Buf::new(buf.read()) };
    // SAFETY: by contract.
    unsafe {
        match &mut reader.0 {
            Reader::Tcp(half) => start(op, cx, half.read(buf)),
            Reader::Unix(half) => start(op, cx, half.read(buf)),
        }
    }
}

/// Memory of the caller's that is touched within polls only.
struct Borrowed<D, const ALL: bool> {
    direction: D,
    data: *mut u8,
    len: usize,
    done: usize,
}

impl<const ALL: bool> Future for Borrowed<&'static mut upshift_reader, ALL> {
    type Output = io::Result<usize>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if ALL && this.len == 0 {
            return Poll::Ready(Ok(0));
        }
        loop {
            // SAFETY: by contract valid until the operation ends.
            let room = unsafe { lent_mut(this.data.add(this.done), this.len - this.done) };
            let read = match &mut this.direction.0 {
                Reader::Tcp(half) => Pin::new(half).poll_read(cx, room),
                Reader::Unix(half) => Pin::new(half).poll_read(cx, room),
            };
            let count = ready!(read)?;
            this.done += count;
            if !ALL || count == 0 || this.done == this.len {
                return Poll::Ready(Ok(this.done));
            }
        }
    }
}

impl Future for Borrowed<&'static mut upshift_writer, true> {
    type Output = io::Result<usize>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        while this.done < this.len {
            // SAFETY: by contract valid until the operation ends.
            let rest = unsafe { lent(this.data.add(this.done), this.len - this.done) };
            let sent = match &mut this.direction.0 {
                Writer::Tcp(half) => Pin::new(half).poll_write(cx, rest),
                Writer::Unix(half) => Pin::new(half).poll_write(cx, rest),
            };
            match sent {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(count)) => this.done += count,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(this.done))
    }
}

/// Copies what has arrived to `data`, at most `len` bytes, which the kernel never sees: they need only live until the operation ends. The result is the
/// count; 0: the peer has finished.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_recv_copy(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    reader: *mut upshift_reader,
    data: *mut u8,
    len: usize,
) -> c_int {
    // SAFETY: passed on.
    unsafe { recv_copy::<false>(op, cx, reader, data, len) }
}

/// The same until `data` is full: the result is `len`, or less if the peer has finished. Dropped early, it has taken what has arrived by then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_recv_exact(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    reader: *mut upshift_reader,
    data: *mut u8,
    len: usize,
) -> c_int {
    // SAFETY: passed on.
    unsafe { recv_copy::<true>(op, cx, reader, data, len) }
}

/// # Safety
/// As [`upshift_recv_copy`].
#[inline]
unsafe fn recv_copy<const ALL: bool>(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    reader: *mut upshift_reader,
    data: *mut u8,
    len: usize,
) -> c_int {
    let read = Borrowed::<_, ALL> {
        // SAFETY: by contract it outlives the operation, and nothing else uses it meanwhile.
        direction: unsafe { &mut *reader },
        data,
        len,
        done: 0,
    };
    // SAFETY: by contract.
    unsafe { start(op, cx, read) }
}

/// Writes all of a buffer through the ring: result 0; out.buf is the buffer. On an error an unknown part was sent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_write_all(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    writer: *mut upshift_writer,
    buf: *const upshift_buf,
) -> c_int {
    // SAFETY: by contract it outlives the operation, and nothing else uses it meanwhile.
    let writer: &'static mut upshift_writer = unsafe { &mut *writer };
    // SAFETY: the caller gives it away.
    let buf = unsafe { Buf::new(buf.read()) };
    // SAFETY: by contract.
    unsafe { write_all(op, cx, writer, buf) }
}

/// # Safety
/// As [`start`].
unsafe fn write_all(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    writer: &'static mut upshift_writer,
    buf: Buf,
) -> c_int {
    // SAFETY: passed on. The kind of socket is asked here, so that the state is not that of both.
    unsafe {
        match &mut writer.0 {
            Writer::Tcp(half) => start(op, cx, half.write_all(buf)),
            Writer::Unix(half) => start(op, cx, half.write_all(buf)),
        }
    }
}

/// Writes all of received bytes, which are the operation's from the call on: result 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_write_bytes(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    writer: *mut upshift_writer,
    bytes: *const upshift_bytes,
) -> c_int {
    // SAFETY: by contract it outlives the operation, and nothing else uses it meanwhile.
    let writer: &'static mut upshift_writer = unsafe { &mut *writer };
    // SAFETY: the caller gives them away.
    let bytes = unsafe { bytes.read() }.into_inner();
    // SAFETY: by contract.
    unsafe {
        match &mut writer.0 {
            Writer::Tcp(half) => start(op, cx, half.write_all(bytes)),
            Writer::Unix(half) => start(op, cx, half.write_all(bytes)),
        }
    }
}

/// Sends all of `len` bytes by system calls that do not wait, so that the kernel has copied them when the operation ends and they need only live until then. The
/// result is `len`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_write_copy(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    writer: *mut upshift_writer,
    data: *const u8,
    len: usize,
) -> c_int {
    let write = Borrowed::<_, true> {
        // SAFETY: by contract it outlives the operation, and nothing else uses it meanwhile.
        direction: unsafe { &mut *writer },
        data: data.cast_mut(),
        len,
        done: 0,
    };
    // SAFETY: by contract.
    unsafe { start(op, cx, write) }
}

/// The connection's descriptor, which stays its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_reader_fd(reader: *const upshift_reader) -> c_int {
    // SAFETY: by contract.
    match unsafe { &(*reader).0 } {
        Reader::Tcp(half) => half.as_raw_fd(),
        Reader::Unix(half) => half.as_raw_fd(),
    }
}

/// Gives the receiving direction back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_reader_free(reader: *mut upshift_reader) {
    // SAFETY: the caller's, once.
    quietly(|| drop(unsafe { Box::from_raw(reader) }));
}

/// Tells the peer that nothing more will come. 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_writer_shutdown(writer: *const upshift_writer) -> c_int {
    wall(|| {
        // SAFETY: by contract.
        code(match unsafe { &(*writer).0 } {
            Writer::Tcp(half) => half.shutdown(),
            Writer::Unix(half) => half.shutdown(),
        })
    })
}

/// Gives the sending direction back, and tells the peer that nothing more will come.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_writer_free(writer: *mut upshift_writer) {
    // SAFETY: the caller's, once.
    quietly(|| drop(unsafe { Box::from_raw(writer) }));
}
