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

use crate::buf::{Buf, borrow_slice, borrow_slice_mut, is_valid_slice, upshift_buf, upshift_bytes};
use crate::cx::upshift_cx;
use crate::error::{catch_panic, catch_panic_code, code, invalid};
use crate::exclusive::{Exclusive, ExclusiveUse, WithUse, begin_use};
use crate::op::{Handles, finish, start, upshift_op};

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
    let reader: *mut c_void = Exclusive::new_raw(reader).cast();
    let writer: *mut c_void = Exclusive::new_raw(writer).cast();
    Handles(reader, writer)
}

/// Starts an operation on a reader or writer of either kind of socket. The kind is examined here
/// rather than in each poll, so that the operation holds the future of one kind only.
macro_rules! start_on {
    ($kind:ident, $op:ident, $cx:ident, $exclusive_use:ident, |$half:ident| $future:expr) => {
        match $exclusive_use.lend() {
            $kind::Tcp($half) => start($op, $cx, WithUse::new($future, $exclusive_use)),
            $kind::Unix($half) => start($op, $cx, WithUse::new($future, $exclusive_use)),
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
    // SAFETY: by contract the reader and `op` are valid; the future is dropped before its
    // exclusive use ends.
    unsafe {
        let mut exclusive_use = match begin_use(reader.cast::<Exclusive<Reader>>()) {
            Ok(exclusive_use) => exclusive_use,
            Err(error) => return finish(op, Err::<(), _>(error)),
        };
        start_on!(Reader, op, cx, exclusive_use, |half| half.recv())
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
    // is dropped before its exclusive use ends.
    unsafe {
        let (mut exclusive_use, buf) =
            match check_arguments(reader.cast::<Exclusive<Reader>>(), buf) {
                Ok(arguments) => arguments,
                Err(refused) => return finish(op, refused),
            };
        start_on!(Reader, op, cx, exclusive_use, |half| half.read(buf))
    }
}

/// Begins the use and checks the buffer of a call. Returns both, or the error and the buffer to
/// give back.
///
/// # Safety
/// The contracts of [`begin_use`] and [`Buf::from_caller`].
#[inline]
unsafe fn check_arguments<T>(
    value: *mut Exclusive<T>,
    buf: *const upshift_buf,
) -> Result<(ExclusiveUse<T>, Buf), (io::Result<usize>, Buf)> {
    // SAFETY: the caller upholds the requirements of this call.
    match unsafe { (Buf::from_caller(buf), begin_use(value)) } {
        (Ok(buf), Ok(exclusive_use)) => Ok((exclusive_use, buf)),
        (Ok(buf), Err(error)) => Err((Err(error), buf)),
        (Err(buf), _) => Err((Err(invalid()), buf)),
    }
}

/// An operation that works on the caller's memory, and only during its own polls.
struct Borrowed<D, const ALL: bool> {
    direction: D,
    data: *mut u8,
    len: usize,
    bytes_done: usize,
}

impl<const ALL: bool> Future for Borrowed<ExclusiveUse<Reader>, ALL> {
    type Output = io::Result<usize>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if ALL && this.len == 0 {
            return Poll::Ready(Ok(0));
        }
        loop {
            // SAFETY: by contract the memory is valid until the operation ends.
            let room = unsafe {
                borrow_slice_mut(this.data.add(this.bytes_done), this.len - this.bytes_done)
            };
            let read = match &mut *this.direction {
                Reader::Tcp(half) => Pin::new(half).poll_read(cx, room),
                Reader::Unix(half) => Pin::new(half).poll_read(cx, room),
            };
            let count = ready!(read)?;
            this.bytes_done += count;
            if !ALL || count == 0 || this.bytes_done == this.len {
                return Poll::Ready(Ok(this.bytes_done));
            }
        }
    }
}

impl Future for Borrowed<ExclusiveUse<Writer>, true> {
    type Output = io::Result<usize>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        while this.bytes_done < this.len {
            // SAFETY: by contract the memory is valid until the operation ends.
            let rest =
                unsafe { borrow_slice(this.data.add(this.bytes_done), this.len - this.bytes_done) };
            let sent = match &mut *this.direction {
                Writer::Tcp(half) => Pin::new(half).poll_write(cx, rest),
                Writer::Unix(half) => Pin::new(half).poll_write(cx, rest),
            };
            match sent {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(count)) => this.bytes_done += count,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(this.bytes_done))
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
    // SAFETY: the caller upholds the requirements of this call.
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
    // SAFETY: the caller upholds the requirements of this call.
    unsafe { recv_copy::<true>(op, cx, reader, data, len) }
}

/// Checks the memory of a call and begins the exclusive use.
///
/// # Safety
/// The contract of [`begin_use`].
#[inline]
unsafe fn begin_use_with_memory<T>(
    value: *mut Exclusive<T>,
    data: *const u8,
    len: usize,
) -> io::Result<ExclusiveUse<T>> {
    if !is_valid_slice(data, len) {
        return Err(invalid());
    }
    // SAFETY: the caller upholds the requirements of this call.
    unsafe { begin_use(value) }
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
    let direction =
        match unsafe { begin_use_with_memory(reader.cast::<Exclusive<Reader>>(), data, len) } {
            Ok(exclusive_use) => exclusive_use,
            // SAFETY: the caller upholds the requirements of this call.
            Err(error) => return unsafe { finish(op, Err::<(), _>(error)) },
        };
    let read = Borrowed::<_, ALL> {
        direction,
        data,
        len,
        bytes_done: 0,
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
    // is dropped before its exclusive use ends.
    unsafe {
        let (mut exclusive_use, buf) =
            match check_arguments(writer.cast::<Exclusive<Writer>>(), buf) {
                Ok(arguments) => arguments,
                Err(refused) => return finish(op, refused),
            };
        start_on!(Writer, op, cx, exclusive_use, |half| half.write_all(buf))
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
        // SAFETY: the caller upholds the requirements of this call.
        return unsafe { finish(op, Err::<(), _>(invalid())) };
    }
    // SAFETY: by contract the writer and `op` are valid, and the bytes are given away; the future
    // is dropped before its exclusive use ends.
    unsafe {
        let bytes = bytes.read().into_inner();
        let mut exclusive_use = match begin_use(writer.cast::<Exclusive<Writer>>()) {
            Ok(exclusive_use) => exclusive_use,
            Err(error) => return finish(op, Err::<(), _>(error)),
        };
        start_on!(Writer, op, cx, exclusive_use, |half| half.write_all(bytes))
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
    let direction =
        match unsafe { begin_use_with_memory(writer.cast::<Exclusive<Writer>>(), data, len) } {
            Ok(exclusive_use) => exclusive_use,
            // SAFETY: the caller upholds the requirements of this call.
            Err(error) => return unsafe { finish(op, Err::<(), _>(error)) },
        };
    let write = Borrowed::<_, true> {
        direction,
        data: data.cast_mut(),
        len,
        bytes_done: 0,
    };
    // SAFETY: by contract `op` has room, and `cx` belongs to the current poll.
    unsafe { start(op, cx, write) }
}

/// Returns the connection's descriptor, which the connection still owns; -EBADF for null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_reader_fd(reader: *const upshift_reader) -> c_int {
    // SAFETY: by contract the pointer is null or valid, and an operation under way changes no
    // descriptor.
    match unsafe {
        reader
            .cast::<Exclusive<Reader>>()
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
        catch_panic(|| unsafe { Exclusive::<Reader>::free(reader.cast()) });
    }
}

/// Tells the peer that no more data follows. Returns 0 or a negative errno; -EBADF for null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_writer_shutdown(writer: *const upshift_writer) -> c_int {
    catch_panic_code(|| {
        // SAFETY: by contract the pointer is null or valid, and `shutdown` needs only a shared
        // reference.
        match unsafe {
            writer
                .cast::<Exclusive<Writer>>()
                .as_ref()
                .map(|writer| &*writer.peek())
        } {
            None => -libc::EBADF,
            Some(Writer::Tcp(half)) => code(half.shutdown()),
            Some(Writer::Unix(half)) => code(half.shutdown()),
        }
    })
}

/// Frees the sending direction, after the operation that is under way, and tells the peer that no
/// more data follows. Does nothing for null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_writer_free(writer: *mut upshift_writer) {
    if !writer.is_null() {
        // SAFETY: the caller owns the writer and gives it away once.
        catch_panic(|| unsafe { Exclusive::<Writer>::free(writer.cast()) });
    }
}
