//! Small cached files, opened, read and closed in one enter.
#![cfg(not(loom))]

mod common;
use common::{
    block_on, has_io_uring, in_child, is_child, limit_descriptors, on_io_uring, open_descriptors,
    poll_once, ring, turn_until,
};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::task::Poll;
use upshift_ring::op::{ReadSmall, Small};
use upshift_ring::{Config, Driver, Ring, Submission};

/// A folder with files whose contents are in the cache.
struct Files(PathBuf);

impl Files {
    fn new(name: &str) -> Files {
        let process = std::process::id();
        let folder = std::env::temp_dir().join(format!("upshift-ring-small-{process}-{name}"));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).unwrap();
        Files(folder)
    }

    fn with(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A ring that has lanes; on a kernel without them a word, and none.
fn with_lanes() -> Option<Ring> {
    if !has_io_uring() {
        return None;
    }
    let ring = Ring::new(on_io_uring()).unwrap();
    if ring.read_small(Path::new("/"), false, 0, 0).is_none() {
        println!("skipped: this kernel makes no ordinary descriptors of direct ones (Linux 6.8)");
        return None;
    }
    turn_until(&ring, || ring.slots_in_use() == 0);
    ring.submit().unwrap();
    Some(ring)
}

fn start(ring: &Ring, path: &Path) -> Submission<ReadSmall> {
    ring.read_small(path, false, 0, 0).expect("a lane is free")
}

fn start_waiting(ring: &Ring, path: &Path) -> Submission<ReadSmall> {
    ring.read_small(path, true, 0, 0).expect("a lane is free")
}

/// Direct descriptors that are open, of all rings of this process whose files are in this folder.
fn direct_descriptors(folder: &Path) -> usize {
    let folder = folder.to_str().unwrap();
    let rings = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    rings
        .filter(|fd| {
            std::fs::read_link(fd.path())
                .is_ok_and(|link| link.as_os_str().as_bytes() == b"anon_inode:[io_uring]")
        })
        .filter_map(|fd| {
            std::fs::read_to_string(Path::new("/proc/self/fdinfo").join(fd.file_name())).ok()
        })
        .map(|info| info.lines().filter(|line| line.contains(folder)).count())
        .sum()
}

#[test]
fn files_share_an_enter_and_are_closed() {
    let Some(ring) = with_lanes() else { return };
    let files = Files::new("share");
    let paths: Vec<_> = (1..=16_usize)
        .map(|n| (n, files.with(&n.to_string(), &vec![n as u8; 1001 * n])))
        .collect();
    let before = ring.stats().enters;
    let small: Vec<_> = paths.iter().map(|(_, path)| start(&ring, path)).collect();
    ring.submit().unwrap();
    assert_eq!(ring.stats().enters - before, 1);
    assert_eq!(direct_descriptors(&files.0), 16);
    ring.reap();
    for (mut small, (n, _)) in small.into_iter().zip(&paths) {
        match poll_once(&mut small) {
            Poll::Ready(Small::All(bytes)) => assert_eq!(bytes, vec![*n as u8; 1001 * n]),
            other => panic!("{other:?}"),
        }
    }
    // The closes are queued.
    ring.submit().unwrap();
    assert_eq!(direct_descriptors(&files.0), 0);
    assert_eq!((ring.in_flight(), ring.slots_in_use()), (0, 0));
}

#[test]
fn what_is_not_all_of_a_file_goes_on_as_a_descriptor() {
    let Some(ring) = with_lanes() else { return };
    let files = Files::new("begun");
    let begun = |path: &Path| match block_on(&ring, start(&ring, path)) {
        Small::Begun { fd, bytes, error } => (fd, bytes, error.and_then(|e| e.raw_os_error())),
        _ => panic!("{} is not begun", path.display()),
    };
    // A whole number of pages: it might go on.
    for length in [4096, 8192, 16 << 10, 20_000, 100_000] {
        let contents = vec![7; length];
        let path = files.with("file", &contents);
        let (fd, bytes, error) = begun(&path);
        assert_eq!(error, None);
        assert_eq!(bytes, contents[..length.min(16 << 10)]);
        let mut file = std::fs::File::from(fd);
        let mut rest = Vec::new();
        file.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, contents, "its own position has not moved");
    }
    // The name is in the cache, the contents are not.
    let path = files.with("cold", &[1; 100]);
    let file = std::fs::File::open(&path).unwrap();
    file.sync_all().unwrap();
    // SAFETY: advice about a file that is open.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    match block_on(&ring, start(&ring, &path)) {
        Small::Begun { bytes, error, .. } => {
            assert_eq!(bytes, []);
            assert_eq!(error.unwrap().raw_os_error(), Some(libc::EAGAIN));
        }
        // The file system has nothing but a cache.
        Small::All(bytes) => assert_eq!(bytes, [1; 100]),
        Small::Unopened => panic!("the name is in the cache"),
    }
    assert_eq!(begun(&files.0).2, Some(libc::EOPNOTSUPP), "a folder");
    std::fs::metadata("/proc/self/status").unwrap();
    if let Small::Begun { error, bytes, .. } =
        block_on(&ring, start(&ring, Path::new("/proc/self/status")))
    {
        assert_eq!(error.unwrap().raw_os_error(), Some(libc::EOPNOTSUPP));
        assert_eq!(bytes, []);
    }
    ring.submit().unwrap();
    assert_eq!(direct_descriptors(&files.0), 0);
    assert_eq!((ring.in_flight(), ring.slots_in_use()), (0, 0));
}

#[test]
fn nothing_is_taken_out_of_a_fifo() {
    let Some(ring) = with_lanes() else { return };
    let files = Files::new("fifo");
    let (path, mut both) = fifo(&files);
    both.write_all(b"hello").unwrap();
    match block_on(&ring, start(&ring, &path)) {
        Small::Begun { fd, bytes, error } => {
            assert_eq!(bytes, []);
            assert_eq!(error.unwrap().raw_os_error(), Some(libc::EOPNOTSUPP));
            let mut bytes = [0; 8];
            let count = std::fs::File::from(fd).read(&mut bytes).unwrap();
            assert_eq!(&bytes[..count], b"hello");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_cannot_be_opened_does_not_show_what_was_there_before() {
    let Some(ring) = with_lanes() else { return };
    let files = Files::new("unopened");
    let path = files.with("file", b"contents");
    for round in 0..100 {
        let there = start(&ring, &path);
        let missing = start(&ring, &files.0.join(format!("missing-{round}")));
        assert!(matches!(block_on(&ring, missing), Small::Unopened));
        match block_on(&ring, there) {
            Small::All(bytes) => assert_eq!(bytes, b"contents"),
            other => panic!("{other:?}"),
        }
    }
    ring.submit().unwrap();
    assert_eq!(direct_descriptors(&files.0), 0);
}

#[test]
fn without_a_number_for_the_descriptor_it_is_closed() {
    const NAME: &str = "without_a_number_for_the_descriptor_it_is_closed";
    if !is_child(NAME) {
        return in_child(NAME);
    }
    let Some(ring) = with_lanes() else { return };
    let files = Files::new("limit");
    let path = files.with("pages", &[1; 4096]);
    let before = open_descriptors();
    let limit = limit_descriptors(0);
    let result = block_on(&ring, start(&ring, &path));
    drop(limit);
    assert!(matches!(result, Small::Unopened));
    ring.submit().unwrap();
    assert_eq!(
        (open_descriptors(), direct_descriptors(&files.0)),
        (before, 0)
    );
}

#[test]
fn lanes_are_bounded_and_come_back_from_wherever_the_future_ends() {
    let Some(ring) = with_lanes() else { return };
    let files = Files::new("lanes");
    let paths = [
        files.with("short", b"short"),
        files.with("pages", &[1; 8192]),
        files.0.join("missing"),
    ];
    for round in 0..60_usize {
        let mut small: Vec<_> = (0..32)
            .map(|n| start(&ring, &paths[(n + round) % 3]))
            .collect();
        assert!(ring.read_small(&paths[0], false, 0, 0).is_none());
        // Dropped before the kernel has them, after it has, and complete.
        if round % 3 == 0 {
            small.truncate(16);
        }
        if round % 2 == 0 {
            ring.submit().unwrap();
        }
        if round % 5 == 0 {
            ring.reap();
        }
        let rest = small.split_off(small.len() / 2);
        std::thread::spawn(move || drop(rest)).join().unwrap();
        for mut one in small {
            let _ = poll_once(&mut one);
        }
        turn_until(&ring, || ring.in_flight() == 0 && ring.slots_in_use() == 0);
    }
    ring.submit().unwrap();
    assert_eq!(direct_descriptors(&files.0), 0);
}

#[test]
fn a_ring_ends_with_small_files_in_flight() {
    let Some(ring) = with_lanes() else { return };
    let files = Files::new("end");
    let paths = [
        files.with("short", b"short"),
        files.with("pages", &[1; 4096]),
    ];
    let mut small: Vec<_> = (0..10).map(|n| start(&ring, &paths[n % 2])).collect();
    ring.submit().unwrap();
    let late = start(&ring, &paths[1]);
    drop(ring);
    for one in &mut small {
        assert!(poll_once(one).is_ready());
    }
    drop((small, late));
    assert_eq!(direct_descriptors(&files.0), 0);
}

#[test]
fn paths_that_do_not_fit_and_the_readiness_driver_are_refused() {
    let readiness = Config {
        driver: Driver::Readiness,
        ..Config::default()
    };
    let readiness = Ring::new(readiness).unwrap();
    assert!(
        readiness
            .read_small(Path::new("/etc/passwd"), false, 0, 0)
            .is_none()
    );
    let ring = ring();
    assert!(
        ring.read_small(Path::new(&"a".repeat(256)), false, 0, 0)
            .is_none()
    );
    assert!(ring.read_small(Path::new("a\0b"), false, 0, 0).is_none());
    assert_eq!((ring.in_flight(), ring.slots_in_use()), (0, 0));
}

/// A FIFO, open for both ends.
fn fifo(files: &Files) -> (PathBuf, std::fs::File) {
    let path = files.0.join("fifo");
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: a path that ends in 0.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let mut options = std::fs::OpenOptions::new();
    let both = options.read(true).write(true).open(&path).unwrap();
    (path, both)
}

#[test]
fn what_is_not_cached_is_waited_for() {
    let Some(ring) = with_lanes() else { return };
    let files = Files::new("kinds");
    for length in [
        0,
        1,
        4000,
        4096,
        16_383,
        16_384,
        16_385,
        16_448,
        16_449,
        100_000_usize,
    ] {
        let contents: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
        let path = files.with("file", &contents);
        for _ in 0..2 {
            match block_on(&ring, start_waiting(&ring, &path)) {
                Small::All(bytes) => {
                    assert!(bytes == contents, "{length}");
                    assert!(length <= 16 << 10);
                }
                Small::Begun { fd, bytes, error } => {
                    assert!(error.is_none());
                    assert!(bytes == contents[..length.min((16 << 10) + 64)], "{length}");
                    let mut rest = Vec::new();
                    std::fs::File::from(fd).read_to_end(&mut rest).unwrap();
                    assert!(rest == contents[bytes.len()..], "behind what has been read");
                }
                Small::Unopened => panic!("it is there"),
            }
            let file = std::fs::File::open(&path).unwrap();
            file.sync_all().unwrap();
            // SAFETY: advice about a file that is open.
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        }
    }
    let missing = start_waiting(&ring, &files.0.join("missing"));
    assert!(matches!(block_on(&ring, missing), Small::Unopened));
    match block_on(&ring, start_waiting(&ring, &files.0)) {
        Small::Begun { bytes, error, .. } => {
            assert_eq!(bytes, []);
            assert_eq!(error.unwrap().raw_os_error(), Some(libc::EISDIR));
        }
        other => panic!("a folder: {other:?}"),
    }
    match block_on(&ring, start_waiting(&ring, Path::new("/proc/self/status"))) {
        Small::All(bytes) => assert!(bytes.starts_with(b"Name:") && bytes.ends_with(b"\n")),
        other => panic!("a file of procfs: {other:?}"),
    }
    ring.submit().unwrap();
    assert_eq!(direct_descriptors(&files.0), 0);
    assert_eq!((ring.in_flight(), ring.slots_in_use()), (0, 0));
}

#[test]
fn a_fifo_is_waited_for_and_what_was_taken_out_of_it_is_kept() {
    let Some(ring) = with_lanes() else { return };
    let files = Files::new("waits-fifo");
    let (path, mut both) = fifo(&files);
    let mut small = start_waiting(&ring, &path);
    assert!(poll_once(&mut small).is_pending());
    both.write_all(b"hel").unwrap();
    turn_until(&ring, || {
        // The second read waits.
        let mut left = 0;
        // SAFETY: the call writes to `left`.
        unsafe { libc::ioctl(both.as_raw_fd(), libc::FIONREAD, &raw mut left) };
        left == 0
    });
    both.write_all(b"lo").unwrap();
    match block_on(&ring, small) {
        Small::Begun { fd, bytes, error } => {
            assert!(error.is_none());
            assert_eq!(bytes, b"hello");
            both.write_all(b" all").unwrap();
            drop(both);
            let mut rest = Vec::new();
            std::fs::File::from(fd).read_to_end(&mut rest).unwrap();
            assert_eq!(rest, b" all");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_waits_is_dropped_wherever_it_is() {
    let Some(ring) = with_lanes() else { return };
    let files = Files::new("waits-dropped");
    let (path, mut both) = fifo(&files);
    let file = files.with("file", &[1; 5000]);
    for round in 0..40 {
        let small = start_waiting(&ring, &path);
        let other = start_waiting(&ring, &file);
        for _ in 0..round % 4 {
            ring.submit().unwrap();
            ring.reap();
        }
        if round % 3 == 0 {
            both.write_all(b"hello").unwrap();
            ring.submit().unwrap();
            ring.reap();
        }
        if round % 2 == 0 {
            drop((small, other));
        } else {
            std::thread::spawn(move || drop((small, other)))
                .join()
                .unwrap();
        }
        turn_until(&ring, || ring.in_flight() == 0 && ring.slots_in_use() == 0);
    }
    ring.submit().unwrap();
    assert_eq!(direct_descriptors(&files.0), 0);
    // And where the ring ends.
    let mut small = start_waiting(&ring, &path);
    ring.submit().unwrap();
    drop(ring);
    assert!(poll_once(&mut small).is_ready());
}
