//! UDP sockets. Operations use the caller's memory only during a poll, never between polls.

use std::ffi::{c_char, c_int};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::pin::Pin;

use upshift::net::UdpSocket;

use crate::buf::{borrow_slice, borrow_slice_mut, is_valid_slice};
use crate::cx::upshift_cx;
use crate::error::{catch_panic_code, errno, free, invalid, look_up};
use crate::net::copy_text;
use crate::op::{Outcome, finish, start, upshift_op};

/// A UDP socket. It may be used on any thread, and on several threads at the same time. The caller
/// must not free it before all operations on it have ended.
pub struct upshift_udp(UdpSocket);

/// An internet address.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct upshift_addr {
    /// Version of the internet protocol: 4 or 6.
    pub version: u16,
    /// The port, in host byte order.
    pub port: u16,
    /// The scope id of an IPv6 address that needs one, or 0.
    pub scope: u32,
    /// The address in network byte order: 4 or 16 bytes.
    pub ip: [u8; 16],
}

impl From<SocketAddr> for upshift_addr {
    fn from(address: SocketAddr) -> upshift_addr {
        let mut result = upshift_addr {
            version: 4,
            port: address.port(),
            scope: 0,
            ip: [0; 16],
        };
        match address {
            SocketAddr::V4(address) => result.ip[..4].copy_from_slice(&address.ip().octets()),
            SocketAddr::V6(address) => {
                result.version = 6;
                result.scope = address.scope_id();
                result.ip = address.ip().octets();
            }
        }
        result
    }
}

impl From<upshift_addr> for SocketAddr {
    fn from(address: upshift_addr) -> SocketAddr {
        if address.version == 6 {
            let mut v6 = std::net::SocketAddrV6::new(address.ip.into(), address.port, 0, 0);
            v6.set_scope_id(address.scope);
            return v6.into();
        }
        let [a, b, c, d, ..] = address.ip;
        (IpAddr::from([a, b, c, d]), address.port).into()
    }
}

/// Creates a socket that is bound to `host:port`. The lookup of a host name blocks the thread.
/// Returns 0 or a negative errno. May be called on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_udp_bind(
    address: *const c_char,
    socket: *mut *mut upshift_udp,
) -> c_int {
    if socket.is_null() {
        return -libc::EINVAL;
    }
    catch_panic_code(|| {
        // SAFETY: the caller guarantees that `address` is null or a C string.
        let address = unsafe { copy_text(address) }.and_then(|address| look_up(&address));
        match address.and_then(|addresses| UdpSocket::bind(&*addresses)) {
            Ok(udp_socket) => {
                let new_socket = Box::into_raw(Box::new(upshift_udp(udp_socket)));
                // SAFETY: `socket` is not null, so the caller guarantees that it has room for a
                // pointer.
                unsafe { socket.write(new_socket) };
                0
            }
            Err(error) => errno(&error),
        }
    })
}

/// Returns the descriptor of the socket, which still owns it, or -EBADF if `socket` is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_udp_fd(socket: *const upshift_udp) -> c_int {
    // SAFETY: the caller guarantees that `socket` is null or valid.
    unsafe { socket.as_ref() }.map_or(-libc::EBADF, |socket| socket.0.as_raw_fd())
}

/// Stores the address to which the socket is bound in `*address`. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_udp_local(
    socket: *const upshift_udp,
    address: *mut upshift_addr,
) -> c_int {
    catch_panic_code(|| {
        // SAFETY: the caller guarantees that `socket` is null or valid.
        let (Some(socket), false) = (unsafe { socket.as_ref() }, address.is_null()) else {
            return -libc::EINVAL;
        };
        match socket.0.local_addr() {
            Ok(local_address) => {
                // SAFETY: `address` is not null, so the caller guarantees that it has room for an
                // address.
                unsafe { address.write(local_address.into()) };
                0
            }
            Err(error) => errno(&error),
        }
    })
}

/// Frees a socket, all operations on which must have ended. Does nothing for null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_udp_free(socket: *mut upshift_udp) {
    // SAFETY: the caller guarantees that the pointer is null or its own socket, which it frees
    // once.
    unsafe { free(socket) };
}

/// Sends a datagram of `len` bytes, which must be valid until the operation ends. The result is the
/// number of bytes sent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_udp_send_to(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    socket: *const upshift_udp,
    data: *const u8,
    len: usize,
    to: *const upshift_addr,
) -> c_int {
    if socket.is_null() || to.is_null() || !is_valid_slice(data, len) {
        // SAFETY: the caller guarantees that `op` is null or has room for an operation.
        return unsafe { finish(op, Err::<(), _>(invalid())) };
    }
    // SAFETY: no pointer is null, so the caller guarantees that the socket and the data outlive the
    // operation, and that `to` is valid during the call, which copies the address.
    let (socket, data, to): (&'static upshift_udp, &'static [u8], _) =
        unsafe { (&*socket, borrow_slice(data, len), *to) };
    let future = Box::pin(async move { socket.0.send_to(data, SocketAddr::from(to)).await });
    // SAFETY: the caller guarantees that `op` is null or has room for an operation, and that `cx`
    // is null or belongs to the current poll.
    unsafe { start::<Pin<Box<dyn Future<Output = io::Result<usize>> + Send>>>(op, cx, future) }
}

struct Datagram(usize, SocketAddr);

impl Outcome for io::Result<Datagram> {
    fn store(self, op: &mut upshift_op) {
        match self {
            Ok(Datagram(count, from)) => {
                op.result = count as i64;
                // SAFETY: the pointer is valid for writing an address, for which `out` has room.
                unsafe { (&raw mut op.out).cast::<upshift_addr>().write(from.into()) };
            }
            Err(error) => op.result = i64::from(errno(&error)),
        }
    }
}

/// Receives a datagram into `len` bytes, which must be valid until the operation ends. Bytes that
/// do not fit are lost. The result is the number of bytes received. `out` then contains the address
/// of the sender, an upshift_addr.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_udp_recv_from(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    socket: *const upshift_udp,
    data: *mut u8,
    len: usize,
) -> c_int {
    if socket.is_null() || !is_valid_slice(data, len) {
        // SAFETY: the caller guarantees that `op` is null or has room for an operation.
        return unsafe { finish(op, Err::<(), _>(invalid())) };
    }
    // SAFETY: no pointer is null, so the caller guarantees that the socket and the memory outlive
    // the operation, and that no other code uses the memory meanwhile.
    let (socket, data): (&'static upshift_udp, &'static mut [u8]) =
        unsafe { (&*socket, borrow_slice_mut(data, len)) };
    let future = Box::pin(async move {
        let (count, from) = socket.0.recv_from(data).await?;
        Ok(Datagram(count, from))
    });
    // SAFETY: the caller guarantees that `op` is null or has room for an operation, and that `cx`
    // is null or belongs to the current poll.
    unsafe { start::<Pin<Box<dyn Future<Output = io::Result<Datagram>> + Send>>>(op, cx, future) }
}
