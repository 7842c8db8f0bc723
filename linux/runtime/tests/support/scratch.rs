//! Temporary files with known content.

use std::os::fd::AsRawFd;
use std::path::PathBuf;

use tempfile::TempDir;

/// A file in a temporary folder, and the bytes that it contains.
pub(crate) struct ScratchFile {
    _folder: TempDir,
    pub(crate) path: PathBuf,
    pub(crate) bytes: Vec<u8>,
}

impl ScratchFile {
    /// Creates a file of `length` bytes that depend on their position.
    pub(crate) fn new(length: usize) -> ScratchFile {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let bytes: Vec<u8> = (0..length as u64)
            .map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
            .collect();
        std::fs::write(&path, &bytes).unwrap();
        ScratchFile {
            _folder: folder,
            path,
            bytes,
        }
    }

    /// Evicts a part of the file from the page cache. With a length of 0, the part ends at the end
    /// of the file.
    pub(crate) fn evict(&self, offset: i64, length: i64) {
        let file = std::fs::File::open(&self.path).unwrap();
        file.sync_all().unwrap();
        // SAFETY: `posix_fadvise` takes no pointer.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), offset, length, libc::POSIX_FADV_DONTNEED) };
    }
}
