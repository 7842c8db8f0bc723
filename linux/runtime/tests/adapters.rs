//! Tests of the ecosystem's I/O traits on connections. All data must arrive once and in order, even
//! if futures are dropped in between.

#[path = "support/block_on.rs"]
mod block_on;

use std::future::poll_fn;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::Shutdown;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use futures_util::poll;
use upshift::io::{AsyncBufRead, AsyncRead, AsyncWrite, AsyncWriteExt};
use upshift::net::{TcpListener, TcpStream};
use upshift::{Preemption, Priority, Runtime};

use block_on::block_on;

/// Returns a connection, and its peer as a blocking stream.
async fn pair() -> (TcpStream, std::net::TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    client
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    (listener.accept().await.unwrap().0, client)
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n % 251) as u8).collect()
}

async fn read<R: AsyncRead + Unpin>(reader: &mut R, buffer: &mut [u8]) -> std::io::Result<usize> {
    poll_fn(|cx| Pin::new(&mut *reader).poll_read(cx, buffer)).await
}

async fn read_to_end<R: AsyncRead + Unpin>(reader: &mut R) -> Vec<u8> {
    let mut all = Vec::new();
    let mut buffer = vec![0; 1777];
    loop {
        match read(reader, &mut buffer).await.unwrap() {
            0 => return all,
            count => all.extend_from_slice(&buffer[..count]),
        }
    }
}

#[test]
fn all_data_arrives_through_an_echoing_peer() {
    block_on(async {
        let (mut stream, client) = pair().await;
        let expected = pattern(8 << 20);
        let sent = expected.clone();
        let peer = upshift::spawn_blocking(move || {
            let mut client = client;
            std::io::copy(&mut client.try_clone().unwrap(), &mut client).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
        });
        let (mut reader, mut writer) = stream.split();
        let write = async {
            AsyncWriteExt::write_all(&mut writer, &sent).await.unwrap();
            writer.close().await.unwrap();
        };
        let ((), received) = futures_util::join!(write, read_to_end(&mut reader));
        assert!(received == expected);
        peer.await.unwrap();
    });
}

#[test]
fn a_dropped_read_loses_nothing_and_calls_may_be_mixed() {
    block_on(async {
        let (mut stream, mut client) = pair().await;
        let mut buffer = [0; 4];
        {
            let mut reading = Box::pin(read(&mut stream, &mut buffer));
            assert!(poll!(reading.as_mut()).is_pending());
        }
        client.write_all(b"abcdefghijkl").unwrap();
        assert_eq!(read(&mut stream, &mut buffer).await.unwrap(), 4);
        assert_eq!(&buffer, b"abcd");
        let (count, owned) = stream.read(vec![0; 3]).await;
        assert_eq!(&owned[..count.unwrap()], b"efg");
        let data = poll_fn(|cx| {
            Pin::new(&mut stream)
                .poll_fill_buf(cx)
                .map(|data| data.map(<[u8]>::to_vec))
        })
        .await
        .unwrap();
        assert_eq!(data, b"hijkl");
        Pin::new(&mut stream).consume(2);
        assert_eq!(&stream.recv().await.unwrap()[..], b"jkl");
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read(&mut stream, &mut buffer).await.unwrap(), 0);
        assert_eq!(read(&mut stream, &mut buffer).await.unwrap(), 0);
    });
}

#[test]
fn a_dropped_write_is_not_repeated_and_the_next_write_follows() {
    block_on(async {
        let (mut stream, mut client) = pair().await;
        let expected = pattern(16 << 20);
        let mut sent = 0;
        // The loop fills the socket, with a new future for each write.
        loop {
            let mut writing = Box::pin(async {
                poll_fn(|cx| Pin::new(&mut stream).poll_write(cx, &expected[sent..])).await
            });
            match poll!(writing.as_mut()) {
                Poll::Ready(count) => sent += count.unwrap(),
                Poll::Pending => break,
            }
        }
        assert!(sent < expected.len(), "the socket did not fill");
        let reader = upshift::spawn_blocking(move || {
            let mut all = Vec::new();
            client.read_to_end(&mut all).unwrap();
            all
        });
        AsyncWriteExt::write_all(&mut stream, &expected[sent..])
            .await
            .unwrap();
        stream.close().await.unwrap();
        assert!(reader.await.unwrap() == expected);
    });
}

#[test]
fn several_buffers_are_written_in_order_by_one_call() {
    block_on(async {
        let (mut stream, mut client) = pair().await;
        let parts = [
            IoSlice::new(b"one "),
            IoSlice::new(b""),
            IoSlice::new(b"two"),
        ];
        let count = poll_fn(|cx| Pin::new(&mut stream).poll_write_vectored(cx, &parts))
            .await
            .unwrap();
        assert_eq!(count, 7);
        let many = vec![IoSlice::new(b"x"); 2000];
        let count = poll_fn(|cx| Pin::new(&mut stream).poll_write_vectored(cx, &many))
            .await
            .unwrap();
        // One call writes at most `IOV_MAX` buffers, of one byte each here.
        assert_eq!(count, 1024);
        drop(stream);
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        assert_eq!(text, format!("one two{}", "x".repeat(1024)));
    });
}

#[test]
fn a_closed_peer_is_an_error_for_a_writer_that_waits_for_room() {
    block_on(async {
        let (mut stream, client) = pair().await;
        let writing = upshift::spawn(
            async move {
                let chunk = vec![1; 1 << 20];
                loop {
                    if let Err(error) = AsyncWriteExt::write_all(&mut stream, &chunk).await {
                        return (error.kind(), stream);
                    }
                }
            },
            Priority::Inherit,
        );
        upshift::time::sleep(Duration::from_millis(10)).await;
        drop(client);
        let (kind, mut stream) = writing.await.unwrap();
        assert!(
            matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
            "the write failed with {kind}"
        );
        // The close may fail if the peer has already closed the connection.
        let _ = stream.close().await;
    });
}

#[test]
fn halves_are_reunited_only_with_halves_of_their_stream() {
    block_on(async {
        let (first, _first_peer) = pair().await;
        let (second, mut second_peer) = pair().await;
        let (reader, writer) = first.into_split();
        let (other_reader, other_writer) = second.into_split();
        let upshift::net::ReuniteError(reader, other_writer) =
            reader.reunite(other_writer).unwrap_err();
        assert!(reader.reunite(writer).is_ok());
        let mut stream = other_reader.reunite(other_writer).unwrap();
        stream.write_all("still open").await.0.unwrap();
        drop(stream);
        let mut text = String::new();
        second_peer.read_to_string(&mut text).unwrap();
        assert_eq!(text, "still open");
    });
}

#[test]
fn the_traits_of_tokio_are_implemented() {
    use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
    block_on(async {
        let (stream, mut client) = pair().await;
        let mut stream = tokio::io::BufStream::new(stream);
        client.write_all(b"a line\nand a rest").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut line = String::new();
        stream.read_line(&mut line).await.unwrap();
        assert_eq!(line, "a line\n");
        let mut rest = String::new();
        stream.read_to_string(&mut rest).await.unwrap();
        assert_eq!(rest, "and a rest");
        stream.write_all(b"answer").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        assert_eq!(text, "answer");
    });
}

/// Echoes a client's data through the traits, while other coroutines keep the vCPUs busy.
fn echoes_beside_busy_coroutines(runtime: &Runtime) {
    runtime.block_on(async {
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
            let (mut stream, mut client) = pair().await;
            served.push(upshift::spawn(
                async move {
                    let mut buffer = [0; 64];
                    loop {
                        let count = read(&mut stream, &mut buffer).await.unwrap();
                        if count == 0 {
                            return;
                        }
                        AsyncWriteExt::write_all(&mut stream, &buffer[..count])
                            .await
                            .unwrap();
                    }
                },
                Priority::Inherit,
            ));
            served.push(upshift::spawn_blocking(move || {
                for n in 0..200u32 {
                    client.write_all(&n.to_le_bytes()).unwrap();
                    let mut back = [0; 4];
                    client.read_exact(&mut back).unwrap();
                    assert_eq!(u32::from_le_bytes(back), n);
                }
            }));
        }
        for task in served {
            task.await.unwrap();
        }
        for busy in busy {
            busy.cancel();
        }
    });
}

#[test]
fn connections_work_on_every_vcpu_of_their_coroutine() {
    echoes_beside_busy_coroutines(&Runtime::builder().vcpus(2).build().unwrap());
}

#[test]
fn connections_work_on_preemptible_vcpus() {
    let runtime = Runtime::builder()
        .vcpus(2)
        .preemption(Preemption::Preferred)
        .build()
        .unwrap();
    echoes_beside_busy_coroutines(&runtime);
}

#[test]
fn futures_of_connections_may_move_between_threads() {
    fn assert_send<T: Send>(_: T) {}
    #[expect(dead_code, reason = "it only has to compile")]
    fn all(stream: &'static mut TcpStream, listener: &'static TcpListener) {
        assert_send(TcpStream::connect(("localhost", 1)));
        assert_send(TcpStream::connect(String::new()));
        assert_send(upshift::net::lookup_host("localhost:1"));
        assert_send(listener.accept());
        let (mut reader, mut writer) = stream.split();
        assert_send(reader.recv());
        assert_send(reader.read(Vec::new()));
        assert_send(writer.write("static"));
        assert_send(writer.write_all(vec![1]));
        assert_send(writer.write_all_vectored(vec!["static"]));
        assert_send(writer.close());
    }
}

#[test]
fn host_names_are_resolved_and_invalid_addresses_are_explained() {
    block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        for connected in [
            TcpStream::connect(("localhost", port)).await,
            TcpStream::connect(format!("localhost:{port}")).await,
            TcpStream::connect(("127.0.0.1", port)).await,
            TcpStream::connect(format!("127.0.0.1:{port}").as_str()).await,
        ] {
            let peer = connected.unwrap().peer_addr().unwrap();
            assert_eq!(peer, listener.local_addr().unwrap());
        }
        let error = TcpStream::connect("127.0.0.1").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("HOST:PORT"), "{error}");
        let error = TcpStream::connect("no such host:80").await.unwrap_err();
        assert!(error.to_string().contains("no such host"), "{error}");
    });
}
