//! Tests of waiting for descriptors of any kind, in both directions, at different levels.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use upshift::io::AsyncFd;
use upshift::{Level, Preemption, Runtime};

fn pair() -> (UnixStream, UnixStream) {
    let (local, peer) = UnixStream::pair().unwrap();
    local.set_nonblocking(true).unwrap();
    peer.set_nonblocking(true).unwrap();
    (local, peer)
}

/// Sends a megabyte through a socket with a smaller buffer, on inline and on preemptible vCPUs.
#[test]
fn both_directions_wait_and_lose_no_data() {
    const LENGTH: usize = 1 << 20;
    for preemption in [Preemption::Off, Preemption::Preferred] {
        let builder = Runtime::builder().vcpus(2).preemption(preemption);
        builder.build().unwrap().block_on(async {
            let (mut local, mut peer) = pair();
            let (writer_fd, reader_fd) = (local.try_clone().unwrap(), peer.try_clone().unwrap());
            let writer = upshift::spawn(
                async move {
                    let fd = AsyncFd::new(writer_fd);
                    let bytes: Vec<u8> = (0..LENGTH).map(|n| (n % 251) as u8).collect();
                    let mut sent = 0;
                    while sent < LENGTH {
                        sent += fd
                            .write_with(|_| local.write(&bytes[sent..]))
                            .await
                            .unwrap();
                    }
                },
                Level::at::<8>(),
            );
            let fd = AsyncFd::new(reader_fd);
            let mut received = vec![0; LENGTH];
            let mut length = 0;
            while length < LENGTH {
                length += fd
                    .read_with(|_| peer.read(&mut received[length..]))
                    .await
                    .unwrap();
            }
            assert!(
                received
                    .iter()
                    .enumerate()
                    .all(|(n, byte)| *byte == (n % 251) as u8)
            );
            writer.await.unwrap();
        });
    }
}

/// Several coroutines wait for one descriptor, and the most urgent is polled first.
#[test]
fn waiters_for_the_same_event_run_by_level() {
    Runtime::builder()
        .vcpus(1)
        .build()
        .unwrap()
        .block_on(async {
            let (mut local, peer) = pair();
            let fd = Arc::new(AsyncFd::new(peer));
            let next_position = Arc::new(AtomicUsize::new(0));
            let mut waiters = Vec::new();
            for level in [40_u8, 8, 20] {
                let (fd, next_position) = (fd.clone(), next_position.clone());
                let wait = async move {
                    fd.readable().await.unwrap();
                    next_position.fetch_add(1, Ordering::SeqCst)
                };
                waiters.push(upshift::spawn(wait, Level::new(level).unwrap()));
            }
            upshift::time::sleep(Duration::from_millis(2)).await;
            local.write_all(b"x").unwrap();
            while next_position.load(Ordering::SeqCst) < 3 {
                upshift::time::sleep(Duration::from_millis(1)).await;
            }
            let mut order = Vec::new();
            for waiter in waiters {
                order.push(waiter.await.unwrap());
            }
            // The positions of the waiters at the levels 40, 8 and 20.
            assert_eq!(order, [2, 0, 1]);
        });
}

/// A wait ends at once while the descriptor is ready. After the data has been read, a wait ends at
/// the next change.
#[test]
fn a_drained_descriptor_is_ready_at_the_next_change() {
    Runtime::builder()
        .vcpus(1)
        .build()
        .unwrap()
        .block_on(async {
            let (mut local, mut peer) = pair();
            let fd = AsyncFd::new(peer.try_clone().unwrap());
            local.write_all(b"x").unwrap();
            for _ in 0..3 {
                fd.readable().await.unwrap();
            }
            assert_eq!(peer.read(&mut [0; 8]).unwrap(), 1);
            let error = peer.read(&mut [0; 8]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
            let waited = upshift::time::timeout(Duration::from_millis(2), fd.readable()).await;
            assert!(waited.is_err());
            local.write_all(b"y").unwrap();
            fd.readable().await.unwrap();
            drop(local);
            fd.readable().await.unwrap();
            fd.writable().await.unwrap();
        });
}
