//! Waiting for descriptors of any kind, in both directions, at two levels.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use upshift::io::AsyncFd;
use upshift::{Level, Preemption, Runtime};

fn pair() -> (UnixStream, UnixStream) {
    let (here, there) = UnixStream::pair().unwrap();
    here.set_nonblocking(true).unwrap();
    there.set_nonblocking(true).unwrap();
    (here, there)
}

/// Sends a megabyte through a socket with a smaller buffer; inline and preemptible.
#[test]
fn both_directions_wait_and_lose_nothing() {
    const LENGTH: usize = 1 << 20;
    for preemption in [Preemption::Off, Preemption::Preferred] {
        let builder = Runtime::builder().vcpus(2).preemption(preemption);
        builder.build().unwrap().block_on(async {
            let (mut here, mut there) = pair();
            let (writes, reads) = (here.try_clone().unwrap(), there.try_clone().unwrap());
            let writer = upshift::spawn(
                async move {
                    let fd = AsyncFd::new(writes);
                    let bytes: Vec<u8> = (0..LENGTH).map(|n| (n % 251) as u8).collect();
                    let mut sent = 0;
                    while sent < LENGTH {
                        sent += fd.write_with(|_| here.write(&bytes[sent..])).await.unwrap();
                    }
                },
                Level::at::<8>(),
            );
            let fd = AsyncFd::new(reads);
            let mut got = vec![0; LENGTH];
            let mut length = 0;
            while length < LENGTH {
                length += fd
                    .read_with(|_| there.read(&mut got[length..]))
                    .await
                    .unwrap();
            }
            assert!(
                got.iter()
                    .enumerate()
                    .all(|(n, byte)| *byte == (n % 251) as u8)
            );
            writer.await.unwrap();
        });
    }
}

/// Several wait for one; the urgent one of them is polled first.
#[test]
fn waiters_for_the_same_event_run_by_level() {
    Runtime::builder()
        .vcpus(1)
        .build()
        .unwrap()
        .block_on(async {
            let (mut here, there) = pair();
            let fd = Arc::new(AsyncFd::new(there));
            let turn = Arc::new(AtomicUsize::new(0));
            let mut waiting = Vec::new();
            for level in [40_u8, 8, 20] {
                let (fd, turn) = (fd.clone(), turn.clone());
                let wait = async move {
                    fd.readable().await.unwrap();
                    turn.fetch_add(1, Ordering::SeqCst)
                };
                waiting.push(upshift::spawn(wait, Level::new(level).unwrap()));
            }
            upshift::time::sleep(Duration::from_millis(2)).await;
            here.write_all(b"x").unwrap();
            while turn.load(Ordering::SeqCst) < 3 {
                upshift::time::sleep(Duration::from_millis(1)).await;
            }
            let mut order = Vec::new();
            for waits in waiting {
                order.push(waits.await.unwrap());
            }
            assert_eq!(order, [2, 0, 1]);
        });
}

/// A wait ends at once while the descriptor is ready; after a read, at the next change.
#[test]
fn a_descriptor_that_is_used_up_waits_for_the_next_change() {
    Runtime::builder()
        .vcpus(1)
        .build()
        .unwrap()
        .block_on(async {
            let (mut here, mut there) = pair();
            let fd = AsyncFd::new(there.try_clone().unwrap());
            here.write_all(b"x").unwrap();
            for _ in 0..3 {
                fd.readable().await.unwrap();
            }
            assert_eq!(there.read(&mut [0; 8]).unwrap(), 1);
            let again = there.read(&mut [0; 8]).unwrap_err();
            assert_eq!(again.kind(), io::ErrorKind::WouldBlock);
            let waited = upshift::time::timeout(Duration::from_millis(2), fd.readable()).await;
            assert!(waited.is_err());
            here.write_all(b"y").unwrap();
            fd.readable().await.unwrap();
            drop(here);
            fd.readable().await.unwrap();
            fd.writable().await.unwrap();
        });
}
