//! Tests of file streams whose calls are dropped before they complete. No call must get the result
//! of another call.

use std::future::poll_fn;
use std::io::{SeekFrom, Write};
use std::path::Path;
use std::task::Poll;

use upshift::fs::{File, FileStream, OpenOptions};
use upshift::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
use upshift::{Driver, Runtime};

fn on_both_drivers(test: impl AsyncFn(&Path)) {
    for driver in [Driver::Auto, Driver::Readiness] {
        let folder = tempfile::tempdir().unwrap();
        let runtime = Runtime::builder().vcpus(1).driver(driver);
        let path = folder.path().join("file");
        runtime.build().unwrap().block_on(test(&path));
    }
}

async fn open(path: &Path) -> FileStream {
    let file = OpenOptions::new().read(true).write(true).open(path).await;
    file.unwrap().into_stream()
}

/// Polls a call once and drops it, as a timeout or a `select!` does.
async fn poll_once_and_drop<T>(call: impl Future<Output = T>) {
    let mut call = Box::pin(call);
    poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_ready())).await;
}

/// Waits until the operation of a dropped call has ended.
async fn settle() {
    upshift::time::sleep(std::time::Duration::from_millis(50)).await;
}

#[test]
fn a_dropped_seek_does_not_determine_the_result_of_a_later_seek() {
    on_both_drivers(async |path| {
        std::fs::write(path, "0123456789").unwrap();
        let mut stream = open(path).await;
        poll_once_and_drop(stream.seek(SeekFrom::End(0))).await;
        stream.seek(SeekFrom::Start(10)).await.unwrap();
        stream.write_all(b"ABCDEFGHIJ").await.unwrap();
        stream.flush().await.unwrap();
        assert_eq!(stream.seek(SeekFrom::End(0)).await.unwrap(), 20);
        stream.write_all(b"#").await.unwrap();
        stream.close().await.unwrap();
        let all = std::fs::read_to_string(path).unwrap();
        assert_eq!(all, "0123456789ABCDEFGHIJ#");
    });
}

#[test]
fn a_dropped_seek_does_not_determine_the_result_of_the_same_call_after_the_file_has_grown() {
    on_both_drivers(async |path| {
        std::fs::write(path, "0123456789").unwrap();
        let mut stream = open(path).await;
        poll_once_and_drop(stream.seek(SeekFrom::End(0))).await;
        settle().await;
        std::fs::write(path, "0123456789ABCDEFGHIJ").unwrap();
        assert_eq!(stream.seek(SeekFrom::End(0)).await.unwrap(), 20);
        poll_once_and_drop(stream.seek(SeekFrom::End(0))).await;
        assert_eq!(stream.seek(SeekFrom::End(-15)).await.unwrap(), 5);
    });
}

#[test]
fn a_read_dropped_at_the_end_does_not_hide_appended_bytes() {
    on_both_drivers(async |path| {
        std::fs::write(path, "one").unwrap();
        let mut stream = open(path).await;
        let mut three = [0; 3];
        stream.read_exact(&mut three).await.unwrap();
        poll_once_and_drop(stream.read(&mut three)).await;
        settle().await;
        let mut file = std::fs::OpenOptions::new().append(true).open(path).unwrap();
        file.write_all(b"two").unwrap();
        assert_eq!(stream.read(&mut [0; 3]).await.unwrap(), 3);
        assert_eq!(stream.read(&mut [0; 3]).await.unwrap(), 0);
    });
}

#[test]
fn dropped_calls_lose_and_repeat_no_data() {
    on_both_drivers(async |path| {
        let mut stream = File::create(path).await.unwrap().into_stream();
        let mut expected = Vec::new();
        for byte in 0..100_u8 {
            poll_once_and_drop(stream.flush()).await;
            poll_once_and_drop(stream.close()).await;
            stream.write_all(&[byte; 1000]).await.unwrap();
            expected.extend_from_slice(&[byte; 1000]);
        }
        stream.flush().await.unwrap();
        assert_eq!(std::fs::read(path).unwrap(), expected);
        let mut stream = open(path).await;
        let mut all = Vec::new();
        loop {
            poll_once_and_drop(stream.read(&mut [])).await;
            let mut buffer = [0; 777];
            match stream.read(&mut buffer).await.unwrap() {
                0 => break,
                count => all.extend_from_slice(&buffer[..count]),
            }
        }
        assert_eq!(all, expected);
    });
}
