//! Tests of files that cannot be read, or that change meanwhile. The errors must be those of plain
//! system calls, whether a file is read alone or beside other files, on both drivers.

#[path = "support/read_concurrently.rs"]
mod read_concurrently;
#[path = "support/scratch.rs"]
mod scratch;

use std::io::{self, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use upshift::fs::{self, File};
use upshift::{Driver, Priority, Runtime, errno_of};

use read_concurrently::read_concurrently;
use scratch::ScratchFile;

fn on_both_drivers(test: impl AsyncFn()) {
    for driver in [Driver::Auto, Driver::Readiness] {
        let runtime = Runtime::builder().vcpus(1).driver(driver);
        runtime.build().unwrap().block_on(test());
    }
}

/// Reads `path` alone and concurrently with existing files, several times, so that names are
/// resolved in all ways. Returns the results of `path`.
async fn read_in_all_ways(path: &Path) -> Vec<io::Result<Vec<u8>>> {
    let existing = ScratchFile::new(100);
    let paths: Vec<PathBuf> = [path, &existing.path, path, &existing.path]
        .map(PathBuf::from)
        .into();
    let mut all = Vec::new();
    for _ in 0..3 {
        all.push(fs::read(path).await);
        existing.evict(0, 0);
        for (n, read) in read_concurrently(&paths).await.into_iter().enumerate() {
            match n % 2 {
                0 => all.push(read),
                _ => assert_eq!(read.unwrap(), existing.bytes),
            }
        }
    }
    all
}

fn errno<T>(result: &io::Result<T>) -> i32 {
    match result {
        Ok(_) => 0,
        Err(error) => errno_of(error).unwrap_or(-1),
    }
}

#[test]
fn errors_are_those_of_plain_calls() {
    let folder = tempfile::tempdir().unwrap();
    let path_of = |name: &str| folder.path().join(name);
    std::fs::write(path_of("file"), "contents").unwrap();
    symlink(path_of("loop"), path_of("loop")).unwrap();
    symlink(path_of("nothing"), path_of("dangling")).unwrap();
    let paths = [
        path_of("missing"),
        path_of("missing/file"),
        path_of("file/file"),
        path_of("loop"),
        path_of("dangling"),
        path_of(&"n".repeat(256)),
        folder.path().to_path_buf(),
        PathBuf::new(),
        PathBuf::from("a\0b"),
    ];
    on_both_drivers(async || {
        for path in &paths {
            let expected = errno(&std::fs::read(path));
            assert_ne!(expected, 0);
            for read in read_in_all_ways(path).await {
                assert_eq!(errno(&read), expected, "{}: {read:?}", path.display());
            }
            let opened = errno(&std::fs::File::open(path));
            assert_eq!(errno(&File::open(path).await), opened);
        }
    });
}

#[test]
fn files_without_permission_are_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, "secret").unwrap();
    let set_mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    set_mode(&path, 0);
    set_mode(folder.path(), 0o755);
    // The kernel's caches now have the name and the contents.
    let _ = std::fs::read(&path);
    let nobody = std::thread::spawn(move || {
        // The system call changes only this thread, unlike the function of libc. If the call is
        // refused, this user has no rights anyway.
        // SAFETY: the call takes no pointer.
        unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
        assert_eq!(errno(&std::fs::read(&path)), libc::EACCES);
        let runtime = |driver| Runtime::builder().vcpus(1).driver(driver).build();
        for driver in [Driver::Auto, Driver::Readiness] {
            runtime(driver).unwrap().block_on(async {
                for _ in 0..3 {
                    assert_eq!(errno(&fs::read(&path).await), libc::EACCES);
                    let all = read_concurrently(&vec![path.clone(); 4]).await;
                    assert!(all.iter().all(|read| errno(read) == libc::EACCES));
                    assert_eq!(errno(&File::open(&path).await), libc::EACCES);
                }
            });
        }
    });
    nobody.join().unwrap();
}

#[test]
fn a_read_of_a_fifo_waits_for_a_writer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fifo");
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: `name` is a C string.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let file = ScratchFile::new(100);
    on_both_drivers(async || {
        for round in 0..6 {
            let mut paths = vec![file.path.clone(); if round % 2 == 0 { 1 } else { 4 }];
            paths[0].clone_from(&path);
            let reads = upshift::spawn(
                async move { read_concurrently(&paths).await },
                Priority::Inherit,
            );
            upshift::time::sleep(Duration::from_millis(20)).await;
            assert!(!reads.is_finished(), "round {round}");
            let path = path.clone();
            let writer = std::thread::spawn(move || std::fs::write(path, "hello"));
            let reads = upshift::time::timeout(Duration::from_secs(20), reads);
            let all = reads.await.expect("the read did not end").unwrap();
            assert_eq!(all[0].as_ref().unwrap(), b"hello", "round {round}");
            assert!(
                all[1..]
                    .iter()
                    .all(|read| read.as_ref().unwrap() == &file.bytes)
            );
            writer.join().unwrap().unwrap();
        }
    });
}

fn byte(n: usize) -> u8 {
    (n % 251) as u8
}

/// Runs `change` repeatedly on another thread while `test` runs on both drivers.
fn run_beside(mut change: impl FnMut(usize) + Send, test: impl AsyncFn()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                change(n);
            }
        });
        let result =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| on_both_drivers(test)));
        stop.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

#[test]
fn a_read_of_a_file_that_grows_or_shrinks_returns_a_prefix() {
    const LONGEST: usize = 60_000;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let contents: Vec<u8> = (0..LONGEST).map(byte).collect();
    std::fs::write(&path, &contents).unwrap();
    let change = |n: usize| {
        let length = n.wrapping_mul(0x9e37_79b9) % 40_000;
        let file = std::fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .unwrap();
        file.set_len(length as u64).unwrap();
        for part in contents[length..].chunks(1000) {
            (&file).write_all(part).unwrap();
        }
    };
    run_beside(change, async || {
        for _ in 0..30 {
            for read in read_in_all_ways(&path).await {
                let bytes = read.unwrap();
                assert!(bytes.len() <= LONGEST);
                // The kernel zeroes truncated bytes, which may be visible.
                let is_expected = |(n, &read): (usize, &u8)| read == byte(n) || read == 0;
                assert!(bytes.iter().enumerate().all(is_expected));
            }
        }
    });
}

#[test]
fn a_read_of_a_file_that_is_replaced_returns_one_version() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let new = folder.path().join("new");
    let versions = [vec![b'a'; 3000], vec![b'b'; 20_000], vec![b'c'; 5000]];
    std::fs::write(&path, &versions[0]).unwrap();
    let change = |n: usize| {
        std::fs::write(&new, &versions[n % 3]).unwrap();
        std::fs::rename(&new, &path).unwrap();
    };
    run_beside(change, async || {
        for _ in 0..30 {
            for read in read_in_all_ways(&path).await {
                let bytes = read.unwrap();
                assert!(versions.contains(&bytes), "{} bytes", bytes.len());
            }
        }
    });
}
