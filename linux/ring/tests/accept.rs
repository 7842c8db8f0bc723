//! Tests of multishot accept: order, the limit of unread connections (window), running out of
//! descriptors, and errors.
#![cfg(not(loom))]

mod common;
use common::{block_on, drive_until, in_child, is_child, limit_descriptors, ring};
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::task::{Context, Poll, Waker};
use upshift_ring::{Config, Fd, Ring};

fn listener() -> (Fd, std::net::SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (Fd::new(OwnedFd::from(listener)), address)
}

#[test]
fn connections_arrive_in_order_from_one_operation() {
    let ring = ring();
    let (fd, address) = listener();
    let mut incoming = ring.accept_multi(fd, 0);
    let mut clients = Vec::new();
    block_on(&ring, async {
        for _ in 0..50 {
            let client = TcpStream::connect(address).unwrap();
            let server = TcpStream::from(incoming.next().await.unwrap());
            assert_eq!(server.peer_addr().unwrap(), client.local_addr().unwrap());
            clients.push((client, server));
        }
    });
    assert_eq!(ring.in_flight(), 1);
    drop(incoming);
    drive_until(&ring, || ring.slots_in_use() == 0);
}

#[test]
fn a_burst_beyond_the_window_is_accepted_eventually() {
    let ring = Ring::new(Config {
        accept_window: 4,
        ..Config::default()
    })
    .unwrap();
    let (fd, address) = listener();
    let mut incoming = ring.accept_multi(fd, 0);
    let clients: Vec<_> = (0..100)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    // Unread connections accumulate up to the window.
    for _ in 0..20 {
        ring.submit().unwrap();
        ring.reap();
    }
    let mut servers = Vec::new();
    block_on(&ring, async {
        while servers.len() < clients.len() {
            servers.push(incoming.next().await.unwrap());
        }
    });
    assert!(ring.stats().stalled > 0);
}

#[test]
fn unread_connections_are_closed_with_the_stream() {
    let ring = ring();
    let (fd, address) = listener();
    let incoming = ring.accept_multi(fd, 0);
    let mut clients: Vec<_> = (0..5)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    // The stream and its five unread connections have a slot each.
    drive_until(&ring, || ring.slots_in_use() == 6);
    drop(incoming);
    drive_until(&ring, || ring.slots_in_use() == 0);
    for client in &mut clients {
        client.set_read_timeout(Some(common::TIMEOUT)).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
    }
}

#[test]
fn running_out_of_descriptors_is_an_error_that_does_not_end_the_stream() {
    /// Number of descriptors that the ring may open, fewer than there are clients.
    const FREE_DESCRIPTORS: u64 = 2;
    let name = "running_out_of_descriptors_is_an_error_that_does_not_end_the_stream";
    if !is_child(name) {
        return in_child(name);
    }
    let ring = ring();
    let (fd, address) = listener();
    let clients: Vec<_> = (0..4)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    let _limit = limit_descriptors(FREE_DESCRIPTORS);
    let mut incoming = ring.accept_multi(fd, 0);
    let mut servers = Vec::new();
    block_on(&ring, async {
        let error = loop {
            match incoming.next().await {
                Ok(server) => servers.push(server),
                Err(error) => break error,
            }
        };
        assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
        assert!(servers.len() < clients.len());
        // When descriptors are free again, further connections arrive.
        let remaining = clients.len() - servers.len();
        servers.clear();
        while servers.len() < remaining.min(FREE_DESCRIPTORS as usize) {
            servers.push(incoming.next().await.unwrap());
        }
    });
}

#[test]
fn each_accept_on_a_socket_that_does_not_listen_fails() {
    let ring = ring();
    let (fd, _peer) = common::pair();
    let mut incoming = ring.accept_multi(fd, 0);
    for _ in 0..3 {
        let error = block_on(&ring, incoming.next()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }
    ring.shutdown();
    let mut cx = Context::from_waker(Waker::noop());
    let Poll::Ready(Err(error)) = incoming.poll_next(&mut cx) else {
        panic!("the accept of a closed ring did not fail");
    };
    assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
}
