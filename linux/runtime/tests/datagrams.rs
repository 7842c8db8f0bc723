//! Tests of datagrams over UDP and Unix sockets.

#[path = "support/block_on.rs"]
mod block_on;

use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::poll;
use upshift::net::unix::SocketAddr;
use upshift::net::{UdpSocket, UnixDatagram};
use upshift::{Priority, Runtime, time};

use block_on::block_on;

#[test]
fn datagrams_are_sent_in_both_directions_over_both_families() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let (Ok(server), Ok(client)) = (UdpSocket::bind(address), UdpSocket::bind(address)) else {
            eprintln!("skipped: {address} cannot be bound on this machine");
            continue;
        };
        block_on(async move {
            client.connect(server.local_addr().unwrap()).await.unwrap();
            assert_eq!(client.peer_addr().unwrap(), server.local_addr().unwrap());
            client.send(b"ping").await.unwrap();
            let mut buffer = [0; 64];
            let (peeked, _) = server.peek_from(&mut buffer).await.unwrap();
            let (count, from) = server.recv_from(&mut buffer).await.unwrap();
            assert_eq!(
                (&buffer[..count], from, peeked),
                (&b"ping"[..], client.local_addr().unwrap(), 4)
            );
            server
                .send_to(b"longer than asked for", from)
                .await
                .unwrap();
            let mut short = [0; 6];
            assert_eq!(client.recv(&mut short).await.unwrap(), 6);
            assert_eq!(&short, b"longer");
        });
    }
}

#[test]
fn a_dropped_receive_loses_no_datagram() {
    block_on(async {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = socket.local_addr().unwrap();
        let mut buffer = [0; 8];
        for _ in 0..10 {
            let waiting = time::timeout(Duration::from_millis(1), socket.recv(&mut buffer)).await;
            assert!(waiting.is_err());
        }
        socket.send_to(b"kept", to).await.unwrap();
        let mut receiving = Box::pin(socket.recv(&mut buffer));
        while poll!(receiving.as_mut()).is_pending() {
            upshift::yield_now().await;
        }
        drop(receiving);
        assert_eq!(&buffer[..4], b"kept");
    });
}

#[test]
fn several_coroutines_may_receive_from_one_socket() {
    let runtime = Runtime::builder().vcpus(2).build().unwrap();
    runtime.block_on(async {
        let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap());
        let to = socket.local_addr().unwrap();
        let receivers: Vec<_> = (0..4)
            .map(|_| {
                let socket = socket.clone();
                upshift::spawn(
                    async move {
                        let mut buffer = [0; 8];
                        socket.recv(&mut buffer).await.unwrap();
                    },
                    Priority::Inherit,
                )
            })
            .collect();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..4 {
            sender.send_to(b"x", to).await.unwrap();
            time::sleep(Duration::from_millis(1)).await;
        }
        for receiver in receivers {
            receiver.await.unwrap();
        }
    });
}

#[test]
fn a_stream_of_datagrams_misses_none_and_survives_errors() {
    let runtime = Runtime::builder()
        .vcpus(1)
        .buffers(8, 1024)
        .build()
        .unwrap();
    runtime.block_on(async {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = socket.local_addr().unwrap();
        let mut datagrams = socket.datagrams();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let from = sender.local_addr().unwrap();
        for round in 0..10u8 {
            for n in 0..20 {
                sender.send_to(&[round, n], to).await.unwrap();
            }
            for n in 0..20 {
                let datagram = datagrams.next().await.unwrap();
                assert_eq!((&datagram.data[..], datagram.from), (&[round, n][..], from));
            }
        }
        // No socket is bound to this address, which the kernel reports as one error.
        let unused_address = {
            let closed = UdpSocket::bind("127.0.0.1:0").unwrap();
            closed.local_addr().unwrap()
        };
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
        peer.connect(unused_address).await.unwrap();
        peer.send(b"hello?").await.unwrap();
        let mut answers = peer.datagrams();
        let error = answers.next().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        let waiting = time::timeout(Duration::from_millis(5), answers.next()).await;
        assert!(waiting.is_err());
    });
}

#[test]
fn a_datagram_that_is_too_long_is_an_error() {
    block_on(async {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = socket.local_addr().unwrap();
        let error = socket.send_to(&[0; 70_000], to).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(EMSGSIZE));
    });
}

const EMSGSIZE: i32 = 90;

#[test]
fn options_of_udp_sockets_are_accepted() {
    block_on(async {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_broadcast(true).unwrap();
        socket.set_ttl(9).unwrap();
        socket.set_recv_buffer_size(1 << 18).unwrap();
        socket.set_send_buffer_size(1 << 18).unwrap();
        socket.set_multicast_loop_v4(false).unwrap();
    });
}

#[test]
fn unix_datagrams_keep_their_boundaries_and_wait_for_room() {
    block_on(async {
        let (one, other) = UnixDatagram::pair().unwrap();
        let sending = upshift::spawn(
            async move {
                for n in 0..2000u32 {
                    one.send(&n.to_le_bytes()).await.unwrap();
                }
            },
            Priority::Inherit,
        );
        time::sleep(Duration::from_millis(5)).await;
        assert!(!sending.is_finished(), "the queue did not fill");
        for n in 0..2000u32 {
            let mut buffer = [0; 16];
            let count = other.recv(&mut buffer).await.unwrap();
            assert_eq!(buffer[..count], n.to_le_bytes());
        }
        sending.await.unwrap();
    });
}

#[test]
fn unix_datagrams_reach_abstract_names_and_wait_for_their_queue() {
    block_on(async {
        let name = format!("upshift-datagrams-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let server = UnixDatagram::bind_addr(&address).unwrap();
        assert_eq!(
            server.local_addr().unwrap().as_abstract_name(),
            Some(name.as_bytes())
        );
        let client = UnixDatagram::unbound().unwrap();
        let sending = upshift::spawn(
            async move {
                for n in 0..200u32 {
                    client
                        .send_to_addr(&n.to_le_bytes(), &address)
                        .await
                        .unwrap();
                }
            },
            Priority::Inherit,
        );
        let mut buffer = [0; 16];
        for n in 0..200u32 {
            let (count, from) = server.recv_from(&mut buffer).await.unwrap();
            assert_eq!(buffer[..count], n.to_le_bytes());
            assert!(from.is_unnamed());
        }
        sending.await.unwrap();
    });
}

#[test]
fn futures_of_datagram_sockets_may_move_between_threads() {
    fn assert_send<T: Send>(_: T) {}
    #[expect(dead_code, reason = "it only has to compile")]
    fn all(udp: &'static UdpSocket, unix: &'static UnixDatagram, buffer: &'static mut [u8]) {
        assert_send(udp.connect("localhost:1"));
        assert_send(udp.send(b""));
        assert_send(udp.send_to(b"", "localhost:1"));
        assert_send(udp.datagrams());
        assert_send(unix.send_to(b"", "/"));
        assert_send(unix.send(b""));
        let (one, other) = buffer.split_at_mut(0);
        assert_send(udp.recv_from(one));
        assert_send(unix.recv_from(other));
    }
}
