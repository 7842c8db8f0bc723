//! Tests of TCP: both address families, halves, options, and all behaviours of a peer.

#[path = "support/block_on.rs"]
mod block_on;

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use upshift::net::{TcpListener, TcpSocket, TcpStream};
use upshift::{Priority, Runtime};

use block_on::block_on;

async fn echo(mut stream: TcpStream) -> io::Result<usize> {
    let mut total = 0;
    loop {
        let data = stream.recv().await?;
        if data.is_empty() {
            return Ok(total);
        }
        total += data.len();
        stream.write_all(data.to_vec()).await.0?;
    }
}

/// Returns a connection, and its peer as a stream of the standard library.
async fn pair() -> (TcpStream, std::net::TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, peer) = listener.accept().await.unwrap();
    assert_eq!(peer, client.local_addr().unwrap());
    (stream, client)
}

fn check_echo(address: &str) {
    let address: SocketAddr = address.parse().unwrap();
    block_on(async move {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let server = upshift::spawn(
            async move { echo(listener.accept().await.unwrap().0).await.unwrap() },
            Priority::Inherit,
        );
        let mut stream = TcpStream::connect(address).await.unwrap();
        let sent: Vec<u8> = (0..100_000u32).map(|n| n as u8).collect();
        let (mut reader, mut writer) = stream.split();
        let data = sent.clone();
        let mut echoed = Vec::new();
        // Both directions run concurrently, since the kernel's buffers would fill otherwise.
        let write = async {
            writer.write_all(data).await.0.unwrap();
            writer.shutdown().unwrap();
        };
        let read = async {
            loop {
                let (count, buffer) = reader.read(vec![0; 3000]).await;
                let count = count.unwrap();
                if count == 0 {
                    break;
                }
                echoed.extend_from_slice(&buffer[..count]);
            }
        };
        futures_util::join!(write, read);
        assert_eq!(echoed, sent);
        assert_eq!(server.await.unwrap(), sent.len());
    });
}

#[test]
fn data_is_echoed_over_ipv4() {
    check_echo("127.0.0.1:0");
}

#[test]
fn data_is_echoed_over_ipv6() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        eprintln!("skipped: this machine has no IPv6 loopback");
        return;
    }
    check_echo("[::1]:0");
}

#[test]
fn owned_halves_work_in_two_coroutines_and_end_their_direction() {
    block_on(async {
        let (stream, mut client) = pair().await;
        let (mut reader, mut writer) = stream.into_split();
        let writing = upshift::spawn(
            async move {
                writer
                    .write_all_vectored(vec!["one ", "two ", "three"])
                    .await
                    .0
                    .unwrap();
            },
            Priority::Inherit,
        );
        writing.await.unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        assert_eq!(text, "one two three");
        client.write_all(b"answer").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let (count, buffer) = reader.read(vec![0; 16]).await;
        assert_eq!(&buffer[..count.unwrap()], b"answer");
        assert_eq!(reader.read(vec![0; 16]).await.0.unwrap(), 0);
    });
}

#[test]
fn a_read_after_a_recv_misses_no_byte() {
    block_on(async {
        let (mut stream, mut client) = pair().await;
        client.write_all(b"abcdefghij").unwrap();
        let mut data = stream.recv().await.unwrap();
        let first = data[0];
        data.advance(data.len());
        assert_eq!(first, b'a');
        client.write_all(b"klmnop").unwrap();
        let (count, buffer) = stream.read(vec![0; 2]).await;
        assert_eq!(&buffer[..count.unwrap()], b"kl");
        let rest = stream.recv().await.unwrap();
        assert_eq!(&rest[..], b"mnop");
    });
}

#[test]
fn a_dropped_recv_loses_no_data() {
    block_on(async {
        let (mut stream, mut client) = pair().await;
        for _ in 0..5 {
            let mut receive = Box::pin(stream.recv());
            assert!(futures_util::poll!(receive.as_mut()).is_pending());
        }
        client.write_all(b"still here").unwrap();
        assert_eq!(&stream.recv().await.unwrap()[..], b"still here");
    });
}

#[test]
fn options_can_be_set_and_read() {
    block_on(async {
        let (stream, client) = pair().await;
        stream.set_nodelay(true).unwrap();
        assert!(stream.nodelay().unwrap());
        stream.set_ttl(33).unwrap();
        assert_eq!(stream.ttl().unwrap(), 33);
        stream.set_linger(Some(Duration::from_secs(1))).unwrap();
        assert_eq!(stream.linger().unwrap(), Some(Duration::from_secs(1)));
        stream.set_keepalive(Some(Duration::from_secs(60))).unwrap();
        stream
            .set_keepalive_probes(
                Duration::from_secs(60),
                Some(Duration::from_secs(5)),
                Some(3),
            )
            .unwrap();
        stream
            .set_user_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        stream.set_quickack(true).unwrap();
        stream.set_tos(0x10).unwrap();
        stream.set_recv_buffer_size(1 << 16).unwrap();
        assert!(stream.recv_buffer_size().unwrap() >= 1 << 16);
        stream.set_send_buffer_size(1 << 16).unwrap();
        assert!(stream.take_error().unwrap().is_none());
        assert_eq!(stream.local_addr().unwrap(), client.peer_addr().unwrap());
    });
}

#[test]
fn reuseport_shares_an_address_and_without_it_the_address_is_in_use() {
    block_on(async {
        let listen = |share: bool, address: SocketAddr| {
            let socket = TcpSocket::new_v4()?;
            socket.set_reuseport(share)?;
            socket.bind(address)?;
            socket.listen(16)
        };
        let first = listen(true, "127.0.0.1:0".parse().unwrap()).unwrap();
        let address = first.local_addr().unwrap();
        listen(true, address).unwrap();
        let error = listen(false, address).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
    });
}

#[test]
fn a_refused_connection_is_an_error() {
    block_on(async {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = closed.local_addr().unwrap();
        drop(closed);
        let error = TcpStream::connect(address).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    });
}

/// Closes the connection with a reset instead of a FIN.
fn reset(client: std::net::TcpStream) {
    socket2::SockRef::from(&client)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
}

#[test]
fn a_reset_while_receiving_is_an_error() {
    block_on(async {
        let (mut stream, client) = pair().await;
        {
            let mut receive = Box::pin(stream.recv());
            assert!(futures_util::poll!(receive.as_mut()).is_pending());
            reset(client);
            let error = receive.await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        }
        let error = stream.write_all("late").await.0.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    });
}

#[test]
fn a_reset_while_sending_is_an_error_that_returns_the_buffer() {
    block_on(async {
        let (mut stream, client) = pair().await;
        let sending = upshift::spawn(
            async move {
                let (result, buffer) = stream.write_all(vec![7; 64 << 20]).await;
                (result.unwrap_err().kind(), buffer.len())
            },
            Priority::Inherit,
        );
        upshift::yield_now().await;
        upshift::spawn_blocking(move || {
            std::thread::sleep(Duration::from_millis(20));
            reset(client);
        })
        .await
        .unwrap();
        let (kind, length) = sending.await.unwrap();
        assert!(
            matches!(
                kind,
                ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::WriteZero
            ),
            "the write failed with {kind}"
        );
        assert_eq!(length, 64 << 20);
    });
}

#[test]
fn a_reset_before_the_accept_does_not_stop_the_listener() {
    block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        for _ in 0..20 {
            reset(std::net::TcpStream::connect(address).unwrap());
        }
        let client = std::net::TcpStream::connect(address).unwrap();
        loop {
            let (_, peer) = listener.accept().await.unwrap();
            if peer == client.local_addr().unwrap() {
                break;
            }
        }
    });
}

#[test]
fn a_client_that_never_reads_blocks_only_its_sender() {
    block_on(async {
        let (mut unread, client) = pair().await;
        let stuck = upshift::spawn(
            async move { unread.write_all(vec![0; 256 << 20]).await.0 },
            Priority::Inherit,
        );
        let (stream, mut other) = pair().await;
        let served = upshift::spawn(echo(stream), Priority::Inherit);
        let client_task = upshift::spawn_blocking(move || {
            for _ in 0..100 {
                other.write_all(b"ping").unwrap();
                let mut echoed = [0; 4];
                other.read_exact(&mut echoed).unwrap();
            }
        });
        client_task.await.unwrap();
        assert_eq!(served.await.unwrap().unwrap(), 400);
        assert!(!stuck.is_finished());
        drop(client);
        assert!(stuck.await.unwrap().is_err());
    });
}

#[test]
fn more_connections_than_receive_buffers_all_get_their_data() {
    let runtime = Runtime::builder()
        .vcpus(1)
        .buffers(16, 256)
        .build()
        .unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let clients = upshift::spawn_blocking(move || {
            let mut clients: Vec<_> = (0..100)
                .map(|_| std::net::TcpStream::connect(address).unwrap())
                .collect();
            let message = vec![5; 5000];
            for client in &mut clients {
                client.write_all(&message).unwrap();
            }
            for client in &mut clients {
                let mut echoed = vec![0; 5000];
                client.read_exact(&mut echoed).unwrap();
                assert_eq!(echoed, message);
            }
        });
        let mut served = Vec::new();
        for _ in 0..100 {
            let (stream, _) = listener.accept().await.unwrap();
            served.push(upshift::spawn(echo(stream), Priority::Inherit));
        }
        clients.await.unwrap();
        for served in served {
            assert_eq!(served.await.unwrap().unwrap(), 5000);
        }
    });
}

#[test]
fn unread_streams_do_not_prevent_other_streams_from_receiving() {
    let runtime = Runtime::builder()
        .vcpus(1)
        .buffers(64, 1024)
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut unread_streams = Vec::new();
        for _ in 0..100 {
            let (mut stream, mut client) = pair().await;
            client.write_all(&[1; 100_000]).unwrap();
            // The stream is read once, and then no more.
            let first = upshift::time::timeout(Duration::from_secs(20), stream.recv());
            let first = first.await.expect("no data arrived").unwrap();
            unread_streams.push((stream, client, first));
        }
        let (mut stream, mut client) = pair().await;
        for _ in 0..100 {
            client.write_all(b"hello").unwrap();
            let data = upshift::time::timeout(Duration::from_secs(20), stream.recv());
            assert_eq!(&data.await.expect("no data arrived").unwrap()[..], b"hello");
        }
        // The unread streams have lost no data.
        for (mut stream, client, first) in unread_streams {
            let mut rest = 100_000 - first.len();
            drop(first);
            while rest > 0 {
                rest -= stream.recv().await.unwrap().len();
            }
            drop(client);
            assert!(stream.recv().await.unwrap().is_empty());
        }
    });
}

#[test]
fn streams_work_on_every_vcpu_of_their_coroutine() {
    let runtime = Runtime::builder().vcpus(2).build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let clients: Vec<_> = (0..4)
            .map(|_| {
                upshift::spawn_blocking(move || {
                    let mut client = std::net::TcpStream::connect(address).unwrap();
                    for n in 0..500u32 {
                        client.write_all(&n.to_le_bytes()).unwrap();
                        let mut echoed = [0; 4];
                        client.read_exact(&mut echoed).unwrap();
                        assert_eq!(u32::from_le_bytes(echoed), n);
                    }
                })
            })
            .collect();
        // Because of the busy coroutines, the echo coroutines move between vCPUs.
        let busy: Vec<_> = (0..4)
            .map(|_| {
                upshift::spawn(
                    async {
                        loop {
                            upshift::yield_now().await;
                        }
                    },
                    Priority::Inherit,
                )
            })
            .collect();
        let mut served = Vec::new();
        for _ in 0..4 {
            let (stream, _) = listener.accept().await.unwrap();
            served.push(upshift::spawn(echo(stream), Priority::Inherit));
        }
        for client in clients {
            client.await.unwrap();
        }
        for served in served {
            assert_eq!(served.await.unwrap().unwrap(), 2000);
        }
        for busy in busy {
            busy.cancel();
        }
    });
}

#[test]
fn a_runtime_dropped_with_io_in_flight_closes_all_connections() {
    for vcpus in [1, 2] {
        let runtime = Runtime::builder().vcpus(vcpus).build().unwrap();
        let clients = runtime.block_on(async {
            let mut clients = Vec::new();
            for _ in 0..20 {
                let (mut stream, client) = pair().await;
                clients.push(client);
                upshift::spawn(
                    async move { stream.read(vec![0; 4096]).await.0 },
                    Priority::Inherit,
                )
                .detach();
                let (mut stream, client) = pair().await;
                clients.push(client);
                upshift::spawn(
                    async move { stream.recv().await.map(drop) },
                    Priority::Inherit,
                )
                .detach();
                let (mut stream, client) = pair().await;
                clients.push(client);
                upshift::spawn(
                    async move { stream.write_all(vec![1; 32 << 20]).await.0 },
                    Priority::Inherit,
                )
                .detach();
            }
            for _ in 0..3 {
                upshift::yield_now().await;
            }
            clients
        });
        drop(runtime);
        for mut client in clients {
            // The client receives the data that was sent, and then the end or a reset.
            client
                .set_read_timeout(Some(Duration::from_secs(5)))
                .unwrap();
            let mut sink = vec![0; 1 << 16];
            loop {
                match client.read(&mut sink) {
                    Ok(0) => break,
                    Ok(_) => {}
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
                        break;
                    }
                }
            }
        }
    }
}
