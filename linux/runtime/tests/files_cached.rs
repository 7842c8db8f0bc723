//! Tests of reads of cached data, which bypass the ring, beside reads of other data, which use the
//! ring. Both must return the bytes of the file.

#[path = "support/block_on.rs"]
mod block_on;
#[path = "support/scratch.rs"]
mod scratch;

use std::io::{ErrorKind, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::poll;
use upshift::fs::{self, File, OpenOptions};
use upshift::{Handle, Level, Priority, Runtime};

use block_on::block_on;
use scratch::ScratchFile;

/// Reads `length` bytes of the file at `offset`, and compares them.
async fn check(scratch: &ScratchFile, file: &File, offset: usize, length: usize) {
    let start = offset.min(scratch.bytes.len());
    let expected = &scratch.bytes[start..(offset + length).min(scratch.bytes.len()).max(start)];
    let (count, buffer) = file
        .read_at(Vec::with_capacity(length), offset as u64)
        .await;
    let count = count.unwrap();
    assert_eq!(count, expected.len(), "{length} bytes at {offset}");
    assert!(buffer == expected, "{length} bytes at {offset}");
    let (count, buffer) = file
        .read_at(vec![7; length].into_boxed_slice(), offset as u64)
        .await;
    assert_eq!(count.unwrap(), expected.len());
    assert!(&buffer[..expected.len()] == expected);
    assert!(buffer[expected.len()..].iter().all(|&byte| byte == 7));
}

/// Lengths of reads, around those of pages and pieces.
const LENGTHS: [usize; 8] = [1, 100, 4096, 5000, 65_536, 262_144, 262_145, 700_001];

#[test]
fn cached_bytes_are_the_bytes_of_the_file() {
    let scratch = ScratchFile::new(1_000_003);
    block_on(async {
        let file = File::open(&scratch.path).await.unwrap();
        for length in LENGTHS {
            for offset in [
                0, 1, 4095, 262_144, 999_999, 1_000_002, 1_000_003, 5_000_000,
            ] {
                check(&scratch, &file, offset, length).await;
            }
        }
        let (count, _) = file.read_at(Vec::new(), 0).await;
        assert_eq!(count.unwrap(), 0);
        assert!(fs::read(&scratch.path).await.unwrap() == scratch.bytes);
        let converted = File::from_std(std::fs::File::open(&scratch.path).unwrap());
        check(&scratch, &converted, 17, 4096).await;
    });
}

#[test]
fn uncached_and_partly_cached_bytes_are_the_bytes_of_the_file() {
    let scratch = ScratchFile::new(1_000_003);
    block_on(async {
        let file = File::open(&scratch.path).await.unwrap();
        for (index, length) in LENGTHS.into_iter().enumerate() {
            scratch.evict(0, 0);
            check(&scratch, &file, 4096 * index, length).await;
            // A middle part of the file leaves the cache.
            let _ = std::fs::read(&scratch.path).unwrap();
            scratch.evict(64 << 10, 128 << 10);
            check(&scratch, &file, 1000, length).await;
        }
        for _ in 0..3 {
            scratch.evict(0, 0);
            assert!(fs::read(&scratch.path).await.unwrap() == scratch.bytes);
            scratch.evict(4096, 0);
            assert!(fs::read(&scratch.path).await.unwrap() == scratch.bytes);
        }
    });
}

#[test]
fn an_opened_file_has_only_the_requested_flags() {
    let scratch = ScratchFile::new(10);
    block_on(async {
        // In the second round the name is cached.
        for _ in 0..2 {
            let file = File::open(&scratch.path).await.unwrap();
            // SAFETY: `fcntl` takes no pointer.
            let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
            assert_eq!(flags & libc::O_NONBLOCK, 0);
            let mut options = OpenOptions::new();
            let options = options.read(true).custom_flags(libc::O_NONBLOCK);
            let file = options.open(&scratch.path).await.unwrap();
            // SAFETY: `fcntl` takes no pointer.
            let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
            assert_ne!(flags & libc::O_NONBLOCK, 0);
        }
    });
}

#[test]
fn direct_reads_return_the_bytes_of_the_file() {
    let scratch = ScratchFile::new(64 << 10);
    scratch.evict(0, 0);
    block_on(async {
        let direct = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECT)
            .open(&scratch.path)
            .await;
        let Ok(file) = direct else {
            return; // The file system does not support direct I/O.
        };
        #[repr(align(4096))]
        struct Aligned([u8; 8192]);
        let memory = Box::leak(Box::new(Aligned([0; 8192])));
        // SAFETY: the memory is leaked, so it has no other owner, and `buffer` is forgotten below
        // instead of freed.
        let buffer = unsafe { Box::from_raw(std::ptr::from_mut(&mut memory.0[..])) };
        let (count, buffer) = file.read_at(buffer, 4096).await;
        let matches = count
            .as_ref()
            .is_ok_and(|&count| buffer[..count] == scratch.bytes[4096..4096 + count]);
        std::mem::forget(buffer);
        assert!(matches, "the read returned {count:?}");
    });
}

#[test]
fn special_files_are_read() {
    block_on(async {
        let status = fs::read_to_string("/proc/self/status").await.unwrap();
        assert!(status.contains("VmRSS"));
        let file = File::open("/proc/self/status").await.unwrap();
        for _ in 0..3 {
            let (count, buffer) = file.read_at(vec![0; 16], 0).await;
            assert_eq!(&buffer[..count.unwrap()], &status.as_bytes()[..16]);
        }
        let zero = File::open("/dev/zero").await.unwrap();
        let (count, buffer) = zero.read_at(vec![1; 100_000], 5).await;
        assert_eq!((count.unwrap(), buffer), (100_000, vec![0; 100_000]));

        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"through a pipe").unwrap();
        let pipe = File::from_std(OwnedFd::from(reader).into());
        let (count, buffer) = pipe.read_at(vec![0; 64], u64::MAX).await;
        assert_eq!(&buffer[..count.unwrap()], b"through a pipe");
        drop(writer);
        let (count, _) = pipe.read_at(vec![0; 64], u64::MAX).await;
        assert_eq!(count.unwrap(), 0);

        let directory = File::open("/").await.unwrap();
        let error = directory.read_at(vec![0; 64], 0).await.0.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::IsADirectory);
        let error = fs::read("/does/not/exist").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let shared =
            PathBuf::from("/dev/shm").join(format!("upshift-cached-{}", std::process::id()));
        if std::fs::write(&shared, b"in memory").is_ok() {
            let bytes = fs::read(&shared).await;
            std::fs::remove_file(&shared).unwrap();
            assert_eq!(bytes.unwrap(), b"in memory");
        }
    });
}

#[test]
fn a_fifo_does_not_block_the_vcpu() {
    let path = std::env::temp_dir().join(format!("upshift-cached-fifo-{}", std::process::id()));
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: `name` is a C string.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    block_on(async {
        // In the second round the name is cached.
        for _ in 0..2 {
            let file = File::open(&path).await.unwrap();
            let writer = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            (&writer).write_all(b"hello").unwrap();
            let (count, buffer) = file.read_at(vec![0; 8], u64::MAX).await;
            assert_eq!(&buffer[..count.unwrap()], b"hello");
        }
    });
    std::fs::remove_file(path).unwrap();
}

#[test]
fn appended_bytes_are_read() {
    let scratch = ScratchFile::new(10);
    block_on(async {
        let log = OpenOptions::new()
            .append(true)
            .open(&scratch.path)
            .await
            .unwrap();
        let file = File::open(&scratch.path).await.unwrap();
        let mut expected = scratch.bytes.clone();
        for n in 0..50_u8 {
            let (count, _) = file.read_at(vec![0; 64], expected.len() as u64).await;
            assert_eq!(count.unwrap(), 0);
            log.write_all_at(vec![n; 33], 0).await.0.unwrap();
            if n % 10 == 0 {
                log.sync_data().await.unwrap();
            }
            let (count, buffer) = file.read_at(vec![0; 64], expected.len() as u64).await;
            assert_eq!(&buffer[..count.unwrap()], [n; 33]);
            expected.extend_from_slice(&[n; 33]);
        }
        assert_eq!(fs::read(&scratch.path).await.unwrap(), expected);
    });
}

#[test]
fn a_read_may_be_dropped_at_any_moment() {
    let scratch = ScratchFile::new(3 << 20);
    block_on(async {
        let file = File::open(&scratch.path).await.unwrap();
        for round in 0..100_usize {
            if round % 3 == 0 {
                scratch.evict(0, 0);
            } else if round % 3 == 1 {
                scratch.evict(1 << 20, 1 << 20);
            }
            let mut read = Box::pin(file.read_at(Vec::with_capacity(3 << 20), 0));
            for _ in 0..round % 5 {
                if let Poll::Ready((count, bytes)) = poll!(read.as_mut()) {
                    assert_eq!(count.unwrap(), 3 << 20);
                    assert!(bytes == scratch.bytes);
                    break;
                }
                upshift::yield_now().await;
            }
        }
        check(&scratch, &file, 0, 3 << 20).await;
    });
}

#[test]
fn a_long_cached_read_yields_to_more_urgent_work() {
    let scratch = ScratchFile::new(96 << 20);
    // This read fills the page cache, unless memory is short.
    assert!(std::fs::read(&scratch.path).unwrap() == scratch.bytes);
    block_on(async {
        let file = File::open(&scratch.path).await.unwrap();
        let has_run = Arc::new(AtomicBool::new(false));
        let setter = has_run.clone();
        let urgent = async move {
            upshift::time::sleep(Duration::from_micros(500)).await;
            setter.store(true, Ordering::Relaxed);
        };
        let urgent = upshift::spawn(urgent, Level::MOST_URGENT);
        let bulk = async move {
            // This read begins before the urgent coroutine's timer is due, and takes longer than
            // the timer.
            let (count, _) = file.read_at(Vec::with_capacity(96 << 20), 0).await;
            assert_eq!(count.unwrap(), 96 << 20);
            has_run.load(Ordering::Relaxed)
        };
        let has_yielded = upshift::spawn(bulk, Level::new(40).unwrap());
        assert!(
            has_yielded.await.unwrap(),
            "the urgent coroutine ran only after the whole read"
        );
        urgent.await.unwrap();
    });
}

#[test]
fn many_readers_get_the_bytes_of_a_file_that_leaves_the_cache_repeatedly() {
    let scratch = Arc::new(ScratchFile::new(2_000_000));
    let runtime = Runtime::builder().vcpus(2).build().unwrap();
    runtime.block_on(async {
        let file = File::open(&scratch.path).await.unwrap();
        let readers: Vec<_> = (0..16_usize)
            .map(|reader| {
                let (file, scratch) = (file.clone(), scratch.clone());
                let work = async move {
                    for n in 0..60 {
                        let random = (reader * 60 + n).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
                        if n % 16 == reader {
                            scratch.evict(0, 0);
                        }
                        let length = LENGTHS[random % LENGTHS.len()];
                        check(&scratch, &file, random % 2_000_000, length).await;
                    }
                };
                upshift::spawn(work, Priority::Inherit)
            })
            .collect();
        for reader in readers {
            reader.await.unwrap();
        }
    });
    // The reads have not changed the file.
    let file = std::fs::File::open(&scratch.path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 1_999_999).unwrap();
    assert_eq!(byte[0], scratch.bytes[1_999_999]);
}

#[test]
fn reads_are_submitted_before_all_ready_coroutines_have_run() {
    const READS: usize = 40;
    let runtime = Runtime::builder()
        .vcpus(1)
        .reap_interval(Duration::from_secs(60))
        .build()
        .unwrap();
    runtime.block_on(async {
        // A read of an empty pipe is submitted to the ring, where submissions can be counted.
        let (reader, mut writer) = std::io::pipe().unwrap();
        let pipe = File::from_std(OwnedFd::from(reader).into());
        let enters = || Handle::current().unwrap().metrics().vcpus[0].ring.enters;
        let (before, num_begun) = (enters(), Arc::new(AtomicUsize::new(0)));
        let reads: Vec<_> = (0..READS)
            .map(|_| {
                let (pipe, num_begun) = (pipe.clone(), num_begun.clone());
                let read = async move {
                    num_begun.fetch_add(1, Ordering::Relaxed);
                    pipe.read_at(vec![0], u64::MAX).await.0.unwrap()
                };
                upshift::spawn_local(read, Priority::Inherit)
            })
            .collect();
        while num_begun.load(Ordering::Relaxed) < READS {
            upshift::yield_now().await;
        }
        let submissions = enters() - before;
        // The vCPU submits as soon as four reads have gathered. The margin is one submission.
        let min_submissions = READS as u64 / 4 - 1;
        assert!(
            submissions >= min_submissions,
            "{submissions} submissions of {READS} reads"
        );
        writer.write_all(&[1; READS]).unwrap();
        for read in reads {
            assert_eq!(read.await.unwrap(), 1);
        }
    });
}
