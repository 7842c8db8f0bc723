//! Creates the files that the programs read and overwrite, and controls whether they are in the
//! page cache.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use bench_kit::files::{
    BIG_BYTES, BIG_NUMBER, LONG_BYTES, OUT_BYTES, SMALL_FILES, SMALL_LENGTH, small_file, word,
};

/// Creates the files to read, unless they exist.
pub(super) fn create_files(dir: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(dir.join("small"))?;
    let bytes = |number: u64, first: u64, words: u64| -> Vec<u8> {
        let words = (first..first + words).map(|index| word(number, index).to_le_bytes());
        words.flatten().collect()
    };
    let length = |path: &Path| std::fs::metadata(path).map_or(0, |data| data.len());
    let big = dir.join("big");
    if length(&big) != BIG_BYTES {
        let file = File::create(&big)?;
        for piece in 0..BIG_BYTES / LONG_BYTES as u64 {
            let words = LONG_BYTES as u64 / 8;
            file.write_all_at(
                &bytes(BIG_NUMBER, piece * words, words),
                piece * LONG_BYTES as u64,
            )?;
        }
        file.sync_all()?;
    }
    for number in 0..SMALL_FILES {
        let path = small_file(dir, number);
        if length(&path) != SMALL_LENGTH as u64 {
            std::fs::write(path, bytes(number as u64, 0, SMALL_LENGTH as u64 / 8))?;
        }
    }
    Ok(())
}

/// Removes the output files of programs, and writes all dirty pages back to the disk.
pub(super) fn remove_output(dir: &Path) {
    for name in ["out", "log"] {
        let _ = std::fs::remove_file(dir.join(name));
    }
    // SAFETY: `sync` takes no arguments and cannot fail.
    unsafe { libc::sync() };
}

/// Empties the page cache. If the process lacks the privilege for this, evicts only the data of the
/// files to read, and returns false; directory entries then stay cached.
pub(super) fn evict_all(dir: &Path) -> bool {
    // SAFETY: `sync` takes no arguments and cannot fail.
    unsafe { libc::sync() };
    if std::fs::write("/proc/sys/vm/drop_caches", "3").is_ok() {
        return true;
    }
    let paths = (0..SMALL_FILES).map(|number| small_file(dir, number));
    for file in paths
        .chain([dir.join("big")])
        .filter_map(|path| File::open(path).ok())
    {
        // SAFETY: `posix_fadvise` takes no pointers; `file` is open.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    }
    false
}

/// Prepares the page cache for the benchmark `row`: loads the files that the program is about to
/// read, or creates the file that it is about to overwrite.
pub(super) fn fill_page_cache(row: &str, dir: &Path) -> std::io::Result<()> {
    match row {
        "open" => {
            (0..SMALL_FILES).try_for_each(|number| std::fs::read(small_file(dir, number)).map(drop))
        }
        "random" | "read" | "mixed" => {
            let mut file = File::open(dir.join("big"))?;
            let mut buffer = vec![0; LONG_BYTES];
            while file.read(&mut buffer)? != 0 {}
            Ok(())
        }
        // The output file is written once, so that all of its blocks are allocated.
        "write" => preallocate(&dir.join("out")),
        _ => Ok(()),
    }
}

/// Creates a file for a program to overwrite.
pub(super) fn preallocate(path: &Path) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    for _ in 0..OUT_BYTES / LONG_BYTES as u64 {
        file.write_all(&vec![1; LONG_BYTES])?;
    }
    file.sync_all()
}
