//! TCP and Unix sockets: connecting and listening. [`stream`] receives and sends.

use std::ffi::{CStr, OsString, c_char, c_int};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::pin::Pin;

use upshift::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};

use crate::cx::upshift_cx;
use crate::error::{catch_panic_code, errno, free, invalid, look_up};
use crate::op::{Handles, finish, start, upshift_op};
use stream::{Reader, Writer, into_handles, upshift_reader, upshift_writer};

/// A listening socket. It may be used on any thread, but not on several threads at the same time.
/// The caller must not free it before all operations on it have ended.
pub struct upshift_listener(Listener);

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

fn split_tcp(stream: TcpStream) -> Handles {
    let (reader, writer) = stream.into_split();
    into_handles(Reader::Tcp(reader), Writer::Tcp(writer))
}

fn split_unix(stream: UnixStream) -> Handles {
    let (reader, writer) = stream.into_split();
    into_handles(Reader::Unix(reader), Writer::Unix(writer))
}

/// Copies a C string. Returns the error `InvalidInput` if `string` is null or is not UTF-8.
///
/// # Safety
/// `string` is null, or a C string for the duration of the call.
pub(crate) unsafe fn copy_text(string: *const c_char) -> io::Result<String> {
    // SAFETY: the caller guarantees that `string` is null or a C string.
    let bytes = unsafe { copy_bytes(string) }?;
    String::from_utf8(bytes).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Copies a path, which may consist of any bytes. Returns the error `InvalidInput` if `string` is
/// null.
///
/// # Safety
/// The contract of [`copy_text`].
pub(crate) unsafe fn copy_path(string: *const c_char) -> io::Result<PathBuf> {
    // SAFETY: the caller guarantees that `string` is null or a C string.
    unsafe { copy_bytes(string) }.map(|bytes| OsString::from_vec(bytes).into())
}

/// Copies the bytes of a C string. Returns the error `InvalidInput` if `string` is null.
///
/// # Safety
/// The contract of [`copy_text`].
unsafe fn copy_bytes(string: *const c_char) -> io::Result<Vec<u8>> {
    if string.is_null() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: `string` is not null, so the caller guarantees that it is a C string.
    Ok(unsafe { CStr::from_ptr(string) }.to_bytes().to_vec())
}

/// Binds `host:port` and listens, with SO_REUSEADDR. If `reuseport` is not 0, the function also
/// sets SO_REUSEPORT, and `address` must be numeric. The lookup of a host name blocks the thread.
/// Returns 0 or a negative errno. May be called on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_listen_tcp(
    address: *const c_char,
    reuseport: c_int,
    listener: *mut *mut upshift_listener,
) -> c_int {
    if listener.is_null() {
        return -libc::EINVAL;
    }
    catch_panic_code(|| {
        // SAFETY: the caller guarantees that `address` is null or a C string.
        let result = unsafe { copy_text(address) }.and_then(|address| {
            if reuseport == 0 {
                return TcpListener::bind(&*look_up(&address)?);
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
        match result {
            Ok(tcp_listener) => {
                let new_listener =
                    Box::into_raw(Box::new(upshift_listener(Listener::Tcp(tcp_listener))));
                // SAFETY: `listener` is not null, so the caller guarantees that it has room for a
                // pointer.
                unsafe { listener.write(new_listener) };
                0
            }
            Err(error) => errno(&error),
        }
    })
}

/// Binds a path and listens. Returns 0, -EINVAL if the path is null, is empty or has more than 107
/// bytes, or another negative errno. May be called on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_listen_unix(
    path: *const c_char,
    listener: *mut *mut upshift_listener,
) -> c_int {
    if listener.is_null() {
        return -libc::EINVAL;
    }
    catch_panic_code(|| {
        // SAFETY: the caller guarantees that `path` is null or a C string.
        match unsafe { copy_path(path) }.and_then(bind_unix) {
            Ok(unix_listener) => {
                let new_listener =
                    Box::into_raw(Box::new(upshift_listener(Listener::Unix(unix_listener))));
                // SAFETY: `listener` is not null, so the caller guarantees that it has room for a
                // pointer.
                unsafe { listener.write(new_listener) };
                0
            }
            Err(error) => errno(&error),
        }
    })
}

/// Binds a path. An empty path is an error here, because the standard library gives it an
/// unpredictable name.
fn bind_unix(path: PathBuf) -> io::Result<UnixListener> {
    if path.as_os_str().is_empty() {
        Err(io::ErrorKind::InvalidInput.into())
    } else {
        UnixListener::bind(path)
    }
}

/// Returns the descriptor of the listener, which still owns it, or -EBADF if `listener` is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_listener_fd(listener: *const upshift_listener) -> c_int {
    // SAFETY: the caller guarantees that `listener` is null or valid.
    match unsafe { listener.as_ref() } {
        None => -libc::EBADF,
        Some(upshift_listener(Listener::Tcp(listener))) => listener.as_fd().as_raw_fd(),
        Some(upshift_listener(Listener::Unix(listener))) => listener.as_raw_fd(),
    }
}

/// Frees a listener. Does nothing for null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_listener_free(listener: *mut upshift_listener) {
    // SAFETY: the caller guarantees that the pointer is null or its own listener, which it frees
    // once.
    unsafe { free(listener) };
}

/// Waits for a connection. The result is 0 on success, and `out.handles` are the reader and the
/// writer of the connection.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_accept(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    listener: *const upshift_listener,
) -> c_int {
    // SAFETY: the caller guarantees that `listener` is null or outlives the operation.
    let Some(listener): Option<&'static upshift_listener> = (unsafe { listener.as_ref() }) else {
        // SAFETY: the caller guarantees that `op` is null or has room for an operation.
        return unsafe { finish(op, Err::<(), _>(invalid())) };
    };
    // Accepts are rare, and their state is large, so a box keeps every operation small.
    let future = Box::pin(async move {
        Ok(match &listener.0 {
            Listener::Tcp(listener) => split_tcp(listener.accept().await?.0),
            Listener::Unix(listener) => split_unix(listener.accept().await?.0),
        })
    });
    // SAFETY: the caller guarantees that `op` is null or has room for an operation, and that `cx`
    // is null or belongs to the current poll.
    unsafe { start::<Pin<Box<dyn Future<Output = io::Result<Handles>> + Send>>>(op, cx, future) }
}

/// Connects to `host:port`. The result is 0 on success, and `out.handles` are the reader and the
/// writer of the connection.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_connect_tcp(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    address: *const c_char,
) -> c_int {
    // SAFETY: the caller guarantees that `address` is null or a C string.
    let address = unsafe { copy_text(address) };
    let future = Box::pin(async move { Ok(split_tcp(TcpStream::connect(address?).await?)) });
    // SAFETY: the caller guarantees that `op` is null or has room for an operation, and that `cx`
    // is null or belongs to the current poll.
    unsafe { start::<Pin<Box<dyn Future<Output = io::Result<Handles>> + Send>>>(op, cx, future) }
}

/// Connects to the Unix socket at a path. The result is 0 on success, and `out.handles` are the
/// reader and the writer of the connection.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_connect_unix(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    path: *const c_char,
) -> c_int {
    // SAFETY: the caller guarantees that `path` is null or a C string.
    let path = unsafe { copy_path(path) };
    let future = Box::pin(async move { Ok(split_unix(UnixStream::connect(path?).await?)) });
    // SAFETY: the caller guarantees that `op` is null or has room for an operation, and that `cx`
    // is null or belongs to the current poll.
    unsafe { start::<Pin<Box<dyn Future<Output = io::Result<Handles>> + Send>>>(op, cx, future) }
}

/// Adopts a connected stream socket, TCP or Unix. The function owns the descriptor from the call
/// on, also on failure. Returns 0 or a negative errno, such as -EBADF (the descriptor is not open),
/// -ENOTSOCK, -EPROTOTYPE (the socket is not a stream socket), -EAFNOSUPPORT (the socket is neither
/// TCP nor Unix), or -EINVAL (the socket listens, or `reader` or `writer` is null). May be called
/// on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_stream_from_fd(
    fd: c_int,
    reader: *mut *mut upshift_reader,
    writer: *mut *mut upshift_writer,
) -> c_int {
    catch_panic_code(|| {
        // SAFETY: the caller guarantees that it owns the descriptor, which it gives away.
        let descriptor = unsafe { take_fd(fd) };
        if reader.is_null() || writer.is_null() {
            return -libc::EINVAL;
        }
        match descriptor.and_then(adopt_stream) {
            Ok(Handles(new_reader, new_writer)) => {
                // SAFETY: neither pointer is null, so the caller guarantees that both have room for
                // a pointer.
                unsafe {
                    reader.write(new_reader.cast());
                    writer.write(new_writer.cast());
                }
                0
            }
            Err(error) => errno(&error),
        }
    })
}

/// Takes ownership of the caller's descriptor, if it is open.
///
/// # Safety
/// The caller gives the descriptor away.
pub(crate) unsafe fn take_fd(fd: c_int) -> io::Result<OwnedFd> {
    // SAFETY: the call takes no pointers, so it has no preconditions.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, and the caller guarantees that this function is its only
    // owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn adopt_stream(fd: OwnedFd) -> io::Result<Handles> {
    let failure = |code| Err(io::Error::from_raw_os_error(code));
    if socket_option(&fd, libc::SO_TYPE)? != libc::SOCK_STREAM {
        return failure(libc::EPROTOTYPE);
    }
    if socket_option(&fd, libc::SO_ACCEPTCONN)? != 0 {
        return failure(libc::EINVAL);
    }
    match socket_option(&fd, libc::SO_DOMAIN)? {
        libc::AF_UNIX => UnixStream::from_std(fd.into()).map(split_unix),
        libc::AF_INET | libc::AF_INET6 => TcpStream::from_std(fd.into()).map(split_tcp),
        _ => failure(libc::EAFNOSUPPORT),
    }
}

fn socket_option(socket: &OwnedFd, option: c_int) -> io::Result<c_int> {
    let (mut value, mut length): (c_int, libc::socklen_t) = (0, size_of::<c_int>() as _);
    // SAFETY: the pointers are valid for writing the value and its length.
    let status = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    match status {
        0 => Ok(value),
        _ => Err(io::Error::last_os_error()),
    }
}

pub mod stream;
