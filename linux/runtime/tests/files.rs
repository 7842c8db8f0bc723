//! Tests of files, and of system calls in their synchronous and asynchronous forms.

#[path = "support/block_on.rs"]
mod block_on;

use std::os::fd::AsFd;

use upshift::fs::{File, OpenOptions};
use upshift::sys::{read, write};
use upshift::{Level, Priority};

use block_on::block_on;

#[test]
fn a_file_is_written_synced_and_read_by_position() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("position");
    block_on(async {
        let file = File::create(&path).await.unwrap();
        file.write_all_at("world", 6).await.0.unwrap();
        file.write_all_at("hello ", 0).await.0.unwrap();
        let (count, _) = file
            .write_vectored_at(vec![b"!".to_vec(), b"?".to_vec()], 11)
            .await;
        assert_eq!(count.unwrap(), 2);
        file.sync_data().await.unwrap();
        file.sync_all().await.unwrap();
        assert_eq!(file.len().await.unwrap(), 13);

        let file = File::open(&path).await.unwrap();
        let (count, buffer) = file.read_at(vec![0; 64], 6).await;
        assert_eq!(&buffer[..count.unwrap()], b"world!?");
        let (count, _) = file.read_at(vec![0; 64], 1000).await;
        assert_eq!(count.unwrap(), 0);
        let (count, buffers) = file.read_vectored_at(vec![vec![0; 5], vec![0; 8]], 0).await;
        assert_eq!(count.unwrap(), 13);
        assert_eq!(buffers.concat(), b"hello world!?");
    });
}

#[test]
fn coroutines_of_all_levels_may_use_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("levels");
    block_on(async {
        let file = File::create(&path).await.unwrap();
        let mut handles = Vec::new();
        for n in 0..64u8 {
            let file = file.clone();
            handles.push(upshift::spawn(
                async move { file.write_all_at(vec![n], u64::from(n)).await.0 },
                Level::new(n).unwrap(),
            ));
        }
        for handle in handles {
            handle.await.unwrap().unwrap();
        }
    });
    let expected: Vec<u8> = (0..64).collect();
    assert_eq!(std::fs::read(&path).unwrap(), expected);
}

#[test]
fn less_urgent_writes_beside_an_urgent_operation_complete() {
    /// Length of a write in bytes.
    const LENGTH: usize = 300 << 10;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("late");
    block_on(async {
        let urgent = upshift::spawn(
            async {
                let listener = upshift::net::TcpListener::bind("127.0.0.1:0")?;
                listener.accept().await.map(drop)
            },
            Level::MOST_URGENT,
        );
        let file = File::create(&path).await.unwrap();
        let mut handles = Vec::new();
        for n in 0..24u8 {
            let file = file.clone();
            let offset = u64::from(n) * LENGTH as u64;
            handles.push(upshift::spawn(
                async move { file.write_all_at(vec![n; LENGTH], offset).await.0 },
                Level::new(40 + n % 3).unwrap(),
            ));
        }
        for handle in handles {
            handle.await.unwrap().unwrap();
        }
        urgent.cancel();
    });
    let expected: Vec<u8> = (0..24).flat_map(|n| vec![n; LENGTH]).collect();
    assert!(std::fs::read(&path).unwrap() == expected);
}

#[test]
fn opening_fails_with_an_error_of_the_kernel_or_of_the_library() {
    block_on(async {
        let error = File::open("/nowhere/at/all").await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
        let error = File::open("a\0b").await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        let error = OpenOptions::new().open("/tmp").await.unwrap_err();
        assert!(error.to_string().contains("choose `read`"));
        let error = OpenOptions::new()
            .read(true)
            .truncate(true)
            .open("/tmp/x")
            .await
            .unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    });
}

#[test]
fn the_asynchronous_form_wakes_the_given_coroutine() {
    let (reader, writer) = std::io::pipe().unwrap();
    block_on(async move {
        let coroutine = upshift::spawn(
            async {
                let mut waited = false;
                std::future::poll_fn(|_| {
                    if std::mem::replace(&mut waited, true) {
                        std::task::Poll::Ready("woken")
                    } else {
                        std::task::Poll::Pending
                    }
                })
                .await
            },
            Priority::Inherit,
        );
        upshift::yield_now().await;
        // The call is started at once, although it is not awaited yet.
        let call = read!(&reader, vec![0; 8], coroutine.id());
        assert!(!coroutine.is_finished());
        let (written, _) = write!(&writer, b"data".as_slice());
        assert_eq!(written.unwrap(), 4);
        assert_eq!(coroutine.await.unwrap(), "woken");
        let (count, buffer) = call.await;
        assert_eq!(&buffer[..count.unwrap()], b"data");
    });
}

#[test]
fn both_forms_give_the_same_result() {
    let (reader, writer) = std::io::pipe().unwrap();
    block_on(async move {
        let cid = upshift::get_cid().unwrap();
        let (written, _) = write!(&writer, b"asynchronous".as_slice(), cid).await;
        assert_eq!(written.unwrap(), 12);
        let (count, buffer) = read!(&reader, vec![0; 64]);
        assert_eq!(&buffer[..count.unwrap()], b"asynchronous");
        let (written, _) = write!(&writer, b"synchronous".as_slice());
        assert_eq!(written.unwrap(), 11);
        let (count, buffer) = read!(&reader, vec![0; 64], cid).await;
        assert_eq!(&buffer[..count.unwrap()], b"synchronous");
        let directory = std::fs::File::open("/").unwrap();
        let (sync, _) = read!(directory.as_fd(), vec![0; 8]);
        let (asynchronous, _) = read!(directory.as_fd(), vec![0; 8], cid).await;
        assert_eq!(
            sync.unwrap_err().raw_os_error(),
            asynchronous.unwrap_err().raw_os_error()
        );
    });
}
