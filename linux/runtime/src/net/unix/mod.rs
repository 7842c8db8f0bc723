//! Unix sockets: streams, listeners and datagrams, with names in the file system or in the abstract
//! namespace.

mod address;
mod credentials;
mod datagram;
mod listener;
mod stream;

/// An address of a Unix socket; for abstract names see
/// [`SocketAddrExt`](std::os::linux::net::SocketAddrExt).
pub use std::os::unix::net::SocketAddr;

pub use credentials::UCred;
pub use datagram::UnixDatagram;
pub use listener::UnixListener;
pub use stream::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, UnixStream, WriteHalf};
