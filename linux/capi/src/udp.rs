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
use crate::net::text;
use crate::op::{Outcome, finish, start, upshift_op};

/// A UDP socket. Any thread, several at once.
pub struct upshift_udp(UdpSocket);

/// An internet address.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct upshift_addr {
    /// Version of the protocol: 4 or 6.
    pub version: u16,
    /// The port, in host byte order.
    pub port: u16,
    /// The scope id of an IPv6 address that needs one; else 0.
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

/// Binds `host:port`. Returns 0 or a negative errno. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_udp_bind(
    address: *const c_char,
    socket: *mut *mut upshift_udp,
) -> c_int {
    if socket.is_null() {
        return -libc::EINVAL;
    }
    catch_panic_code(|| {
        // SAFETY: by contract `address` is null or a C string.
        let address = unsafe { text(address) }.and_then(|address| look_up(&address));
        match address.and_then(|addresses| UdpSocket::bind(&*addresses)) {
            Ok(bound) => {
                let bound = Box::into_raw(Box::new(upshift_udp(bound)));
                // SAFETY: by contract `socket` has room for a pointer.
                unsafe { socket.write(bound) };
                0
            }
            Err(error) => errno(&error),
        }
    })
}

/// Returns the socket's descriptor, which the socket still owns; -EBADF for null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_udp_fd(socket: *const upshift_udp) -> c_int {
    // SAFETY: by contract the pointer is null or valid.
    unsafe { socket.as_ref() }.map_or(-libc::EBADF, |socket| socket.0.as_raw_fd())
}

/// Stores the address to which the socket is bound. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_udp_local(
    socket: *const upshift_udp,
    address: *mut upshift_addr,
) -> c_int {
    catch_panic_code(|| {
        // SAFETY: by contract the pointer is null or valid.
        let (Some(socket), false) = (unsafe { socket.as_ref() }, address.is_null()) else {
            return -libc::EINVAL;
        };
        match socket.0.local_addr() {
            Ok(bound) => {
                // SAFETY: by contract `address` has room for an address.
                unsafe { address.write(bound.into()) };
                0
            }
            Err(error) => errno(&error),
        }
    })
}

/// Frees a socket, which must have no pending operations. Does nothing for null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_udp_free(socket: *mut upshift_udp) {
    // SAFETY: the caller owns the socket and gives it away once.
    unsafe { free(socket) };
}

/// Sends a datagram of `len` bytes, which must live until the operation ends. The result is the
/// count.
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
        // SAFETY: the caller upholds the requirements of this call.
        return unsafe { finish(op, Err::<(), _>(invalid())) };
    }
    // SAFETY: by contract the socket and the data outlive the operation; the address is copied.
    let (socket, data, to): (&'static upshift_udp, &'static [u8], _) =
        unsafe { (&*socket, borrow_slice(data, len), *to) };
    let send = Box::pin(async move { socket.0.send_to(data, SocketAddr::from(to)).await });
    // SAFETY: by contract `op` has room, and `cx` belongs to the current poll.
    unsafe { start::<Pin<Box<dyn Future<Output = io::Result<usize>> + Send>>>(op, cx, send) }
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

/// Receives a datagram into `len` bytes, which must live until the operation ends; excess bytes are
/// lost. The result is the count; `out` contains the sender's address, an upshift_addr.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_udp_recv_from(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    socket: *const upshift_udp,
    data: *mut u8,
    len: usize,
) -> c_int {
    if socket.is_null() || !is_valid_slice(data, len) {
        // SAFETY: the caller upholds the requirements of this call.
        return unsafe { finish(op, Err::<(), _>(invalid())) };
    }
    // SAFETY: by contract the socket and the memory outlive the operation.
    let (socket, data): (&'static upshift_udp, &'static mut [u8]) =
        unsafe { (&*socket, borrow_slice_mut(data, len)) };
    let recv = Box::pin(async move {
        let (count, from) = socket.0.recv_from(data).await?;
        Ok(Datagram(count, from))
    });
    // SAFETY: by contract `op` has room, and `cx` belongs to the current poll.
    unsafe { start::<Pin<Box<dyn Future<Output = io::Result<Datagram>> + Send>>>(op, cx, recv) }
}
