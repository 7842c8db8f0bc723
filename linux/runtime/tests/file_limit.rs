//! Tests of writes that exceed the largest file size (RLIMIT_FSIZE), which stands for a full disk.
//! This file has one test, because the limit is that of the process.

use std::future::poll_fn;
use std::io::{ErrorKind, SeekFrom};
use std::task::Poll;

use upshift::fs::File;
use upshift::io::{AsyncSeekExt, AsyncWriteExt};
use upshift::{Driver, Runtime};

fn limit_file_size(bytes: libc::rlim_t) {
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: `limit` is a live local.
    let result = unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) };
    assert_eq!(result, 0);
}

#[test]
fn after_a_failed_write_the_position_is_after_the_written_bytes() {
    // SAFETY: SIG_IGN is not a function.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    for driver in [Driver::Auto, Driver::Readiness] {
        let runtime = Runtime::builder().vcpus(1).driver(driver).build().unwrap();
        runtime.block_on(async {
            let mut stream = File::create(&path).await.unwrap().into_stream();
            limit_file_size(4);
            stream.write_all(b"12345678").await.unwrap();
            let error = stream.flush().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::FileTooLarge);
            assert_eq!(stream.position(), 4);
            // The stream has no data left to write.
            stream.flush().await.unwrap();
            limit_file_size(libc::RLIM_INFINITY);
            stream.write_all(b"abcd").await.unwrap();
            stream.close().await.unwrap();
            assert_eq!(stream.position(), 8);
            assert_eq!(std::fs::read(&path).unwrap(), b"1234abcd");

            // After a flush that was dropped, the next call returns the error.
            let mut stream = File::create(&path).await.unwrap().into_stream();
            limit_file_size(4);
            stream.write_all(b"12345678").await.unwrap();
            let mut flush = Box::pin(stream.flush());
            poll_fn(|cx| Poll::Ready(flush.as_mut().poll(cx).is_ready())).await;
            drop(flush);
            let error = stream.seek(SeekFrom::Current(0)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::FileTooLarge);
            assert_eq!(stream.seek(SeekFrom::Current(0)).await.unwrap(), 4);
            limit_file_size(libc::RLIM_INFINITY);
        });
    }
}
