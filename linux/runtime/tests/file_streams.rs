//! Streams of files whose calls are given up in the middle: no call gets the answer of another one.

use std::future::poll_fn;
use std::io::{SeekFrom, Write};
use std::path::Path;
use std::task::Poll;

use upshift::fs::{File, FileStream, OpenOptions};
use upshift::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
use upshift::{Driver, Runtime};

fn on_both(test: impl AsyncFn(&Path)) {
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

/// Polls a call once, as a timeout or a `select!` does, and gives it up.
async fn give_up<T>(call: impl Future<Output = T>) {
    let mut call = Box::pin(call);
    poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_ready())).await;
}

/// Waits until the operation of a call that was given up has ended.
async fn settle() {
    upshift::time::sleep(std::time::Duration::from_millis(50)).await;
}

#[test]
fn a_seek_that_was_given_up_does_not_answer_a_later_one() {
    on_both(async |path| {
        std::fs::write(path, "0123456789").unwrap();
        let mut stream = open(path).await;
        give_up(stream.seek(SeekFrom::End(0))).await;
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
fn a_seek_that_was_given_up_does_not_answer_the_same_call_after_the_file_has_grown() {
    on_both(async |path| {
        std::fs::write(path, "0123456789").unwrap();
        let mut stream = open(path).await;
        give_up(stream.seek(SeekFrom::End(0))).await;
        settle().await;
        std::fs::write(path, "0123456789ABCDEFGHIJ").unwrap();
        assert_eq!(stream.seek(SeekFrom::End(0)).await.unwrap(), 20);
        give_up(stream.seek(SeekFrom::End(0))).await;
        assert_eq!(stream.seek(SeekFrom::End(-15)).await.unwrap(), 5);
    });
}

#[test]
fn a_read_dropped_at_the_end_does_not_hide_appended_bytes() {
    on_both(async |path| {
        std::fs::write(path, "one").unwrap();
        let mut stream = open(path).await;
        let mut three = [0; 3];
        stream.read_exact(&mut three).await.unwrap();
        give_up(stream.read(&mut three)).await;
        settle().await;
        let mut more = std::fs::OpenOptions::new().append(true).open(path).unwrap();
        more.write_all(b"two").unwrap();
        assert_eq!(stream.read(&mut [0; 3]).await.unwrap(), 3);
        assert_eq!(stream.read(&mut [0; 3]).await.unwrap(), 0);
    });
}

#[test]
fn calls_that_are_given_up_lose_and_repeat_nothing() {
    on_both(async |path| {
        let mut stream = File::create(path).await.unwrap().into_stream();
        let mut expected = Vec::new();
        for byte in 0..100_u8 {
            give_up(stream.flush()).await;
            give_up(stream.close()).await;
            stream.write_all(&[byte; 1000]).await.unwrap();
            expected.extend_from_slice(&[byte; 1000]);
        }
        stream.flush().await.unwrap();
        assert_eq!(std::fs::read(path).unwrap(), expected);
        let mut stream = open(path).await;
        let mut all = Vec::new();
        loop {
            give_up(stream.read(&mut [])).await;
            let mut some = [0; 777];
            match stream.read(&mut some).await.unwrap() {
                0 => break,
                count => all.extend_from_slice(&some[..count]),
            }
        }
        assert_eq!(all, expected);
    });
}
