//! Tests of multishot receive of datagrams: boundaries, senders, truncation, lack of buffers,
//! errors.
#![cfg(not(loom))]

mod common;
use common::{block_on, drive_until, poll_once, ring};
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::pin::pin;
use upshift_ring::{Config, DatagramMulti, Fd, Ring};

fn receiver(address: &str) -> (Fd, std::net::SocketAddr) {
    let socket = UdpSocket::bind(address).unwrap();
    let address = socket.local_addr().unwrap();
    (Fd::new(OwnedFd::from(socket)), address)
}

#[test]
fn datagrams_arrive_whole_in_order_and_with_their_sender() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let Ok(sender) = UdpSocket::bind(address) else {
            eprintln!("skipped: {address} cannot be bound on this machine");
            continue;
        };
        let ring = ring();
        let (fd, destination) = receiver(address);
        let mut stream = ring.datagram_multi(fd, 3);
        for length in [3, 0, 1400, 1] {
            sender.send_to(&vec![7; length], destination).unwrap();
        }
        for length in [3, 0, 1400, 1] {
            let datagram = block_on(&ring, stream.next()).unwrap().unwrap();
            assert_eq!(datagram.data[..], vec![7; length]);
            assert_eq!(datagram.from.ip(), Some(sender.local_addr().unwrap()));
            assert!(!datagram.truncated);
        }
        drop(stream);
        drive_until(&ring, || ring.slots_in_use() == 0);
    }
}

#[test]
fn a_datagram_longer_than_a_buffer_is_truncated_and_marked() {
    let ring = Ring::new(Config {
        buffer_size: DatagramMulti::OVERHEAD as u32 + 10,
        buffers: 4,
        ..Config::default()
    })
    .unwrap();
    let (fd, destination) = receiver("127.0.0.1:0");
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut stream = ring.datagram_multi(fd, 0);
    sender.send_to(&[1; 10], destination).unwrap();
    sender.send_to(&[2; 11], destination).unwrap();
    let whole = block_on(&ring, stream.next()).unwrap().unwrap();
    assert_eq!((&whole.data[..], whole.truncated), (&[1; 10][..], false));
    let part = block_on(&ring, stream.next()).unwrap().unwrap();
    assert_eq!((&part.data[..], part.truncated), (&[2; 10][..], true));
}

#[test]
fn more_datagrams_than_buffers_wait_for_the_consumer() {
    let ring = Ring::new(Config {
        buffers: 4,
        buffer_size: 512,
        ..Config::default()
    })
    .unwrap();
    let (fd, destination) = receiver("127.0.0.1:0");
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut stream = ring.datagram_multi(fd, 0);
    assert!(poll_once(&mut pin!(stream.next())).is_pending());
    for n in 0..50u8 {
        sender.send_to(&[n], destination).unwrap();
    }
    for n in 0..50u8 {
        let datagram = block_on(&ring, stream.next()).unwrap().unwrap();
        assert_eq!(datagram.data[..], [n]);
    }
}

#[test]
fn a_starved_stream_of_datagrams_makes_no_system_calls() {
    let ring = Ring::new(Config {
        buffers: 1,
        buffer_size: 512,
        ..Config::default()
    })
    .unwrap();
    let (fd, destination) = receiver("127.0.0.1:0");
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut stream = ring.datagram_multi(fd, 0);
    sender.send_to(b"one", destination).unwrap();
    let held = block_on(&ring, stream.next()).unwrap().unwrap();
    sender.send_to(b"two", destination).unwrap();
    for _ in 0..20 {
        // The poll restarts the operation if it was stopped.
        assert!(poll_once(&mut pin!(stream.next())).is_pending());
        ring.submit().unwrap();
        ring.reap();
    }
    let before = ring.stats();
    assert!(before.enobufs > 0);
    for _ in 0..100 {
        ring.submit().unwrap();
        ring.reap();
    }
    assert_eq!(
        ring.stats().enters,
        before.enters,
        "the starved stream made system calls"
    );
    drop(held);
    let datagram = block_on(&ring, stream.next()).unwrap().unwrap();
    assert_eq!(&datagram.data[..], b"two");
}

#[test]
fn a_sender_without_a_name_has_no_address() {
    let ring = ring();
    let (local, peer) = UnixDatagram::pair().unwrap();
    let mut stream = ring.datagram_multi(Fd::new(OwnedFd::from(local)), 0);
    peer.send(b"hello").unwrap();
    let datagram = block_on(&ring, stream.next()).unwrap().unwrap();
    assert_eq!(&datagram.data[..], b"hello");
    assert_eq!(datagram.from.ip(), None);
}

#[test]
fn an_error_of_the_socket_is_returned_and_ends_the_stream() {
    let ring = ring();
    let closed_address = receiver("127.0.0.1:0").1;
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(closed_address).unwrap();
    socket.send(b"anybody?").unwrap();
    let mut stream = ring.datagram_multi(Fd::new(OwnedFd::from(socket)), 0);
    let error = block_on(&ring, stream.next()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    assert!(block_on(&ring, stream.next()).unwrap().is_none());
}
