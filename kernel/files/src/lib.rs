//! A file system with atomic commits: copy-on-write, checksummed, small.
//!
//! ```text
//!  heads (blocks 0, 1 alternately)  ─► directory ─► files
//!   generation, sum                     map blocks: 512 pointers each, (block, sum)
//! ```
//!
//! A *head* is what other file systems call a superblock, and a *map block* is an indirect block.
//!
//! The code follows these principles:
//!
//! 1. *A block that the last head reaches is never overwritten.* A commit writes all changes to
//!    free blocks, flushes, writes the other head, and flushes. After a power cut the disk is in
//!    the state of the last commit, or of the commit that was in progress: it contains all changes,
//!    in their order, up to a moment at or after the last sync.
//! 2. *This crate does no input or output.* [`Volume`] names the next block to be read or written;
//!    the caller transfers it without holding a lock. So no function in this crate waits, and the
//!    same source runs in the kernel and under tests.
//! 3. *Memory is bounded.* A volume keeps 8 bytes for each block of the disk that belongs to a
//!    file, [`CACHE`] blocks, of which [`DIRTY`] may wait to be written, and a record for each of
//!    [`FILES`] files. A step copies and checksums at most one block.
//! 4. *The disk is not trusted.* The pointer to each block except the heads contains the block's
//!    checksum, and every pointer is checked when the disk is mounted: a damaged disk is an error,
//!    never a panic.
//!
//! *Directories* are the paths of files: `bin/hello` is in `bin`, which exists as long as it
//! contains a file, and occupies no space. No path is both a file and a directory.
//!
//! The set of free blocks is not stored. Mounting finds it, because it visits all map blocks.
//! Changes wait while a commit is in progress ([`Write::Wait`]); reads do not wait.
//!
//! | module | concern |
//! |---|---|
//! | `layout` | heads, entries of the directory, map blocks, as bytes |
//! | `space` | the free blocks |
//! | `tree` | the block pointers of a file |
//! | `cache` | blocks in memory, including those that wait to be written |
//! | `volume` | files: open, read, write, unlink, list |
//! | `commit` | writes changes from memory to the disk |
//! | `mount` | reads the disk into memory |
//! | [`direct`] | a volume on a synchronous disk |
//! | [`load`] | a sequence of changes determined by a seed, for tests with power cuts |

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod cache;
mod commit;
pub mod direct;
mod layout;
pub mod load;
mod mount;
mod space;
mod tree;
mod volume;

pub use cache::{CACHE, DIRTY};
pub use commit::Step;
pub use layout::{BLOCK, Block, FILES, NAME};
pub use mount::Mount;
pub use volume::{Fetch, File, Listed, Read, Volume, Write};

use core::fmt;

/// Reason why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// No file has this name.
    NoFile,
    /// The name is empty, too long, not UTF-8, or not a path: see [`Volume::open`].
    BadName,
    /// A part of the path is a file, which has no entries.
    NotDirectory,
    /// The path is a directory.
    IsDirectory,
    /// The write would begin beyond the end of the file.
    BadOffset,
    /// The disk is full, or there are too many files.
    NoSpace,
    /// There is no memory.
    OutOfMemory,
    /// The disk does not contain the bytes that were written.
    Damaged,
    /// The disk was never written, so it must be formatted.
    Blank,
    /// A write to the disk has failed, after which the volume writes no more.
    Failed,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Error::NoFile => "no such file",
            Error::BadName => "not a valid file name",
            Error::NotDirectory => "a part of the path is a file",
            Error::IsDirectory => "the path is a directory",
            Error::BadOffset => "the offset is beyond the end of the file",
            Error::NoSpace => "no space left on the disk",
            Error::OutOfMemory => "out of memory",
            Error::Damaged => "the disk is damaged",
            Error::Blank => "the disk is blank",
            Error::Failed => "a write to the disk has failed, so it can only be read",
        })
    }
}

impl core::error::Error for Error {}
