//! Descriptors that take long to close, sent to the daemon: the thread that closes the last copy
//! blocks, so it must not serve others.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use upshift_board::{os, wire};
use upshift_daemon::{Config, Daemon, Limits};

use crate::client::connect;
use crate::process::until;
use crate::{config, socket, turn};

/// Returns a connection whose last close takes up to a minute: it lingers over data that its peer
/// does not read.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    sender.set_nonblocking(true).unwrap();
    while sender.write(&[0; 65_536]).is_ok() {}
    sockopt::set_socket_linger(&sender, Some(Duration::from_secs(60))).unwrap();
    (sender.into(), peer)
}

/// Returns a socket that holds `within` in its queue, and ends with the last descriptor of it.
fn wrapped(within: OwnedFd) -> OwnedFd {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let (outer, inner) = rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
    os::send(inner.as_fd(), b"x", &[within.as_fd()]).unwrap();
    outer
}

/// Sends a registration whose page is `page`, in a packet that is `longer` than it should be, and
/// closes everything.
fn send(path: &Path, page: OwnedFd, longer: usize) {
    let mut message = wire::buffer();
    let length = wire::encode_register(&mut message, &[0], &[]).unwrap();
    let mut message = message[..length].to_vec();
    message.resize(length + longer, 0);
    let connection = connect(path);
    // The daemon may have closed it already.
    let _ = os::send(connection.as_fd(), &message, &[page.as_fd()]);
    // If the daemon has closed its copy, this one is the last.
    std::thread::spawn(move || drop(page));
}

#[test]
fn descriptors_that_linger_delay_no_client() {
    let _turn = turn();
    let path = socket("linger");
    let few = Config {
        cooperative: true,
        limits: Limits {
            connections_per_user: 4,
            ..Limits::default()
        },
        ..config("linger")
    };
    let daemon = Daemon::start(few).unwrap();
    let mut peers = Vec::new();
    for round in 0..6 {
        let (lingers, peer) = lingering();
        peers.push(peer);
        let page = if round % 2 == 0 {
            lingers
        } else {
            wrapped(lingers)
        };
        let longer = if round < 4 { 0 } else { 100_000 };
        send(&path, page, longer);
        // The client itself waits two seconds.
        until("others are answered", || {
            upshift_board::client::census(&path).is_ok()
        });
    }
    let ended = std::thread::spawn(move || daemon.stop());
    until("the daemon ends", || ended.is_finished());
    ended.join().unwrap();
}
