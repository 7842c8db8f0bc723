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
use stream::{Reader, Writer, handles, upshift_reader, upshift_writer};

/// A listening socket. One thread at a time.
pub struct upshift_listener(Listener);

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

fn split_tcp(stream: TcpStream) -> Handles {
    let (reader, writer) = stream.into_split();
    handles(Reader::Tcp(reader), Writer::Tcp(writer))
}

fn split_unix(stream: UnixStream) -> Handles {
    let (reader, writer) = stream.into_split();
    handles(Reader::Unix(reader), Writer::Unix(writer))
}

/// Copies a C string. Returns the error `InvalidInput` for null.
///
/// # Safety
/// The pointer is null, or a C string for the duration of the call.
pub(crate) unsafe fn text(string: *const c_char) -> io::Result<String> {
    // SAFETY: the caller upholds the requirements of this call.
    let bytes = unsafe { bytes(string) }?;
    String::from_utf8(bytes).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Copies a path, which may consist of any bytes. Returns the error `InvalidInput` for null.
///
/// # Safety
/// The contract of [`text`].
pub(crate) unsafe fn path(string: *const c_char) -> io::Result<PathBuf> {
    // SAFETY: the caller upholds the requirements of this call.
    unsafe { bytes(string) }.map(|bytes| OsString::from_vec(bytes).into())
}

/// Copies the bytes of a C string. Returns the error `InvalidInput` for null.
///
/// # Safety
/// The contract of [`text`].
unsafe fn bytes(string: *const c_char) -> io::Result<Vec<u8>> {
    if string.is_null() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the caller upholds the requirements of this call.
    Ok(unsafe { CStr::from_ptr(string) }.to_bytes().to_vec())
}

/// Binds `host:port` and listens, with SO_REUSEADDR. If `reuseport` is not 0, also sets
/// SO_REUSEPORT; then `address` must be numeric. Returns 0 or a negative errno. Any thread.
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
        // SAFETY: by contract `address` is null or a C string.
        let bound = unsafe { text(address) }.and_then(|address| {
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
        match bound {
            Ok(bound) => {
                let bound = Box::into_raw(Box::new(upshift_listener(Listener::Tcp(bound))));
                // SAFETY: by contract `listener` has room for a pointer.
                unsafe { listener.write(bound) };
                0
            }
            Err(error) => errno(&error),
        }
    })
}

/// Binds a path and listens. Returns 0 or a negative errno; -EINVAL if the path is empty or has
/// more than 107 bytes. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_listen_unix(
    path: *const c_char,
    listener: *mut *mut upshift_listener,
) -> c_int {
    if listener.is_null() {
        return -libc::EINVAL;
    }
    catch_panic_code(|| {
        // SAFETY: by contract `path` is null or a C string.
        match unsafe { self::path(path) }.and_then(bind_unix) {
            Ok(bound) => {
                let bound = Box::into_raw(Box::new(upshift_listener(Listener::Unix(bound))));
                // SAFETY: by contract `listener` has room for a pointer.
                unsafe { listener.write(bound) };
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

/// Returns the listener's descriptor, which the listener still owns; -EBADF for null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_listener_fd(listener: *const upshift_listener) -> c_int {
    // SAFETY: by contract the pointer is null or valid.
    match unsafe { listener.as_ref() } {
        None => -libc::EBADF,
        Some(upshift_listener(Listener::Tcp(listener))) => listener.as_fd().as_raw_fd(),
        Some(upshift_listener(Listener::Unix(listener))) => listener.as_raw_fd(),
    }
}

/// Frees a listener. Does nothing for null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_listener_free(listener: *mut upshift_listener) {
    // SAFETY: the caller owns the listener and gives it away once.
    unsafe { free(listener) };
}

/// Waits for a connection: out.handles are its reader and its writer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_accept(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    listener: *const upshift_listener,
) -> c_int {
    // SAFETY: by contract the pointer is null, or the listener outlives the operation.
    let Some(listener): Option<&'static upshift_listener> = (unsafe { listener.as_ref() }) else {
        // SAFETY: the caller upholds the requirements of this call.
        return unsafe { finish(op, Err::<(), _>(invalid())) };
    };
    // Accepts are rare, and their state is large, so a box keeps every operation small.
    let accept = Box::pin(async move {
        Ok(match &listener.0 {
            Listener::Tcp(listener) => split_tcp(listener.accept().await?.0),
            Listener::Unix(listener) => split_unix(listener.accept().await?.0),
        })
    });
    // SAFETY: by contract `op` has room, and `cx` belongs to the current poll.
    unsafe { start::<Pin<Box<dyn Future<Output = io::Result<Handles>> + Send>>>(op, cx, accept) }
}

/// Connects to `host:port`: out.handles are the connection's reader and writer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_connect_tcp(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    address: *const c_char,
) -> c_int {
    // SAFETY: by contract `address` is null or a C string.
    let address = unsafe { text(address) };
    let connect = Box::pin(async move { Ok(split_tcp(TcpStream::connect(address?).await?)) });
    // SAFETY: by contract `op` has room, and `cx` belongs to the current poll.
    unsafe { start::<Pin<Box<dyn Future<Output = io::Result<Handles>> + Send>>>(op, cx, connect) }
}

/// Connects to the socket at a path: out.handles are the connection's reader and writer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_connect_unix(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    path: *const c_char,
) -> c_int {
    // SAFETY: by contract `path` is null or a C string.
    let path = unsafe { self::path(path) };
    let connect = Box::pin(async move { Ok(split_unix(UnixStream::connect(path?).await?)) });
    // SAFETY: by contract `op` has room, and `cx` belongs to the current poll.
    unsafe { start::<Pin<Box<dyn Future<Output = io::Result<Handles>> + Send>>>(op, cx, connect) }
}

/// Adopts a connected stream socket, TCP or Unix: the connection owns the descriptor from the call
/// on, also on failure. Returns 0 or a negative errno: -EBADF (no open descriptor), -ENOTSOCK,
/// -EPROTOTYPE (not a stream socket), -EAFNOSUPPORT (neither TCP nor Unix), -EINVAL (a listening
/// socket). Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_stream_from_fd(
    fd: c_int,
    reader: *mut *mut upshift_reader,
    writer: *mut *mut upshift_writer,
) -> c_int {
    catch_panic_code(|| {
        // SAFETY: the caller gives the descriptor away.
        let taken = unsafe { take_fd(fd) };
        if reader.is_null() || writer.is_null() {
            return -libc::EINVAL;
        }
        match taken.and_then(adopt_stream) {
            Ok(Handles(read, write)) => {
                // SAFETY: by contract `reader` and `writer` have room for a pointer.
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

/// Takes ownership of the caller's descriptor, if it is open.
///
/// # Safety
/// The caller gives the descriptor away.
pub(crate) unsafe fn take_fd(fd: c_int) -> io::Result<OwnedFd> {
    // SAFETY: the call takes no pointers, so it has no preconditions.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, and by contract this function is its only owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn adopt_stream(fd: OwnedFd) -> io::Result<Handles> {
    let refused = |code| Err(io::Error::from_raw_os_error(code));
    if socket_option(&fd, libc::SO_TYPE)? != libc::SOCK_STREAM {
        return refused(libc::EPROTOTYPE);
    }
    if socket_option(&fd, libc::SO_ACCEPTCONN)? != 0 {
        return refused(libc::EINVAL);
    }
    match socket_option(&fd, libc::SO_DOMAIN)? {
        libc::AF_UNIX => UnixStream::from_std(fd.into()).map(split_unix),
        libc::AF_INET | libc::AF_INET6 => TcpStream::from_std(fd.into()).map(split_tcp),
        _ => refused(libc::EAFNOSUPPORT),
    }
}

fn socket_option(socket: &OwnedFd, option: c_int) -> io::Result<c_int> {
    let (mut value, mut length): (c_int, libc::socklen_t) = (0, size_of::<c_int>() as _);
    // SAFETY: the pointers are valid for writing the value and its length.
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

pub mod stream;
