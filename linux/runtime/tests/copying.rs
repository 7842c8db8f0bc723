//! Tests of copying between readers and writers, and of the ecosystem's adapters over them.

#[path = "support/block_on.rs"]
mod block_on;

use std::time::Duration;

use upshift::io::{self, AsyncReadExt, AsyncWriteExt};
use upshift::net::UnixStream;
use upshift::{Priority, time};

use block_on::block_on;

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n % 251) as u8).collect()
}

#[test]
fn a_copy_moves_all_bytes_with_and_without_a_buffer() {
    block_on(async {
        for buffered in [false, true] {
            let (mut source, mut from) = UnixStream::pair().unwrap();
            let (mut to, mut sink) = UnixStream::pair().unwrap();
            let sent = pattern(3 << 20);
            let expected = sent.clone();
            let writing = upshift::spawn(
                async move { source.write_all(sent).await.0.unwrap() },
                Priority::Inherit,
            );
            let copying = upshift::spawn(
                async move {
                    if buffered {
                        io::copy(&mut from, &mut to).await.unwrap()
                    } else {
                        io::copy_buf(&mut from, &mut to).await.unwrap()
                    }
                },
                Priority::Inherit,
            );
            let mut all = Vec::new();
            sink.read_to_end(&mut all).await.unwrap();
            assert!(all == expected);
            assert_eq!(copying.await.unwrap(), 3 << 20);
            writing.await.unwrap();
        }
    });
}

#[test]
fn copying_both_ways_forwards_each_end_of_file() {
    block_on(async {
        let (client, mut a) = UnixStream::pair().unwrap();
        let (mut b, server) = UnixStream::pair().unwrap();
        let proxy = upshift::spawn(
            async move { io::copy_bidirectional(&mut a, &mut b).await.unwrap() },
            Priority::Inherit,
        );
        let served = upshift::spawn(
            async move {
                let (mut reader, mut writer) = server.into_split();
                let mut all = Vec::new();
                // The server observes the end of the request before it has sent its response.
                reader.read_to_end(&mut all).await.unwrap();
                writer.write_all(all.repeat(2)).await.0.unwrap();
            },
            Priority::Inherit,
        );
        let (mut reader, mut writer) = client.into_split();
        writer.write_all(pattern(100_000)).await.0.unwrap();
        drop(writer);
        let mut answer = Vec::new();
        reader.read_to_end(&mut answer).await.unwrap();
        assert!(answer == pattern(100_000).repeat(2));
        assert_eq!(proxy.await.unwrap(), (100_000, 200_000));
        served.await.unwrap();
    });
}

#[test]
fn copied_bytes_are_flushed_while_the_source_waits() {
    block_on(async {
        for buffered in [false, true] {
            let (mut source, mut from) = UnixStream::pair().unwrap();
            let (to, mut sink) = UnixStream::pair().unwrap();
            let mut to = io::BufWriter::new(to);
            let copying = upshift::spawn(
                async move {
                    if buffered {
                        io::copy(&mut from, &mut to).await.unwrap()
                    } else {
                        io::copy_buf(&mut from, &mut to).await.unwrap()
                    }
                },
                Priority::Inherit,
            );
            source.write_all("a question").await.0.unwrap();
            let mut bytes = [0; 10];
            let arrived = time::timeout(Duration::from_secs(10), sink.read_exact(&mut bytes)).await;
            arrived.expect("the bytes were not flushed").unwrap();
            assert_eq!(&bytes, b"a question");
            drop(source);
            assert_eq!(copying.await.unwrap(), 10);
        }
    });
}

#[test]
fn split_halves_and_buffered_writers_of_the_ecosystem_work() {
    block_on(async {
        let (one, mut other) = UnixStream::pair().unwrap();
        let (mut reader, writer) = io::split(one);
        let mut writer = io::BufWriter::new(writer);
        writer.write_all(b"buffered").await.unwrap();
        writer.flush().await.unwrap();
        assert_eq!(&other.recv().await.unwrap()[..], b"buffered");
        other.write_all("answer").await.0.unwrap();
        let mut bytes = [0; 6];
        reader.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"answer");
    });
}
