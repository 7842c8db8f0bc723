//! A file system with atomic commits: copy-on-write, checksummed, small.
//!
//! ```text
//!  heads (blocks 0 and 1, in turns) ─► directory ─► files
//!   generation, sum                     map blocks: 512 pointers each, (block, sum)
//! ```
//!
//! Principles to hold the code against:
//!
//! 1. *No block that the last head reaches is ever overwritten.* A commit writes everything that
//!    has changed to free blocks, flushes, writes the other head, flushes. So after a power cut the
//!    disk is as it was at the end of the last commit, or of the one that was under way: it has all
//!    changes, in their order, up to some moment not before the last sync.
//! 2. *No input or output here.* [`Volume`] names the next block to be read or written; the caller
//!    does that, with no lock held. So nothing waits in this crate, and the same source runs in the
//!    kernel and under tests.
//! 3. *Bounded.* Memory holds 8 bytes for each block of the disk that a file has, [`CACHE`] blocks,
//!    of which [`DIRTY`] may wait to be written, and a record for each of [`FILES`] files. A step
//!    copies and sums at most one block.
//! 4. *The disk is an allegation.* Every block but the heads is summed where it is pointed to, and
//!    every pointer is checked when the disk is mounted: a damaged disk is an error, never a panic.
//!
//! *Directories* are the paths of files: `bin/hello` is in `bin`, which exists as long as it has a
//! file, and takes no space of its own. Nothing is a file and a directory at once.
//!
//! The set of free blocks is not on the disk: mounting walks through the map blocks. Changes wait
//! while a commit is under way ([`Write::Wait`]); reading does not.
//!
//! | module | concern |
//! |---|---|
//! | `layout` | heads, entries of the directory, map blocks, as bytes |
//! | `space` | the free blocks |
//! | `tree` | the block pointers of a file |
//! | `cache` | blocks in memory, those that wait to be written among them |
//! | `volume` | files: open, read, write, unlink, list |
//! | `commit` | from memory to the disk |
//! | `mount` | from the disk to memory |
//! | [`direct`] | a volume on a synchronous disk |
//! | [`load`] | a sequence of changes by a seed, for tests with power cuts |

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
    /// There is no file of this name.
    NoFile,
    /// The name is empty, too long, no UTF-8, or not a path: see [`Volume::open`].
    BadName,
    /// A part of the path is a file, which has no entries.
    NotDirectory,
    /// The path is a directory.
    IsDirectory,
    /// Writing would begin behind the end of the file.
    BadOffset,
    /// The disk is full, or there are too many files.
    NoSpace,
    /// There is no memory.
    OutOfMemory,
    /// The disk does not hold the bytes that were written there.
    Damaged,
    /// Nothing was ever written on the disk: it has to be formatted.
    Blank,
    /// The disk has failed to write: nothing is written any more.
    Failed,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Error::NoFile => "no such file",
            Error::BadName => "not the name of a file",
            Error::NotDirectory => "a part of the path is a file",
            Error::IsDirectory => "the path is a directory",
            Error::BadOffset => "behind the end of the file",
            Error::NoSpace => "no space left on the disk",
            Error::OutOfMemory => "no memory",
            Error::Damaged => "the disk is damaged",
            Error::Blank => "the disk is blank",
            Error::Failed => "the disk does not write any more",
        })
    }
}

impl core::error::Error for Error {}
