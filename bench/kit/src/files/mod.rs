//! Defines the work of the section `files`, which is the same for every peer, and its output.
//!
//! A program is called with an operation and measures it:
//! `PROGRAM OPERATION --dir DIR --seconds S --tasks N [--direct] [--once]`. The driver creates the
//! files in DIR and determines their content: word *i* of a file is [`word`] of its number and *i*.
//! At the end the program prints one line of JSON ([`Report`]).
//!
//! A task repeats the operation until the time is over:
//!
//! - `open` opens the next small file, reads it to its end and closes it. `--once`: until each has
//!   been read.
//! - `random` reads the next block of 4 KiB of the big file, in the order of [`shuffled`], none
//!   twice before all have been read; nothing is read ahead (`POSIX_FADV_RANDOM`). `--once`: until
//!   the file has been read. `--direct`: the reads bypass the page cache.
//! - `read` reads the next MiB of the big file. `--once`: until the file has been read.
//! - `write` writes the next MiB of the file `out`.
//! - `append` appends 512 bytes to the file `log`, and waits until they are on the device.
//! - `mixed`: each of [`BULK_TASKS`] tasks writes pieces of 1 MiB to its own file, at a less urgent
//!   level where there are levels; a client requests blocks of the big file over a connection.
//! - `check` executes a few operations of each kind and prints a sum of the data read; it is not
//!   measured.
//!
//! In `mixed` the program prints `listening on ADDR:PORT` and accepts one connection. A request is
//! the number of a block of 4 KiB, 8 bytes in little-endian order; the reply is the block. The run
//! ends with the connection.

mod plan;
mod report;
mod run;

use std::path::{Path, PathBuf};

pub use plan::{Mode, Operation, Plan, open_std};
pub use report::{Report, Times};
pub use run::{Buffer, Host, WARM_UP, one_connection, run};

/// Size of the big file in bytes.
pub const BIG_BYTES: u64 = 512 << 20;
/// Number of small files.
pub const SMALL_FILES: usize = 10_000;
/// Size of a small file in bytes. Like most files, a small file does not end at a page boundary.
pub const SMALL_LENGTH: usize = 4000;
/// Size of a random read in bytes.
pub const BLOCK: usize = 4096;
/// Size of a long read or write in bytes.
pub const LONG_BYTES: usize = 1 << 20;
/// Size of the written files in bytes; writing restarts at the beginning when it reaches the end.
pub const OUT_BYTES: u64 = 64 << 20;
/// Size of a record in the log, in bytes.
pub const RECORD_BYTES: usize = 512;
/// Number of writing tasks in `mixed`.
pub const BULK_TASKS: usize = 8;
/// Number of the big file, for [`word`]; small files have the numbers below this one.
pub const BIG_NUMBER: u64 = SMALL_FILES as u64;

/// Returns word `index` of file `number`.
#[must_use]
pub fn word(number: u64, index: u64) -> u64 {
    // Output function of Steele, Lea and Flood, "Fast splittable pseudorandom number generators"
    // (2014).
    let mut z = (number << 40 | index).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns the sum of the words of some bytes.
#[must_use]
pub fn sum_words(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(8).map(first_word);
    words.fold(0, u64::wrapping_add)
}

/// Returns the first word of some bytes.
#[must_use]
pub fn first_word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[..8]);
    u64::from_le_bytes(word)
}

/// Returns the path of a small file.
#[must_use]
pub fn small_file(dir: &Path, number: usize) -> PathBuf {
    dir.join(format!("small/{number:05}"))
}

/// A page of a buffer for direct I/O.
#[derive(Clone)]
#[repr(C, align(4096))]
struct Page([u8; 4096]);

/// Returns zeroed memory for direct I/O, which begins at a page boundary. The memory is never
/// freed, because programs of this section end by `exit`.
#[must_use]
pub fn page_aligned(length: usize) -> &'static mut [u8] {
    let pages = vec![Page([0; 4096]); length.div_ceil(4096)].leak();
    // SAFETY: `length` is at most the size of the pages, which have no padding, so all bytes of the
    // slice are initialised. The slice is the only reference, because `pages` is not used again.
    unsafe { std::slice::from_raw_parts_mut(pages.as_mut_ptr().cast(), length) }
}

/// Returns the data to write: the beginning of the big file.
#[must_use]
pub fn pattern(length: usize) -> &'static mut [u8] {
    let buffer = page_aligned(length);
    for (index, chunk) in buffer.chunks_exact_mut(8).enumerate() {
        chunk.copy_from_slice(&word(BIG_NUMBER, index as u64).to_le_bytes());
    }
    buffer
}

/// Number of blocks in the big file.
pub const BLOCKS: u64 = BIG_BYTES / BLOCK as u64;

/// Returns the number of the block that is the `index`-th to be read. The order looks random and is
/// the same for every peer. It is a permutation of the [`BLOCKS`], since each step is invertible:
/// multiplication by an odd factor, and the exclusive or with a right shift.
#[must_use]
pub fn shuffled(index: u64) -> u64 {
    let mut x = index % BLOCKS;
    x ^= x >> 9;
    x = x.wrapping_mul(0x9e37_79b9) % BLOCKS;
    x ^= x >> 8;
    x = x.wrapping_mul(0x85eb_ca6b) % BLOCKS;
    x ^ (x >> 9)
}

/// Number of blocks of the big file that `check` reads, from the last to the first.
pub const CHECKED_BLOCKS: u64 = 512;
/// Number of pieces of 1 MiB of the big file that `check` reads; it then writes the last piece that
/// many times to `out`.
pub const CHECKED_PIECES: u64 = 8;
/// Number of records that `check` appends to `log`.
pub const CHECKED_RECORDS: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_for_direct_io_is_zeroed_and_begins_at_a_page_boundary() {
        for length in [RECORD_BYTES, BLOCK, LONG_BYTES] {
            let buffer = page_aligned(length);
            assert_eq!(buffer.len(), length);
            assert!(buffer.as_ptr().addr().is_multiple_of(4096));
            assert!(buffer.iter().all(|&byte| byte == 0));
        }
        assert_eq!(first_word(pattern(RECORD_BYTES)), word(BIG_NUMBER, 0));
    }

    #[test]
    fn each_block_is_read_once_in_an_order_without_neighbours() {
        assert!(BLOCKS.is_power_of_two());
        let mut blocks: Vec<u64> = (0..BLOCKS).map(shuffled).collect();
        let neighbours = blocks.windows(2).filter(|two| two[0] + 1 == two[1]);
        // A random order has about one pair of neighbours; the bound leaves a margin.
        assert!(neighbours.count() < 10);
        blocks.sort_unstable();
        assert!(blocks.into_iter().eq(0..BLOCKS));
    }
}
