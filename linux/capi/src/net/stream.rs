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

/// The receiving direction of a connection. It may be used on any thread, but not on several
/// threads at the same time. Only one operation at a time may use it: a second operation fails with
/// -EBUSY.
pub struct upshift_reader {
    _private: [u8; 0],
}

pub(super) enum Reader {
    Tcp(net::OwnedReadHalf),
    Unix(net::unix::OwnedReadHalf),
}

/// The sending direction of a connection. It may be used on any thread, but not on several threads
/// at the same time. Only one operation at a time may use it: a second operation fails with -EBUSY.
pub struct upshift_writer {
    _private: [u8; 0],
}

pub(super) enum Writer {
    Tcp(net::OwnedWriteHalf),
    Unix(net::unix::OwnedWriteHalf),
}

pub(super) fn into_handles(reader: Reader, writer: Writer) -> Handles {
    let fd = match &reader {
        Reader::Tcp(half) => half.as_raw_fd(),
        Reader::Unix(half) => half.as_raw_fd(),
    };
    let reader: *mut c_void = Exclusive::new_raw(reader, fd).cast();
    let writer: *mut c_void = Exclusive::new_raw(writer, fd).cast();
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

/// Waits for data, in a buffer of the runtime. The result is the number of bytes received, or 0 if
/// the peer has ended its direction. The bytes are returned in `out.bytes`. Dropping the operation
/// early loses no data.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_recv(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    reader: *mut upshift_reader,
) -> c_int {
    // SAFETY: the caller guarantees that `reader` is null or has not been freed, that `op` is null
    // or has room for an operation, and that `cx` is null or belongs to the current poll. `WithUse`
    // drops the future before its exclusive use ends.
    unsafe {
        let mut exclusive_use = match begin_use(reader.cast::<Exclusive<Reader>>()) {
            Ok(exclusive_use) => exclusive_use,
            Err(error) => return finish(op, Err::<(), _>(error)),
        };
        start_on!(Reader, op, cx, exclusive_use, |half| half.recv())
    }
}

/// Receives into a buffer, up to its capacity. The result is the number of bytes received, or 0 if
/// the peer has ended its direction. The buffer is returned in `out.buf`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_recv_into(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    reader: *mut upshift_reader,
    buf: *const upshift_buf,
) -> c_int {
    // SAFETY: the caller guarantees that `reader` is null or has not been freed, that `buf` is null
    // or points to a buffer that is given away, that `op` is null or has room for an operation, and
    // that `cx` is null or belongs to the current poll. `WithUse` drops the future before its
    // exclusive use ends.
    unsafe {
        let (mut exclusive_use, buf) =
            match check_arguments(reader.cast::<Exclusive<Reader>>(), buf) {
                Ok(arguments) => arguments,
                Err(outcome) => return finish(op, outcome),
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
    // SAFETY: the caller guarantees that `value` is null or has not been freed, and that `buf` is
    // null or points to a buffer that is given away.
    match unsafe { (Buf::from_caller(buf), begin_use(value)) } {
        (Ok(buf), Ok(exclusive_use)) => Ok((exclusive_use, buf)),
        (Ok(buf), Err(error)) => Err((Err(error), buf)),
        (Err(buf), _) => Err((Err(invalid()), buf)),
    }
}

/// A transfer from or to the caller's memory, which is accessed only during the operation's polls.
struct MemoryTransfer<D, const ALL: bool> {
    direction: D,
    data: *mut u8,
    len: usize,
    bytes_done: usize,
}

impl<const ALL: bool> Future for MemoryTransfer<ExclusiveUse<Reader>, ALL> {
    type Output = io::Result<usize>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if ALL && this.len == 0 {
            return Poll::Ready(Ok(0));
        }
        loop {
            // SAFETY: the caller of the ABI guarantees that `data` is valid for `len` bytes until
            // the operation ends, and that no other code uses these bytes.
            let room = unsafe {
                borrow_slice_mut(this.data.add(this.bytes_done), this.len - this.bytes_done)
            };
            let result = match &mut *this.direction {
                Reader::Tcp(half) => Pin::new(half).poll_read(cx, room),
                Reader::Unix(half) => Pin::new(half).poll_read(cx, room),
            };
            let count = ready!(result)?;
            this.bytes_done += count;
            if !ALL || count == 0 || this.bytes_done == this.len {
                return Poll::Ready(Ok(this.bytes_done));
            }
        }
    }
}

impl Future for MemoryTransfer<ExclusiveUse<Writer>, true> {
    type Output = io::Result<usize>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        while this.bytes_done < this.len {
            // SAFETY: the caller of the ABI guarantees that `data` is valid for `len` bytes until
            // the operation ends.
            let rest =
                unsafe { borrow_slice(this.data.add(this.bytes_done), this.len - this.bytes_done) };
            let result = match &mut *this.direction {
                Writer::Tcp(half) => Pin::new(half).poll_write(cx, rest),
                Writer::Unix(half) => Pin::new(half).poll_write(cx, rest),
            };
            match result {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(count)) => this.bytes_done += count,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(this.bytes_done))
    }
}

/// Copies received bytes to `data`, at most `len`. The memory is never given to the kernel's ring.
/// It must be valid until the operation ends. The result is the number of bytes copied, or 0 if the
/// peer has ended its direction.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_recv_copy(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    reader: *mut upshift_reader,
    data: *mut u8,
    len: usize,
) -> c_int {
    // SAFETY: the caller guarantees that `reader` is null or has not been freed, that `data` is
    // null or valid for `len` bytes until the operation ends, that `op` is null or has room for an
    // operation, and that `cx` is null or belongs to the current poll.
    unsafe { recv_copy::<false>(op, cx, reader, data, len) }
}

/// Receives like `upshift_recv_copy` until `data` is full. The result is `len`, or less if the peer
/// has ended its direction. If the operation is dropped before it is ready, the bytes that it has
/// received are lost.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_recv_exact(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    reader: *mut upshift_reader,
    data: *mut u8,
    len: usize,
) -> c_int {
    // SAFETY: the caller guarantees that `reader` is null or has not been freed, that `data` is
    // null or valid for `len` bytes until the operation ends, that `op` is null or has room for an
    // operation, and that `cx` is null or belongs to the current poll.
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
    // SAFETY: the caller guarantees that `value` is null or has not been freed.
    unsafe { begin_use(value) }
}

/// Receives into the caller's memory, once or until it is full.
///
/// # Safety
/// The contract of [`begin_use`]. `data` is null, or valid for `len` bytes until the operation
/// ends. `op` and `cx` fulfil the contract of [`start`].
#[inline]
unsafe fn recv_copy<const ALL: bool>(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    reader: *mut upshift_reader,
    data: *mut u8,
    len: usize,
) -> c_int {
    // SAFETY: the caller guarantees that `reader` is null or has not been freed.
    let direction =
        match unsafe { begin_use_with_memory(reader.cast::<Exclusive<Reader>>(), data, len) } {
            Ok(exclusive_use) => exclusive_use,
            // SAFETY: the caller guarantees that `op` is null or has room for an operation.
            Err(error) => return unsafe { finish(op, Err::<(), _>(error)) },
        };
    let operation = MemoryTransfer::<_, ALL> {
        direction,
        data,
        len,
        bytes_done: 0,
    };
    // SAFETY: the caller guarantees that `op` is null or has room for an operation, and that `cx`
    // is null or belongs to the current poll.
    unsafe { start(op, cx, operation) }
}

/// Sends all bytes of a buffer through the ring. The result is 0 on success. The buffer is returned
/// in `out.buf`. After an error an unknown part of the bytes has been sent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_write_all(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    writer: *mut upshift_writer,
    buf: *const upshift_buf,
) -> c_int {
    // SAFETY: the caller guarantees that `writer` is null or has not been freed, that `buf` is null
    // or points to a buffer that is given away, that `op` is null or has room for an operation, and
    // that `cx` is null or belongs to the current poll. `WithUse` drops the future before its
    // exclusive use ends.
    unsafe {
        let (mut exclusive_use, buf) =
            match check_arguments(writer.cast::<Exclusive<Writer>>(), buf) {
                Ok(arguments) => arguments,
                Err(outcome) => return finish(op, outcome),
            };
        start_on!(Writer, op, cx, exclusive_use, |half| half.write_all(buf))
    }
}

/// Sends all bytes of `bytes`, which the operation owns from the call on. The result is 0 on
/// success.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_write_bytes(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    writer: *mut upshift_writer,
    bytes: *const upshift_bytes,
) -> c_int {
    if bytes.is_null() {
        // SAFETY: the caller guarantees that `op` is null or has room for an operation.
        return unsafe { finish(op, Err::<(), _>(invalid())) };
    }
    // SAFETY: the caller guarantees that `writer` is null or has not been freed, that `bytes` is
    // valid and its bytes are given away, that `op` is null or has room for an operation, and that
    // `cx` is null or belongs to the current poll. `WithUse` drops the future before its exclusive
    // use ends.
    unsafe {
        let bytes = bytes.read().into_inner();
        let mut exclusive_use = match begin_use(writer.cast::<Exclusive<Writer>>()) {
            Ok(exclusive_use) => exclusive_use,
            Err(error) => return finish(op, Err::<(), _>(error)),
        };
        start_on!(Writer, op, cx, exclusive_use, |half| half.write_all(bytes))
    }
}

/// Sends all of `len` bytes by system calls that do not wait. The kernel copies the bytes, which
/// must be valid until the operation ends. The result is `len` on success.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_write_copy(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    writer: *mut upshift_writer,
    data: *const u8,
    len: usize,
) -> c_int {
    // SAFETY: the caller guarantees that `writer` is null or has not been freed.
    let direction =
        match unsafe { begin_use_with_memory(writer.cast::<Exclusive<Writer>>(), data, len) } {
            Ok(exclusive_use) => exclusive_use,
            // SAFETY: the caller guarantees that `op` is null or has room for an operation.
            Err(error) => return unsafe { finish(op, Err::<(), _>(error)) },
        };
    let operation = MemoryTransfer::<_, true> {
        direction,
        data: data.cast_mut(),
        len,
        bytes_done: 0,
    };
    // SAFETY: the caller guarantees that `op` is null or has room for an operation, and that `cx`
    // is null or belongs to the current poll.
    unsafe { start(op, cx, operation) }
}

/// Returns the descriptor of the connection, which still owns it, or -EBADF if `reader` is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_reader_fd(reader: *const upshift_reader) -> c_int {
    // SAFETY: the caller guarantees that `reader` is null or has not been freed.
    let reader = unsafe { reader.cast::<Exclusive<Reader>>().as_ref() };
    reader.map_or(-libc::EBADF, Exclusive::fd)
}

/// Frees the receiving direction. If an operation uses it, this happens when the operation ends.
/// Does nothing for null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_reader_free(reader: *mut upshift_reader) {
    if !reader.is_null() {
        // SAFETY: `reader` is not null, so the caller guarantees that it is its own reader, which
        // it frees once.
        catch_panic(|| unsafe { Exclusive::<Reader>::free(reader.cast()) });
    }
}

/// Tells the peer that no more data follows. Returns 0, -EBADF if `writer` is null, or another
/// negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_writer_shutdown(writer: *const upshift_writer) -> c_int {
    catch_panic_code(|| {
        // SAFETY: the caller guarantees that `writer` is null or has not been freed.
        let Some(writer) = (unsafe { writer.cast::<Exclusive<Writer>>().as_ref() }) else {
            return -libc::EBADF;
        };
        // SAFETY: the call accesses no memory, and the writer keeps the descriptor open.
        match unsafe { libc::shutdown(writer.fd(), libc::SHUT_WR) } {
            0 => 0,
            _ => code(Err(io::Error::last_os_error())),
        }
    })
}

/// Frees the sending direction, and tells the peer that no more data follows. If an operation uses
/// it, this happens when the operation ends. Does nothing for null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_writer_free(writer: *mut upshift_writer) {
    if !writer.is_null() {
        // SAFETY: `writer` is not null, so the caller guarantees that it is its own writer, which
        // it frees once.
        catch_panic(|| unsafe { Exclusive::<Writer>::free(writer.cast()) });
    }
}
