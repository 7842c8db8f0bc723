//! Tests of every operation on the real kernel: files, names, sockets, readiness, and the limit of
//! operations.
#![cfg(not(loom))]

mod common;
use common::{block_on, pair, poll_once, ring};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::fd::{FromRawFd, OwnedFd};
use upshift_ring::{Address, Config, Fd, IoBuf, Ring, op};

fn temporary_path(name: &str) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("upshift-ring-{}-{name}", std::process::id()))
}

#[test]
fn a_file_is_opened_written_synced_read_and_closed() {
    let ring = ring();
    let path = temporary_path("file");
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC;
    block_on(&ring, async {
        let fd = ring
            .start(op::OpenAt::new(None, &path, flags, 0o600).unwrap(), 0)
            .await
            .unwrap();
        let fd = Fd::new(fd);
        // I/O priority: class 2 (best effort), level 3.
        let write = op::WriteAt::new(fd.clone(), "hello world", 0).ioprio(2 << 13 | 3);
        assert_eq!(ring.start(write, 0).await.0.unwrap(), 11);
        let parts = vec![b"HE".to_vec(), b"LLO".to_vec()];
        let write = op::WriteVectored::new(fd.clone(), parts, 0);
        assert_eq!(ring.start(write, 0).await.0.unwrap(), 5);
        ring.start(op::Fsync::new(fd.clone()), 0).await.unwrap();
        ring.start(op::Fsync::data(fd.clone()), 0).await.unwrap();
        let (count, buffer) = ring
            .start(op::ReadAt::new(fd.clone(), Vec::with_capacity(64), 0), 0)
            .await;
        assert_eq!(
            (count.unwrap(), buffer.as_slice()),
            (11, &b"HELLO world"[..])
        );
        let parts = vec![vec![0; 4].into_boxed_slice(), vec![0; 4].into_boxed_slice()];
        let (count, parts) = ring
            .start(op::ReadVectored::new(fd.clone(), parts, 3), 0)
            .await;
        assert_eq!(count.unwrap(), 8);
        assert_eq!((&*parts[0], &*parts[1]), (&b"LO w"[..], &b"orld"[..]));
        let (count, _) = ring.start(op::ReadAt::new(fd.clone(), [0; 8], 11), 0).await;
        assert_eq!(count.unwrap(), 0);
        assert_eq!(
            ring.start(op::Statx::from_fd(fd.clone()), 0)
                .await
                .unwrap()
                .stx_size,
            11
        );
        let statx = op::Statx::new(None, &path, 0).unwrap();
        assert_eq!(ring.start(statx, 0).await.unwrap().stx_size, 11);
        assert!(fd.try_into_owned().is_ok());
    });
    std::fs::remove_file(path).unwrap();
    assert_eq!((ring.in_flight(), ring.slots_in_use()), (0, 0));
}

#[test]
fn names_are_created_renamed_linked_and_removed() {
    let ring = ring();
    let root = temporary_path("names");
    let _ = std::fs::remove_dir_all(&root);
    block_on(&ring, async {
        let mkdir = |path: &std::path::Path| op::MkDirAt::new(None, path, 0o700).unwrap();
        ring.start(mkdir(&root), 0).await.unwrap();
        let error = ring.start(mkdir(&root), 0).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EEXIST));
        let open = op::OpenAt::new(None, &root, libc::O_PATH | libc::O_DIRECTORY, 0).unwrap();
        let directory = Fd::new(ring.start(open, 0).await.unwrap());
        let in_directory = || Some(directory.clone());

        let flags = libc::O_RDWR | libc::O_CREAT;
        let resolve = libc::RESOLVE_BENEATH;
        let open = op::OpenAt2::new(in_directory(), "file", flags, 0o600, resolve).unwrap();
        let file = Fd::new(ring.start(open, 0).await.unwrap());
        let truncate = op::Ftruncate::new(file.clone(), 12345);
        match ring.start(truncate, 0).await {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                eprintln!("skipped: this kernel has no truncate operation (Linux 6.9)");
            }
            result => {
                result.unwrap();
                let size = ring
                    .start(op::Statx::from_fd(file), 0)
                    .await
                    .unwrap()
                    .stx_size;
                assert_eq!(size, 12345);
            }
        }
        let open =
            op::OpenAt2::new(in_directory(), "../names", libc::O_RDONLY, 0, resolve).unwrap();
        let error = ring.start(open, 0).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EXDEV));

        let link = op::LinkAt::new(in_directory(), "file", in_directory(), "second").unwrap();
        ring.start(link, 0).await.unwrap();
        let link = op::SymlinkAt::new("second", in_directory(), "soft").unwrap();
        ring.start(link, 0).await.unwrap();
        assert_eq!(
            std::fs::read_link(root.join("soft")).unwrap().to_str(),
            Some("second")
        );
        let rename = op::RenameAt::new(in_directory(), "file", in_directory(), "moved").unwrap();
        ring.start(rename, 0).await.unwrap();
        for name in ["moved", "second", "soft"] {
            let unlink = op::UnlinkAt::file(in_directory(), name).unwrap();
            ring.start(unlink, 0).await.unwrap();
        }
        let remove = op::UnlinkAt::directory(None, &root).unwrap();
        ring.start(remove, 0).await.unwrap();
    });
    assert!(!root.exists());
    assert!(op::RenameAt::new(None, "a", None, "b\0").is_err());
}

#[test]
fn a_missing_file_and_a_nul_in_a_path_are_errors() {
    let ring = ring();
    let open = op::OpenAt::new(None, "/does/not/exist", libc::O_RDONLY, 0).unwrap();
    let error = block_on(&ring, ring.start(open, 0)).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    assert!(op::OpenAt::new(None, "a\0b", 0, 0).is_err());
    assert!(op::Statx::new(None, "a\0b", 0).is_err());
}

#[test]
fn a_connection_is_established_used_and_shut_down() {
    let ring = ring();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // SAFETY: `socket` returns a new descriptor, which has no other owner.
    let client = unsafe { OwnedFd::from_raw_fd(libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0)) };
    let client = Fd::new(client);
    block_on(&ring, async {
        ring.start(op::Connect::new(client.clone(), address), 0)
            .await
            .unwrap();
        let (stream, _) = listener.accept().unwrap();
        let server = Fd::from(OwnedFd::from(stream.try_clone().unwrap()));
        let (count, _) = ring
            .start(op::Send::new(client.clone(), vec![7; 100]).all(), 0)
            .await;
        assert_eq!(count.unwrap(), 100);
        let (count, bytes) = ring
            .start(op::Recv::new(server.clone(), vec![0; 100]).all(), 0)
            .await;
        assert_eq!((count.unwrap(), bytes), (100, vec![7; 100]));
        let parts = vec!["one", "two", "three"];
        let (count, _) = ring
            .start(op::SendVectored::new(server.clone(), parts).all(), 0)
            .await;
        assert_eq!(count.unwrap(), 11);
        stream.shutdown(Shutdown::Write).unwrap();
        let (count, bytes) = ring
            .start(op::Recv::new(client.clone(), vec![0; 100]).all(), 0)
            .await;
        assert_eq!(
            (count.unwrap(), bytes.as_slice()),
            (11, &b"onetwothree"[..])
        );
        let (count, _) = ring.start(op::Send::new(client.clone(), "half"), 0).await;
        assert_eq!(count.unwrap(), 4);
        let (count, bytes) = ring
            .start(op::Recv::new(server, Vec::with_capacity(9)), 0)
            .await;
        assert_eq!((count.unwrap(), bytes.as_slice()), (4, &b"half"[..]));
    });
}

#[test]
fn a_refused_connection_is_an_error() {
    let ring = ring();
    let closed_address = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    // SAFETY: `socket` returns a new descriptor, which has no other owner.
    let client = unsafe { OwnedFd::from_raw_fd(libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0)) };
    let connect = op::Connect::new(Fd::new(client), Address::from(closed_address));
    let error = block_on(&ring, ring.start(connect, 0)).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ECONNREFUSED));
}

#[test]
fn a_send_of_all_completes_once_even_if_the_peer_is_slow() {
    let ring = ring();
    let (fd, mut peer) = pair();
    let size = 8 << 20;
    let reader = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(50));
        let mut all = Vec::new();
        peer.read_to_end(&mut all).unwrap();
        all
    });
    let data: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
    let (count, data) = block_on(&ring, ring.start(op::Send::new(fd.clone(), data).all(), 0));
    assert_eq!(count.unwrap(), size);
    drop(fd);
    assert!(reader.join().unwrap() == data);
}

#[test]
fn a_send_to_a_closed_peer_is_an_error_without_a_signal() {
    let ring = ring();
    let (fd, peer) = pair();
    drop(peer);
    let send = || ring.start(op::Send::new(fd.clone(), vec![0; 1000]), 0);
    block_on(&ring, async {
        let mut result = send().await.0;
        for _ in 0..100 {
            if result.is_err() {
                break;
            }
            result = send().await.0;
        }
        let errno = result.unwrap_err().raw_os_error().unwrap();
        assert!(
            [libc::EPIPE, libc::ECONNRESET].contains(&errno),
            "errno {errno}"
        );
    });
}

#[test]
fn readiness_is_reported_once() {
    let ring = ring();
    let (fd, mut peer) = pair();
    let mut poll = ring.start(op::PollAdd::new(fd, libc::POLLIN as u32), 0);
    assert!(poll_once(&mut poll).is_pending());
    ring.submit().unwrap();
    peer.write_all(b"x").unwrap();
    let events = block_on(&ring, poll).unwrap();
    assert_eq!(events & libc::POLLIN as u32, libc::POLLIN as u32);
}

#[test]
fn a_slice_sends_its_part_of_the_buffer() {
    let ring = ring();
    let (fd, mut peer) = pair();
    let part = String::from("hello world").slice(6..11);
    let (count, part) = block_on(&ring, ring.start(op::Send::new(fd, part), 0));
    assert_eq!(
        (count.unwrap(), part.into_inner().as_str()),
        (5, "hello world")
    );
    let mut bytes = [0; 5];
    peer.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"world");
}

#[test]
fn operations_beyond_the_limit_fail_with_ebusy_and_return_their_buffer() {
    let ring = Ring::new(Config {
        max_operations: 2,
        ..Config::default()
    })
    .unwrap();
    let (fd, _peer) = pair();
    let recv = || ring.start(op::Recv::new(fd.clone(), vec![9; 10]), 0);
    let (first, second, third) = (recv(), recv(), recv());
    let (result, buffer) = block_on(&ring, third);
    assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EBUSY));
    assert_eq!(buffer, vec![9; 10]);
    drop(first);
    common::drive_until(&ring, || ring.slots_in_use() == 1);
    let mut fourth = recv();
    assert!(poll_once(&mut fourth).is_pending());
    assert_eq!(ring.stats().refused, 1);
    drop(second);
}
