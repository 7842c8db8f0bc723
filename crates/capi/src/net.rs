//! TCP and Unix connections, and what listens for them.
//!
//! A connection is two handles, one per direction, so that a coroutine may receive while another one sends. It closes when both are freed.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_io::{AsyncRead, AsyncWrite};
use upshift::net::{self, TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};

use crate::buf::{Buf, lent, lent_mut, upshift_buf, upshift_bytes};
use crate::cx::upshift_cx;
use crate::error::{code, errno, quietly, wall};
use crate::op::{Handles, start, upshift_op};

/// Listens. One thread at a time.
pub struct upshift_listener(Listener);

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// The receiving direction of a connection. One thread at a time, one operation at a time; it outlives its operations.
pub struct upshift_reader(Reader);

enum Reader {
    Tcp(net::OwnedReadHalf),
    Unix(net::unix::OwnedReadHalf),
}

/// The sending direction of a connection. One thread at a time, one operation at a time; it outlives its operations.
pub struct upshift_writer(Writer);

enum Writer {
    Tcp(net::OwnedWriteHalf),
    Unix(net::unix::OwnedWriteHalf),
}

fn handles(reader: Reader, writer: Writer) -> Handles {
    let reader: *mut c_void = Box::into_raw(Box::new(upshift_reader(reader))).cast();
    let writer: *mut c_void = Box::into_raw(Box::new(upshift_writer(writer))).cast();
    Handles(reader, writer)
}

fn of_tcp(stream: TcpStream) -> Handles {
    let (reader, writer) = stream.into_split();
    handles(Reader::Tcp(reader), Writer::Tcp(writer))
}

fn of_unix(stream: UnixStream) -> Handles {
    let (reader, writer) = stream.into_split();
    handles(Reader::Unix(reader), Writer::Unix(writer))
}

/// A string of the other side.
///
/// # Safety
/// It is one, for the length of the call.
pub(crate) unsafe fn text(string: *const c_char) -> io::Result<String> {
    // SAFETY: passed on.
    let bytes = unsafe { CStr::from_ptr(string) }.to_bytes();
    String::from_utf8(bytes.to_vec()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Binds `host:port` and listens, with SO_REUSEADDR. `reuseport` not 0: with SO_REUSEPORT too, and then `address` is numbers. 0 or a negative errno. Any
/// thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_listen_tcp(
    address: *const c_char,
    reuseport: c_int,
    listener: *mut *mut upshift_listener,
) -> c_int {
    wall(|| {
        // SAFETY: by contract.
        let bound = unsafe { text(address) }.and_then(|address| {
            if reuseport == 0 {
                return TcpListener::bind(&*address);
            }
            let address: std::net::SocketAddr = address
                .parse()
                .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
            let socket = if address.is_ipv6() {
                TcpSocket::new_v6()
            } else {
                TcpSocket::new_v4()
            }?;
            socket.set_reuseaddr(true)?;
            socket.set_reuseport(true)?;
            socket.bind(address)?;
            socket.listen(1024)
        });
        match bound {
            Ok(bound) => {
                let bound = Box::into_raw(Box::new(upshift_listener(Listener::Tcp(bound))));
                // SAFETY: by contract room for it.
                unsafe { listener.write(bound) };
                0
            }
            Err(error) => errno(&error),
        }
    })
}

/// Binds a path and listens. 0 or a negative errno; -EINVAL: the path is empty, or has more than 107 bytes. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_listen_unix(
    path: *const c_char,
    listener: *mut *mut upshift_listener,
) -> c_int {
    wall(|| {
        // SAFETY: by contract.
        match unsafe { text(path) }.and_then(bind_unix) {
            Ok(bound) => {
                let bound = Box::into_raw(Box::new(upshift_listener(Listener::Unix(bound))));
                // SAFETY: by contract room for it.
                unsafe { listener.write(bound) };
                0
            }
            Err(error) => errno(&error),
        }
    })
}

/// The standard library gives an empty path a name that nobody knows.
fn bind_unix(path: String) -> io::Result<UnixListener> {
    match path.is_empty() {
        true => Err(io::ErrorKind::InvalidInput.into()),
        false => UnixListener::bind(path),
    }
}

/// The listener's descriptor, which stays its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_listener_fd(listener: *const upshift_listener) -> c_int {
    // SAFETY: by contract.
    match unsafe { &(*listener).0 } {
        Listener::Tcp(listener) => listener.as_fd().as_raw_fd(),
        Listener::Unix(listener) => listener.as_raw_fd(),
    }
}

/// Gives a listener back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_listener_free(listener: *mut upshift_listener) {
    // SAFETY: the caller's, once.
    quietly(|| drop(unsafe { Box::from_raw(listener) }));
}

/// Waits for a connection: out.handles are its reader and its writer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_accept(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    listener: *const upshift_listener,
) -> c_int {
    // SAFETY: by contract it outlives the operation.
    let listener: &'static upshift_listener = unsafe { &*listener };
    // Waits seldom and long: its state is not worth room in every operation.
    let accept = Box::pin(async move {
        Ok(match &listener.0 {
            Listener::Tcp(listener) => of_tcp(listener.accept().await?.0),
            Listener::Unix(listener) => of_unix(listener.accept().await?.0),
        })
    });
    // SAFETY: by contract.
    unsafe { start::<Pin<Box<dyn Future<Output = io::Result<Handles>> + Send>>>(op, cx, accept) }
}

/// Connects to `host:port`: out.handles are the connection's reader and writer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_connect_tcp(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    address: *const c_char,
) -> c_int {
    // SAFETY: by contract.
    let address = unsafe { text(address) };
    let connect = Box::pin(async move { Ok(of_tcp(TcpStream::connect(address?).await?)) });
    // SAFETY: by contract.
    unsafe { start::<Pin<Box<dyn Future<Output = io::Result<Handles>> + Send>>>(op, cx, connect) }
}

/// Connects to the socket at a path: out.handles are the connection's reader and writer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_connect_unix(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    path: *const c_char,
) -> c_int {
    // SAFETY: by contract.
    let path = unsafe { text(path) };
    let connect = Box::pin(async move { Ok(of_unix(UnixStream::connect(path?).await?)) });
    // SAFETY: by contract.
    unsafe { start::<Pin<Box<dyn Future<Output = io::Result<Handles>> + Send>>>(op, cx, connect) }
}

/// Takes a connected stream socket over, TCP or Unix: its descriptor is the connection's from the call on, also when it fails. 0 or a negative errno: -EBADF (no
/// open descriptor), -ENOTSOCK, -EPROTOTYPE (a socket that is no stream), -EAFNOSUPPORT (neither TCP nor Unix), -EINVAL (it listens). Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_stream_from_fd(
    fd: c_int,
    reader: *mut *mut upshift_reader,
    writer: *mut *mut upshift_writer,
) -> c_int {
    wall(|| {
        // SAFETY: the caller gives it away.
        match unsafe { owned(fd) }.and_then(stream_of) {
            Ok(Handles(read, write)) => {
                // SAFETY: by contract room for both.
                unsafe {
                    reader.write(read.cast());
                    writer.write(write.cast());
                }
                0
            }
            Err(error) => errno(&error),
        }
    })
}

/// A descriptor of the other side, if it is open.
///
/// # Safety
/// It is given away.
pub(crate) unsafe fn owned(fd: c_int) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: open, and by contract nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn stream_of(fd: OwnedFd) -> io::Result<Handles> {
    let refused = |code| Err(io::Error::from_raw_os_error(code));
    if asked(&fd, libc::SO_TYPE)? != libc::SOCK_STREAM {
        return refused(libc::EPROTOTYPE);
    }
    if asked(&fd, libc::SO_ACCEPTCONN)? != 0 {
        return refused(libc::EINVAL);
    }
    match asked(&fd, libc::SO_DOMAIN)? {
        libc::AF_UNIX => UnixStream::from_std(fd.into()).map(of_unix),
        libc::AF_INET | libc::AF_INET6 => TcpStream::from_std(fd.into()).map(of_tcp),
        _ => refused(libc::EAFNOSUPPORT),
    }
}

/// What a socket is.
fn asked(socket: &OwnedFd, option: c_int) -> io::Result<c_int> {
    let (mut value, mut length): (c_int, libc::socklen_t) = (0, size_of::<c_int>() as _);
    // SAFETY: both are room for what is asked for.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    match answer {
        0 => Ok(value),
        _ => Err(io::Error::last_os_error()),
    }
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
