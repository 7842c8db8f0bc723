//! A sequence of changes that a seed determines, for tests: one side applies the changes, the other
//! computes the expected files. Each change is atomic, so after a power cut the files equal the
//! state after some number of changes.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::layout::BLOCK;

/// Number of different file names.
const FILES: u64 = 12;
/// Maximum length of a file, in blocks.
const MAX_BLOCKS: u64 = 24;

/// A change of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Creates the file, unless it exists.
    Create,
    /// Writes these bytes within a block. If the file does not exist, it is created first. The two
    /// steps are separate changes, between which the power may fail.
    Write {
        /// Offset, in thousandths of the length.
        part: u64,
        /// Number of bytes.
        len: usize,
        /// First byte; each following byte is greater by one.
        first: u8,
    },
    /// Unlinks the file, if it exists.
    Unlink,
}

/// Returns change number `n` of a seed: the name of a file, and the change.
#[must_use]
pub fn change(seed: u64, n: u64) -> (String, Change) {
    // SplitMix64 (Steele, Lea, Flood 2014).
    let mut state =
        seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = move |below: u64| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    };
    let name = format!("file {}", next(FILES));
    let change = match next(16) {
        0 => Change::Unlink,
        1 => Change::Create,
        _ => Change::Write {
            part: next(1_500).min(1_000),
            len: 1 + next(BLOCK as u64) as usize,
            first: next(256) as u8,
        },
    };
    (name, change)
}

/// Returns the offset and the bytes that a [`Change::Write`] writes to a file of `size` bytes. They
/// never cross the end of a block.
#[must_use]
pub fn write(size: u64, part: u64, len: usize, first: u8) -> (u64, Vec<u8>) {
    let offset = (size * part / 1_000).min(MAX_BLOCKS * BLOCK as u64 - 1);
    let remaining = BLOCK - (offset % BLOCK as u64) as usize;
    let bytes = (0..len.min(remaining))
        .map(|at| first.wrapping_add(at as u8))
        .collect();
    (offset, bytes)
}

/// Expected files: names and contents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model(pub BTreeMap<String, Vec<u8>>);

impl Model {
    /// Applies a change.
    pub fn apply(&mut self, name: &str, change: &Change) {
        match *change {
            Change::Unlink => {
                self.0.remove(name);
            }
            Change::Create => {
                self.0.entry(name.into()).or_default();
            }
            Change::Write { part, len, first } => {
                let file = self.0.entry(name.into()).or_default();
                let (offset, bytes) = write(file.len() as u64, part, len, first);
                let start = offset as usize;
                file.resize(file.len().max(start + bytes.len()), 0);
                file[start..start + bytes.len()].copy_from_slice(&bytes);
            }
        }
    }
}
