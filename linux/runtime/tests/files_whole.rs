//! Tests of reading whole files, alone and concurrently with other files.

#[path = "support/block_on.rs"]
mod block_on;
#[path = "support/read_concurrently.rs"]
mod read_concurrently;
#[path = "support/scratch.rs"]
mod scratch;

use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::poll;
use upshift::fs::{self, File};
use upshift::io::AsyncReadExt;
use upshift::{Driver, Priority, Runtime};

use block_on::block_on;
use read_concurrently::read_concurrently;
use scratch::ScratchFile;

#[test]
fn whole_files_of_all_sizes_are_read() {
    for length in [0, 1, 63, 64, 65, 4096, 8191, 8192, 8193, 20_000, 300_000] {
        let scratch = ScratchFile::new(length);
        block_on(async {
            assert!(fs::read(&scratch.path).await.unwrap() == scratch.bytes);
            scratch.evict(0, 0);
            assert!(fs::read(&scratch.path).await.unwrap() == scratch.bytes);
            let mut all = Vec::new();
            let mut stream = File::open(&scratch.path).await.unwrap().into_stream();
            stream.read_to_end(&mut all).await.unwrap();
            assert!(all == scratch.bytes);
        });
    }
}

#[test]
fn files_of_all_kinds_and_sizes_are_read_concurrently() {
    let scratch: Vec<_> = [
        0, 1, 4000, 4096, 8192, 16_383, 16_384, 16_385, 20_480, 300_000,
    ]
    .map(ScratchFile::new)
    .into();
    let mut paths: Vec<_> = scratch.iter().map(|scratch| scratch.path.clone()).collect();
    let other_paths = ["/proc/self/status", "/", "/does/not/exist", "/dev/null"];
    paths.extend(other_paths.map(PathBuf::from));
    let long = PathBuf::from(format!("/{}etc/passwd", "./".repeat(150)));
    paths.push(long);
    for (driver, vcpus) in [(Driver::Auto, 1), (Driver::Auto, 2), (Driver::Readiness, 1)] {
        let runtime = Runtime::builder().driver(driver).vcpus(vcpus);
        let runtime = runtime.build().unwrap();
        runtime.block_on(async {
            for round in 0..20 {
                if round % 4 == 0 {
                    scratch[round % 10].evict(0, 0);
                    scratch[9].evict(8192, 0);
                }
                let mut all = read_concurrently(&paths).await;
                for (bytes, scratch) in all.drain(..10).zip(&scratch) {
                    assert!(
                        bytes.unwrap() == scratch.bytes,
                        "{} bytes",
                        scratch.bytes.len()
                    );
                }
                let status = String::from_utf8(all.remove(0).unwrap()).unwrap();
                assert!(status.contains("VmRSS") && status.contains("nonvoluntary"));
                let kinds: Vec<_> = all
                    .iter()
                    .map(|r| r.as_ref().map_err(|e| e.kind()))
                    .collect();
                assert_eq!(kinds[0], Err(ErrorKind::IsADirectory));
                assert_eq!(kinds[1], Err(ErrorKind::NotFound));
                assert_eq!(kinds[2], Ok(&Vec::new()));
                assert_eq!(kinds[3], Ok(&std::fs::read("/etc/passwd").unwrap()));
            }
        });
    }
}

#[test]
fn a_fifo_is_read_to_its_end_beside_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fifo");
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: `name` is a C string.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let scratch = ScratchFile::new(100);
    block_on(async {
        for _ in 0..5 {
            let fifo = std::fs::OpenOptions::new()
                .read(true)
                .write(true)
                .open(&path);
            let mut fifo = fifo.unwrap();
            fifo.write_all(b"hel").unwrap();
            let has_begun = Arc::new(AtomicBool::new(false));
            let begun = has_begun.clone();
            let writer = std::thread::spawn(move || {
                while !begun.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                fifo.write_all(b"lo").unwrap();
            });
            let paths = [scratch.path.clone(), path.clone(), scratch.path.clone()];
            let reads = upshift::spawn(
                async move { read_concurrently(&paths).await },
                Priority::Inherit,
            );
            for _ in 0..20 {
                upshift::yield_now().await;
            }
            has_begun.store(true, Ordering::Relaxed);
            let all = reads.await.unwrap();
            assert_eq!(all[1].as_ref().unwrap(), b"hello");
            assert_eq!(all[2].as_ref().unwrap(), &scratch.bytes);
            writer.join().unwrap();
        }
    });
}

#[test]
fn reads_of_whole_files_may_be_dropped_at_any_moment() {
    let scratch: Vec<_> = [100, 4096, 50_000].map(ScratchFile::new).into();
    let open_descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    block_on(async {
        let before = open_descriptors();
        for round in 0..200_usize {
            let mut reads: Vec<_> = (0..8)
                .map(|n| Box::pin(fs::read(scratch[(n + round) % 3].path.clone())))
                .collect();
            // Another coroutine is ready, so that the reads are not submitted at once.
            let other = upshift::spawn(async {}, Priority::Inherit);
            for polls in 0..=round % 4 {
                for n in 0..reads.len() {
                    if polls * 8 <= round % 29 + n
                        && let Poll::Ready(bytes) = poll!(reads[n].as_mut())
                    {
                        let source = &scratch[(n + round) % 3];
                        assert!(bytes.unwrap() == source.bytes);
                        reads[n] = Box::pin(fs::read(source.path.clone()));
                    }
                }
                upshift::yield_now().await;
            }
            drop(reads);
            other.await.unwrap();
        }
        for scratch in &scratch {
            assert!(fs::read(&scratch.path).await.unwrap() == scratch.bytes);
        }
        upshift::time::sleep(Duration::from_millis(5)).await;
        // Other tests in this process also open descriptors, hence the margin of 100.
        assert!(
            open_descriptors() < before + 100,
            "{} were open, {} are",
            before,
            open_descriptors()
        );
    });
}
