//! Tests of Unix streams: paths, abstract names, credentials, halves.

#[path = "support/block_on.rs"]
mod block_on;

use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::time::Duration;

use upshift::io::{AsyncReadExt, AsyncWriteExt};
use upshift::net::unix::SocketAddr;
use upshift::net::{UnixListener, UnixStream};
use upshift::{Priority, Runtime};

use block_on::block_on;

async fn echo(listener: UnixListener) {
    let (mut stream, _) = listener.accept().await.unwrap();
    loop {
        let data = stream.recv().await.unwrap();
        if data.is_empty() {
            return;
        }
        stream.write_all(data).await.0.unwrap();
    }
}

#[test]
fn a_listener_at_a_path_serves_clients_with_credentials() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("echo");
    block_on(async {
        let listener = UnixListener::bind(&path).unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(address.as_pathname(), Some(path.as_path()));
        let error = UnixListener::bind(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        let served = upshift::spawn(echo(listener), Priority::Inherit);

        let mut stream = UnixStream::connect(&path).await.unwrap();
        let cred = stream.peer_cred().unwrap();
        assert_eq!(cred.pid(), Some(std::process::id() as i32));
        assert!(stream.local_addr().unwrap().is_unnamed());
        AsyncWriteExt::write_all(&mut stream, b"by the trait")
            .await
            .unwrap();
        let (count, buffer) = stream.read(vec![0; 64]).await;
        assert_eq!(&buffer[..count.unwrap()], b"by the trait");
        let (mut reader, mut writer) = stream.into_split();
        writer.write_all("by its own call").await.0.unwrap();
        drop(writer);
        assert_eq!(&reader.recv().await.unwrap()[..], b"by its own call");
        assert!(reader.recv().await.unwrap().is_empty());
        served.await.unwrap();
    });
}

#[test]
fn abstract_names_need_no_file() {
    block_on(async {
        let name = format!("upshift-unix-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        let served = upshift::spawn(echo(listener), Priority::Inherit);
        let mut stream = UnixStream::connect_addr(&address).await.unwrap();
        assert_eq!(
            stream.peer_addr().unwrap().as_abstract_name(),
            Some(name.as_bytes())
        );
        stream.write_all("hello").await.0.unwrap();
        assert_eq!(&stream.recv().await.unwrap()[..], b"hello");
        drop(stream);
        served.await.unwrap();
    });
}

#[test]
fn connecting_fails_with_the_error_of_the_kernel() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("missing");
    block_on(async {
        let error = UnixStream::connect(&path).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        drop(UnixListener::bind(&path).unwrap());
        let error = UnixStream::connect(&path).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        let error = UnixStream::connect("x".repeat(200)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    });
}

/// The peer writes and closes before the reader starts. Each way of reading returns the end after
/// the data.
#[test]
fn every_read_after_the_data_returns_the_end() {
    let runtime = Runtime::builder().vcpus(1).build().unwrap();
    runtime.block_on(async {
        for size in [1usize, 100, 2048, 5000, 20_000, 60_000] {
            // Methods 0 and 2 drop the writer, 1 and 3 shut it down. Methods 0 and 1 read with
            // `recv`, 2 and 3 with `read_to_end`.
            for method in 0..4 {
                let (mut reader, mut writer) = UnixStream::pair().unwrap();
                writer.write_all(vec![7u8; size]).await.0.unwrap();
                match method % 2 {
                    0 => drop(writer),
                    _ => writer.shutdown(std::net::Shutdown::Write).unwrap(),
                }
                let read = async {
                    let mut all = Vec::new();
                    if method < 2 {
                        loop {
                            let piece = reader.recv().await.unwrap();
                            if piece.is_empty() {
                                break all;
                            }
                            all.extend_from_slice(&piece);
                        }
                    } else {
                        AsyncReadExt::read_to_end(&mut reader, &mut all)
                            .await
                            .unwrap();
                        all
                    }
                };
                let read = upshift::time::timeout(Duration::from_secs(10), read).await;
                assert_eq!(
                    read.expect("the end did not arrive").len(),
                    size,
                    "method {method}"
                );
            }
        }
    });
}

#[test]
fn several_coroutines_may_accept_from_one_listener() {
    let name = format!("upshift-unix-many-{}", std::process::id());
    let runtime = Runtime::builder().vcpus(2).build().unwrap();
    runtime.block_on(async {
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let listener = std::sync::Arc::new(UnixListener::bind_addr(&address).unwrap());
        let accepting: Vec<_> = (0..5)
            .map(|_| {
                let listener = listener.clone();
                upshift::spawn(
                    async move { drop(listener.accept().await.unwrap()) },
                    Priority::Inherit,
                )
            })
            .collect();
        for _ in 0..5 {
            UnixStream::connect_addr(&address).await.unwrap();
        }
        for accepting in accepting {
            accepting.await.unwrap();
        }
    });
}

#[test]
fn futures_of_unix_streams_may_move_between_threads() {
    fn assert_send<T: Send>(_: T) {}
    #[expect(dead_code, reason = "it only has to compile")]
    fn all(stream: &'static mut UnixStream, listener: &'static UnixListener) {
        assert_send(UnixStream::connect("/"));
        assert_send(listener.accept());
        let (mut reader, mut writer) = stream.split();
        assert_send(reader.recv());
        assert_send(writer.write_all("static"));
        assert_send(writer.close());
    }
}
