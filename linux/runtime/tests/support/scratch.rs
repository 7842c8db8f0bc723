//! Files with known content.

use std::os::fd::AsRawFd;
use std::path::PathBuf;

use tempfile::TempDir;

/// A file in a folder that is removed again, and its content.
pub(crate) struct Scratch {
    _folder: TempDir,
    pub(crate) path: PathBuf,
    pub(crate) bytes: Vec<u8>,
}

impl Scratch {
    pub(crate) fn new(length: usize) -> Scratch {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let bytes: Vec<u8> = (0..length as u64)
            .map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
            .collect();
        std::fs::write(&path, &bytes).unwrap();
        Scratch {
            _folder: folder,
            path,
            bytes,
        }
    }

    /// Takes a part of the file out of the page cache; a length of 0 means the rest.
    pub(crate) fn forget(&self, from: i64, length: i64) {
        let file = std::fs::File::open(&self.path).unwrap();
        file.sync_all().unwrap();
        // SAFETY: advice about a file that is open.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), from, length, libc::POSIX_FADV_DONTNEED) };
    }
}
