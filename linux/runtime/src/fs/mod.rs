//! Files and directories.
//!
//! Reads and writes go through the *ring*, that is, the vCPU's io_uring or its substitute, by
//! position. So do opening, inspecting, syncing and truncating files, and creating, moving and
//! removing names. Data in the kernel's cache is read at once and without the ring. A file whose
//! name is in the cache is opened in the same way. Calls that wait until the same file is on the
//! device share an `fsync`. Calls that the kernel's ring does not have (listing directories,
//! resolving links, permissions, the recursive calls) run on threads for blocking calls, at the
//! level of the caller.
//!
//! The I/O priority of each operation follows from the level of the coroutine that starts it. Eight
//! levels share one of the eight priorities of the best-effort class of `ioprio_set(2)`, so that
//! levels 0..=7 have priority 0, and levels 56..=63 priority 7. Schedulers of block devices that
//! support priorities (bfq, mq-deadline) honour them.
//!
//! While something more urgent is in flight on the vCPU, writes to the page cache go to the kernel
//! a few at a time. These are 256 KiB, or two writes of any size (one write, if the vCPU's thread
//! is bound to one CPU). The kernel's threads copy these writes without regard to levels, if need
//! be on the vCPU's CPU. All other writes wait in user space, by level.
//!
//! A [`File`] has no position, so callers pass the position to [`read_at`](File::read_at) and
//! [`write_at`](File::write_at), and any number of coroutines may use the file at once.
//! [`File::into_stream`] returns a stream that has a position, with the traits of
//! [`io`](crate::io).
//!
//! # Cancellation safety
//! A dropped future loses its buffers. Reads can be repeated; a write may have written an unknown
//! part, and a change of names may or may not have happened.

mod attempt_history;
mod cached;
mod copy;
mod directory;
mod file;
mod metadata;
mod names;
mod options;
mod read;
mod stream;
mod sync;
mod whole;

pub use copy::{Progress, copy, copy_with};
pub use directory::{
    DirEntry, ReadDir, create_dir, create_dir_all, read_dir, remove_dir, remove_dir_all,
};
pub use file::File;
pub use metadata::{FileType, Metadata};
pub use names::{
    canonicalize, hard_link, metadata, read_link, remove_file, rename, set_permissions, symlink,
    symlink_metadata, try_exists,
};
pub use options::OpenOptions;
pub use stream::FileStream;
pub use whole::{read, read_to_string, write};

use std::io;

use upshift_core::Level;

use crate::host;

/// The best-effort class, as `ioprio_set(2)` encodes it.
const BEST_EFFORT: u16 = 2 << 13;

/// Returns the I/O priority of a level, as `ioprio_set(2)` encodes it.
fn ioprio(level: Level) -> u16 {
    BEST_EFFORT | u16::from(level.get() / 8)
}

fn current_ioprio() -> u16 {
    ioprio(host::current_level().unwrap_or_default())
}

/// Returns the position `count` bytes behind `offset`. `u64::MAX`, the file's own position, stays
/// as it is.
fn advance_position(offset: u64, count: usize) -> u64 {
    offset.saturating_add(count as u64)
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_urgent_levels_get_better_io_priorities() {
        assert_eq!(ioprio(Level::MOST_URGENT), BEST_EFFORT);
        assert_eq!(ioprio(Level::DEFAULT), BEST_EFFORT | 4);
        assert_eq!(ioprio(Level::LEAST_URGENT), BEST_EFFORT | 7);
    }
}
