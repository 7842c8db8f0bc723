//! Attacks by descriptors that take a long time to close. The thread that closes the last copy
//! blocks, so it must not be a thread of the daemon that serves clients.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use upshift_board::{os, wire};
use upshift_daemon::{Config, Daemon, Limits};

use crate::client::connect;
use crate::process::wait_until;
use crate::{config, serial_test, socket};

/// Returns a connection whose last close takes up to a minute, and its peer. The close waits until
/// the peer has read the data.
fn lingering_connection() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    sender.set_nonblocking(true).unwrap();
    while sender.write(&[0; 65_536]).is_ok() {}
    sockopt::set_socket_linger(&sender, Some(Duration::from_secs(60))).unwrap();
    (sender.into(), peer)
}

/// Returns a socket that has the descriptor `inner_file` in its queue, so that closing the socket
/// closes the descriptor.
fn socket_with_queued(inner_file: OwnedFd) -> OwnedFd {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let (outer, inner) = rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
    os::send(inner.as_fd(), b"x", &[inner_file.as_fd()]).unwrap();
    outer
}

/// Sends a registration with the descriptor `page`, in a packet with `extra` bytes at its end, and
/// closes the connection and the descriptor.
fn send(path: &Path, page: OwnedFd, extra: usize) {
    let mut message = wire::buffer();
    let length = wire::encode_register(&mut message, &[0], &[]).unwrap();
    let mut message = message[..length].to_vec();
    message.resize(length + extra, 0);
    let connection = connect(path);
    // The daemon may have closed the connection already.
    let _ = os::send(connection.as_fd(), &message, &[page.as_fd()]);
    // If the daemon has closed its copy, this copy is the last, and closing it blocks.
    std::thread::spawn(move || drop(page));
}

#[test]
fn descriptors_that_linger_delay_no_client() {
    let _guard = serial_test();
    let path = socket("linger");
    let config = Config {
        cooperative: true,
        limits: Limits {
            connections_per_user: 4,
            ..Limits::default()
        },
        ..config("linger")
    };
    let daemon = Daemon::start(config).unwrap();
    let mut peers = Vec::new();
    for round in 0..6 {
        let (connection, peer) = lingering_connection();
        peers.push(peer);
        let page = if round % 2 == 0 {
            connection
        } else {
            socket_with_queued(connection)
        };
        let extra = if round < 4 { 0 } else { 100_000 };
        send(&path, page, extra);
        // A census request fails after two seconds.
        wait_until("another client is answered", || {
            upshift_board::client::census(&path).is_ok()
        });
    }
    let stopping = std::thread::spawn(move || daemon.stop());
    wait_until("the daemon ends", || stopping.is_finished());
    stopping.join().unwrap();
}
