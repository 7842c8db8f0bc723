//! Receiving and sending on a connection.
//!
//! A connection has two handles, one per direction, so that a coroutine may receive while another
//! coroutine sends. The connection closes when both handles are freed.

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_io::{AsyncRead, AsyncWrite};
use upshift::net;

use crate::buf::{Buf, is_there, lent, lent_mut, upshift_buf, upshift_bytes};
use crate::cx::upshift_cx;
use crate::error::{catch_panic, code, invalid, wall};
use crate::op::{Handles, finish, start, upshift_op};
use crate::turns::{InTurn, Turn, Turns, turn};

/// The receiving direction of a connection. One thread at a time, one operation at a time: a second
/// operation fails with -EBUSY.
pub struct upshift_reader {
    _private: [u8; 0],
}

pub(super) enum Reader {
    Tcp(net::OwnedReadHalf),
    Unix(net::unix::OwnedReadHalf),
}

/// The sending direction of a connection. One thread at a time, one operation at a time: a second
/// operation fails with -EBUSY.
pub struct upshift_writer {
    _private: [u8; 0],
}

pub(super) enum Writer {
    Tcp(net::OwnedWriteHalf),
    Unix(net::unix::OwnedWriteHalf),
}

pub(super) fn handles(reader: Reader, writer: Writer) -> Handles {
    let reader: *mut c_void = Turns::boxed(reader).cast();
    let writer: *mut c_void = Turns::boxed(writer).cast();
    Handles(reader, writer)
}

/// Starts an operation on a half of either kind of socket. The kind is examined here rather than in
/// each poll, so that the operation holds the future of one kind only.
macro_rules! start_on {
    ($kind:ident, $op:ident, $cx:ident, $turn:ident, |$half:ident| $future:expr) => {
        match $turn.lend() {
            $kind::Tcp($half) => start($op, $cx, InTurn::new($future, $turn)),
            $kind::Unix($half) => start($op, $cx, InTurn::new($future, $turn)),
        }
    };
}

/// Waits for data, in a buffer of the runtime. The result is its length, or 0 if the peer has ended
/// its direction; out.bytes is the data. Dropping the operation early loses no data.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_recv(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    reader: *mut upshift_reader,
) -> c_int {
    // SAFETY: by contract the reader and `op` are valid; the future is dropped before its turn.
    unsafe {
        let mut turn = match turn(reader.cast::<Turns<Reader>>()) {
            Ok(turn) => turn,
            Err(error) => return finish(op, Err::<(), _>(error)),
        };
        start_on!(Reader, op, cx, turn, |half| half.recv())
    }
}

/// Reads into a buffer, up to its capacity: the result is the count, 0 if the peer has ended its
/// direction; out.buf is the buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_recv_into(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    reader: *mut upshift_reader,
    buf: *const upshift_buf,
) -> c_int {
    // SAFETY: by contract the handle and `op` are valid, and the buffer is given away; the future
    // is dropped before its turn.
    unsafe {
        let (mut turn, buf) = match check_arguments(reader.cast::<Turns<Reader>>(), buf) {
            Ok(arguments) => arguments,
            Err(refused) => return finish(op, refused),
        };
        start_on!(Reader, op, cx, turn, |half| half.read(buf))
    }
}

/// Checks the turn and the buffer of a call. Returns both, or the error and the buffer to give
/// back.
///
/// # Safety
/// The contracts of [`turn`] and [`Buf::given`].
#[inline]
unsafe fn check_arguments<T>(
    turns: *mut Turns<T>,
    buf: *const upshift_buf,
) -> Result<(Turn<T>, Buf), (io::Result<usize>, Buf)> {
    // SAFETY: passed on.
    match unsafe { (Buf::given(buf), turn(turns)) } {
        (Ok(buf), Ok(turn)) => Ok((turn, buf)),
        (Ok(buf), Err(error)) => Err((Err(error), buf)),
        (Err(buf), _) => Err((Err(invalid()), buf)),
    }
}

/// The caller's memory, touched within polls only.
struct Borrowed<D, const ALL: bool> {
    direction: D,
    data: *mut u8,
    len: usize,
    done: usize,
}

impl<const ALL: bool> Future for Borrowed<Turn<Reader>, ALL> {
    type Output = io::Result<usize>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if ALL && this.len == 0 {
            return Poll::Ready(Ok(0));
        }
        loop {
            // SAFETY: by contract the memory is valid until the operation ends.
            let room = unsafe { lent_mut(this.data.add(this.done), this.len - this.done) };
            let read = match &mut *this.direction {
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

impl Future for Borrowed<Turn<Writer>, true> {
    type Output = io::Result<usize>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        while this.done < this.len {
            // SAFETY: by contract the memory is valid until the operation ends.
            let rest = unsafe { lent(this.data.add(this.done), this.len - this.done) };
            let sent = match &mut *this.direction {
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

/// Copies received bytes to `data`, at most `len`. The kernel never sees that memory, which must
/// live until the operation ends. The result is the count, or 0 if the peer has ended its
/// direction.
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

/// Receives like `upshift_recv_copy` until `data` is full: the result is `len`, or less if the peer
/// has ended its direction. An operation that is dropped early has consumed the bytes that had
/// arrived by then.
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

/// Takes the turn of a call with the caller's memory.
///
/// # Safety
/// The contract of [`turn`].
#[inline]
unsafe fn turn_for<T>(turns: *mut Turns<T>, data: *const u8, len: usize) -> io::Result<Turn<T>> {
    if !is_there(data, len) {
        return Err(invalid());
    }
    // SAFETY: passed on.
    unsafe { turn(turns) }
}

/// Receives into the caller's memory, once or until it is full.
///
/// # Safety
/// The contract of [`upshift_recv_copy`].
#[inline]
unsafe fn recv_copy<const ALL: bool>(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    reader: *mut upshift_reader,
    data: *mut u8,
    len: usize,
) -> c_int {
    // SAFETY: by contract the reader is null, or has not been freed.
    let direction = match unsafe { turn_for(reader.cast::<Turns<Reader>>(), data, len) } {
        Ok(turn) => turn,
        // SAFETY: passed on.
        Err(error) => return unsafe { finish(op, Err::<(), _>(error)) },
    };
    let read = Borrowed::<_, ALL> {
        direction,
        data,
        len,
        done: 0,
    };
    // SAFETY: by contract `op` has room, and `cx` belongs to the current poll.
    unsafe { start(op, cx, read) }
}

/// Writes all of a buffer through the ring: result 0; out.buf is the buffer. On an error an unknown
/// part was sent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_write_all(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    writer: *mut upshift_writer,
    buf: *const upshift_buf,
) -> c_int {
    // SAFETY: by contract the handle and `op` are valid, and the buffer is given away; the future
    // is dropped before its turn.
    unsafe {
        let (mut turn, buf) = match check_arguments(writer.cast::<Turns<Writer>>(), buf) {
            Ok(arguments) => arguments,
            Err(refused) => return finish(op, refused),
        };
        start_on!(Writer, op, cx, turn, |half| half.write_all(buf))
    }
}

/// Writes all of the received bytes, which the operation owns from the call on: result 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_write_bytes(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    writer: *mut upshift_writer,
    bytes: *const upshift_bytes,
) -> c_int {
    if bytes.is_null() {
        // SAFETY: passed on.
        return unsafe { finish(op, Err::<(), _>(invalid())) };
    }
    // SAFETY: by contract the writer and `op` are valid, and the bytes are given away; the future
    // is dropped before its turn.
    unsafe {
        let bytes = bytes.read().into_inner();
        let mut turn = match turn(writer.cast::<Turns<Writer>>()) {
            Ok(turn) => turn,
            Err(error) => return finish(op, Err::<(), _>(error)),
        };
        start_on!(Writer, op, cx, turn, |half| half.write_all(bytes))
    }
}

/// Sends all of `len` bytes by system calls that do not wait. The kernel has copied the bytes when
/// the operation ends, so they need only live until then. The result is `len`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_write_copy(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    writer: *mut upshift_writer,
    data: *const u8,
    len: usize,
) -> c_int {
    // SAFETY: by contract the writer is null, or has not been freed.
    let direction = match unsafe { turn_for(writer.cast::<Turns<Writer>>(), data, len) } {
        Ok(turn) => turn,
        // SAFETY: passed on.
        Err(error) => return unsafe { finish(op, Err::<(), _>(error)) },
    };
    let write = Borrowed::<_, true> {
        direction,
        data: data.cast_mut(),
        len,
        done: 0,
    };
    // SAFETY: by contract `op` has room, and `cx` belongs to the current poll.
    unsafe { start(op, cx, write) }
}

/// Returns the connection's descriptor, which the connection still owns; -EBADF for null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_reader_fd(reader: *const upshift_reader) -> c_int {
    // SAFETY: by contract, or null; an operation under way changes no descriptor.
    match unsafe {
        reader
            .cast::<Turns<Reader>>()
            .as_ref()
            .map(|reader| &*reader.peek())
    } {
        None => -libc::EBADF,
        Some(Reader::Tcp(half)) => half.as_raw_fd(),
        Some(Reader::Unix(half)) => half.as_raw_fd(),
    }
}

/// Frees the receiving direction, after the operation that is under way. Does nothing for null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_reader_free(reader: *mut upshift_reader) {
    if !reader.is_null() {
        // SAFETY: the caller owns the reader and gives it away once.
        catch_panic(|| unsafe { Turns::<Reader>::free(reader.cast()) });
    }
}

/// Tells the peer that no more data follows. Returns 0 or a negative errno; -EBADF for null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_writer_shutdown(writer: *const upshift_writer) -> c_int {
    wall(|| {
        // SAFETY: by contract, or null; `shutdown` needs only a shared reference.
        match unsafe {
            writer
                .cast::<Turns<Writer>>()
                .as_ref()
                .map(|writer| &*writer.peek())
        } {
            None => -libc::EBADF,
            Some(Writer::Tcp(half)) => code(half.shutdown()),
            Some(Writer::Unix(half)) => code(half.shutdown()),
        }
    })
}

/// Frees the sending direction, after the operation that is under way, and ends it for the peer.
/// Does nothing for null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_writer_free(writer: *mut upshift_writer) {
    if !writer.is_null() {
        // SAFETY: the caller owns the writer and gives it away once.
        catch_panic(|| unsafe { Turns::<Writer>::free(writer.cast()) });
    }
}
