//! Tests of directories, names, whole files, copies and file streams.

#[path = "support/block_on.rs"]
mod block_on;

use std::collections::BTreeSet;
use std::io::{ErrorKind, SeekFrom};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::task::Poll;
use std::time::Duration;

use futures_util::poll;
use upshift::fs::{self, File, FileStream, OpenOptions, Progress};
use upshift::io::{AsyncBufReadExt, AsyncReadExt, AsyncSeekExt, AsyncWriteExt, StreamExt};
use upshift::{Preemption, Priority, Runtime};

use block_on::block_on;

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n % 251) as u8).collect()
}

#[test]
fn whole_files_of_any_length_are_written_and_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    block_on(async {
        for length in [0, 1, 63, 64, 65, 4096, 1 << 20] {
            fs::write(&path, pattern(length)).await.unwrap();
            assert!(
                fs::read(&path).await.unwrap() == pattern(length),
                "a file of {length} bytes"
            );
        }
        fs::write(&path, "grüße").await.unwrap();
        assert_eq!(fs::read_to_string(&path).await.unwrap(), "grüße");
        fs::write(&path, vec![0xff]).await.unwrap();
        let error = fs::read_to_string(&path).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        // Files in /proc have a length of 0, but contents.
        let status = fs::read_to_string("/proc/self/status").await.unwrap();
        assert!(status.contains("VmRSS"));
        let error = fs::read(folder.path()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::IsADirectory);
    });
}

#[test]
fn names_are_created_examined_renamed_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    block_on(async {
        fs::create_dir(path("dir")).await.unwrap();
        let error = fs::create_dir(path("dir")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        fs::create_dir_all(path("dir/a/b/c")).await.unwrap();
        fs::write(path("dir/file"), "12345").await.unwrap();

        let metadata = fs::metadata(path("dir/file")).await.unwrap();
        let expected_metadata = std::fs::metadata(path("dir/file")).unwrap();
        assert!(metadata.is_file() && !metadata.is_dir() && metadata.len() == 5);
        assert_eq!(
            metadata.modified().unwrap(),
            expected_metadata.modified().unwrap()
        );
        assert_eq!(metadata.permissions(), expected_metadata.permissions());
        use std::os::unix::fs::MetadataExt;
        assert_eq!(
            (
                metadata.ino(),
                metadata.dev(),
                metadata.uid(),
                metadata.nlink()
            ),
            (
                expected_metadata.ino(),
                expected_metadata.dev(),
                expected_metadata.uid(),
                1
            )
        );

        fs::symlink("dir/file", path("soft")).await.unwrap();
        fs::hard_link(path("dir/file"), path("hard")).await.unwrap();
        assert_eq!(
            fs::read_link(path("soft")).await.unwrap(),
            Path::new("dir/file")
        );
        assert!(
            fs::symlink_metadata(path("soft"))
                .await
                .unwrap()
                .is_symlink()
        );
        assert!(fs::metadata(path("soft")).await.unwrap().is_file());
        assert_eq!(fs::metadata(path("hard")).await.unwrap().nlink(), 2);
        assert_eq!(
            fs::canonicalize(path("dir/../soft")).await.unwrap(),
            std::fs::canonicalize(path("dir/file")).unwrap()
        );

        fs::rename(path("hard"), path("moved")).await.unwrap();
        assert!(!fs::try_exists(path("hard")).await.unwrap());
        assert!(fs::try_exists(path("moved")).await.unwrap());
        let read_only = std::fs::Permissions::from_mode(0o400);
        fs::set_permissions(path("moved"), read_only).await.unwrap();
        assert_eq!(
            fs::metadata(path("moved")).await.unwrap().mode() & 0o777,
            0o400
        );

        let error = fs::remove_dir(path("dir")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DirectoryNotEmpty);
        let error = fs::remove_file(path("dir")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::IsADirectory);
        fs::remove_file(path("moved")).await.unwrap();
        let error = fs::remove_file(path("moved")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        fs::remove_dir_all(path("dir")).await.unwrap();
        assert!(!fs::try_exists(path("dir")).await.unwrap());
    });
}

#[test]
fn a_listing_names_every_entry_once() {
    let folder = tempfile::tempdir().unwrap();
    block_on(async {
        let empty = fs::read_dir(folder.path())
            .await
            .unwrap()
            .next_entry()
            .await;
        assert!(empty.unwrap().is_none());
        // The number of entries exceeds two batches.
        let expected: BTreeSet<_> = (0..300).map(|n| format!("entry {n}")).collect();
        for name in &expected {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        let mut found = BTreeSet::new();
        let mut entries = fs::read_dir(folder.path()).await.unwrap();
        while let Some(entry) = entries.next_entry().await.unwrap() {
            assert!(entry.file_type().await.unwrap().is_dir());
            assert!(entry.path().starts_with(folder.path()));
            assert!(found.insert(entry.file_name().into_string().unwrap()));
        }
        assert_eq!(found, expected);
        // A dropped wait for the next entry loses no entry.
        let mut found = BTreeSet::new();
        let mut entries = fs::read_dir(folder.path()).await.unwrap();
        loop {
            let next = std::pin::pin!(entries.next_entry());
            match poll!(next) {
                Poll::Ready(Ok(Some(entry))) => {
                    assert!(found.insert(entry.file_name().into_string().unwrap()));
                }
                Poll::Ready(end) => break assert!(end.unwrap().is_none()),
                Poll::Pending => upshift::time::sleep(Duration::from_millis(1)).await,
            }
        }
        assert_eq!(found, expected);
        let error = fs::read_dir(folder.path().join("nothing"))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    });
}

#[test]
fn no_path_leads_out_of_a_directory_with_open_beneath() {
    let folder = tempfile::tempdir().unwrap();
    block_on(async {
        fs::write(folder.path().join("secret"), "secret")
            .await
            .unwrap();
        fs::create_dir_all(folder.path().join("root/sub"))
            .await
            .unwrap();
        fs::write(folder.path().join("root/sub/file"), "public")
            .await
            .unwrap();
        fs::symlink("sub/file", folder.path().join("root/inside"))
            .await
            .unwrap();
        fs::symlink("../secret", folder.path().join("root/outside"))
            .await
            .unwrap();
        fs::symlink("/etc", folder.path().join("root/absolute"))
            .await
            .unwrap();
        let root = File::open(folder.path().join("root")).await.unwrap();
        let open = async |path: &str| {
            let mut options = OpenOptions::new();
            options.read(true).open_beneath(&root, path).await
        };
        for inside in ["sub/file", "inside", "sub/../sub/file", "./inside"] {
            let file = open(inside).await.unwrap();
            assert_eq!(file.len().await.unwrap(), 6, "{inside}");
        }
        for outside in [
            "../secret",
            "outside",
            "absolute/passwd",
            "/etc/passwd",
            "sub/../..",
        ] {
            let error = open(outside).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::CrossesDevices, "{outside}");
        }
        let mut options = OpenOptions::new();
        let create_new = options.write(true).create_new(true);
        create_new.open_beneath(&root, "new").await.unwrap();
        assert!(create_new.open_beneath(&root, "new").await.is_err());
    });
}

#[test]
fn a_copy_reports_its_progress_and_keeps_contents_and_permissions() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    block_on(async {
        for length in [0, 1, 256 << 10, (1 << 20) + 17] {
            fs::write(&from, pattern(length)).await.unwrap();
            let mode = std::fs::Permissions::from_mode(0o640);
            fs::set_permissions(&from, mode).await.unwrap();
            fs::write(&to, vec![9; 2 << 20]).await.unwrap();
            let mut steps = Vec::new();
            let copied = fs::copy_with(&from, &to, |step| steps.push(step))
                .await
                .unwrap();
            assert_eq!(copied, length as u64);
            assert!(std::fs::read(&to).unwrap() == pattern(length));
            let end = |copied| Progress {
                copied,
                total: length as u64,
            };
            assert_eq!(
                (steps.first(), steps.last()),
                (Some(&end(0)), Some(&end(copied)))
            );
            assert!(steps.is_sorted_by_key(|step| step.copied));
            assert_eq!(fs::metadata(&to).await.unwrap().mode() & 0o777, 0o640);
        }
        let error = fs::copy(&from, &from).await.unwrap_err();
        assert!(error.to_string().contains("same file"));
        assert_eq!(fs::metadata(&from).await.unwrap().len(), (1 << 20) + 17);
        let error = fs::copy(folder.path(), &to).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    });
}

#[test]
fn a_copy_may_be_dropped_at_any_moment() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    std::fs::write(&from, pattern(4 << 20)).unwrap();
    block_on(async {
        for polls in 0..20 {
            let mut copy = Box::pin(fs::copy(&from, &to));
            for _ in 0..polls {
                if poll!(copy.as_mut()).is_ready() {
                    break;
                }
                upshift::yield_now().await;
            }
        }
        assert_eq!(fs::copy(&from, &to).await.unwrap(), 4 << 20);
    });
}

#[test]
fn a_file_is_extended_and_truncated() {
    let folder = tempfile::tempdir().unwrap();
    block_on(async {
        let file = File::create(folder.path().join("file")).await.unwrap();
        file.set_len(100).await.unwrap();
        assert_eq!(file.metadata().await.unwrap().len(), 100);
        file.set_len(0).await.unwrap();
        assert_eq!(file.len().await.unwrap(), 0);
        let reader = File::open(folder.path().join("file")).await.unwrap();
        assert!(reader.set_len(7).await.is_err());
    });
}

async fn stream(path: &Path) -> FileStream {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).open(path).await;
    file.unwrap().into_stream()
}

#[test]
fn a_stream_reads_its_own_writes_after_any_seek() {
    let folder = tempfile::tempdir().unwrap();
    block_on(async {
        let mut stream = stream(&folder.path().join("file")).await;
        let expected = pattern(300_000);
        stream.write_all(&expected).await.unwrap();
        assert_eq!(stream.position(), 300_000);
        stream.seek(SeekFrom::Start(0)).await.unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.unwrap();
        assert!(all == expected);

        // Reads and writes in the middle of the file, after the stream has read ahead.
        stream.seek(SeekFrom::End(-100)).await.unwrap();
        let mut buffer = [0; 10];
        stream.read_exact(&mut buffer).await.unwrap();
        assert_eq!(buffer[..], expected[299_900..299_910]);
        stream.write_all(b"HERE").await.unwrap();
        stream.read_exact(&mut buffer).await.unwrap();
        assert_eq!(buffer[..], expected[299_914..299_924]);
        stream.seek(SeekFrom::Current(-14)).await.unwrap();
        let mut text = [0; 4];
        stream.read_exact(&mut text).await.unwrap();
        assert_eq!(&text, b"HERE");
        let error = stream
            .seek(SeekFrom::Current(-1_000_000))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    });
}

#[test]
fn a_stream_dropped_without_a_flush_still_writes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    block_on(async {
        for _ in 0..20 {
            let _ = std::fs::remove_file(&path);
            let mut stream = stream(&path).await;
            stream.write_all(b"not flushed").await.unwrap();
            drop(stream);
            while std::fs::read(&path).unwrap() != b"not flushed" {
                upshift::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        }
    });
}

#[test]
fn the_error_of_a_write_is_returned_by_the_next_call() {
    block_on(async {
        let full = OpenOptions::new()
            .write(true)
            .open("/dev/full")
            .await
            .unwrap();
        let mut stream = full.into_stream();
        stream.write_all(b"x").await.unwrap();
        let error = stream.flush().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        // The error is returned once, and the stream remains usable.
        stream.flush().await.unwrap();
    });
}

#[test]
fn dropped_reads_of_a_stream_lose_no_data() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, pattern(200_000)).unwrap();
    block_on(async {
        let mut stream = stream(&path).await;
        let mut all = Vec::new();
        let mut buffer = [0; 999];
        loop {
            let mut reading = Box::pin(AsyncReadExt::read(&mut stream, &mut buffer));
            let polled = poll!(reading.as_mut());
            drop(reading);
            match polled {
                std::task::Poll::Ready(Ok(0)) => break,
                std::task::Poll::Ready(Ok(count)) => all.extend_from_slice(&buffer[..count]),
                std::task::Poll::Ready(Err(error)) => panic!("{error}"),
                std::task::Poll::Pending => upshift::yield_now().await,
            }
        }
        assert!(all == pattern(200_000));
    });
}

#[test]
fn files_work_on_two_preemptible_vcpus() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = Runtime::builder()
        .vcpus(2)
        .preemption(Preemption::Preferred)
        .build()
        .unwrap();
    runtime.block_on(async {
        let copies: Vec<_> = (0..4)
            .map(|n| {
                let (from, to) = (
                    folder.path().join(format!("f{n}")),
                    folder.path().join(format!("t{n}")),
                );
                upshift::spawn(
                    async move {
                        fs::write(&from, pattern(1 << 20)).await.unwrap();
                        fs::copy(&from, &to).await.unwrap();
                        let lines = File::open(&to).await.unwrap().into_stream().split(7);
                        let expected = pattern(1 << 20).split(|&byte| byte == 7).count();
                        assert_eq!(lines.count().await, expected);
                    },
                    Priority::Inherit,
                )
            })
            .collect();
        for copy in copies {
            copy.await.unwrap();
        }
    });
}

#[test]
fn futures_of_files_may_move_between_threads() {
    fn assert_send<T: Send>(_: T) {}
    #[expect(dead_code, reason = "it only has to compile")]
    fn all(file: &'static File, root: &'static File, options: &'static OpenOptions) {
        assert_send(fs::read("/"));
        assert_send(fs::write("/", "static"));
        assert_send(fs::copy_with("/", "/", |_| {}));
        assert_send(fs::read_dir("/"));
        assert_send(fs::create_dir_all("/"));
        assert_send(fs::rename("/", "/"));
        assert_send(fs::metadata("/"));
        assert_send(options.open_beneath(root, "/"));
        assert_send(file.set_len(0));
        assert_send(file.write_all_at("static", 0));
        assert_send(file.clone().into_stream());
    }
}

#[test]
fn outside_a_runtime_the_error_names_the_reason() {
    let error = poll_outside_runtime(fs::read("/etc/passwd")).unwrap_err();
    assert!(error.to_string().contains("no upshift runtime"), "{error}");
    let error = poll_outside_runtime(fs::canonicalize("/")).unwrap_err();
    assert!(error.to_string().contains("no upshift runtime"), "{error}");
}

/// Polls a future once, on a thread without a runtime.
fn poll_outside_runtime<F: Future>(future: F) -> F::Output {
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut cx) {
        std::task::Poll::Ready(output) => output,
        std::task::Poll::Pending => panic!("the future is pending without a runtime"),
    }
}
