//! The format of the disk in bytes. Numbers are little-endian.
//!
//! | bytes of a head | content |
//! |---|---|
//! | 0..8 | [`MAGIC`] |
//! | 8..16 | generation: the head is in block generation mod 2 |
//! | 16..24 | number of blocks of the disk |
//! | 24..32 | length of the directory |
//! | 32..40 | pointer to the root of the directory |
//! | 40..44 | checksum of the preceding bytes |
//!
//! | bytes of an entry of the directory | content |
//! |---|---|
//! | 0 | length of the name; 0 if there is no file |
//! | 1..65 | name |
//! | 72..80 | length of the file |
//! | 80..88 | pointer to the root of the file |

/// Size of a block in bytes.
pub const BLOCK: usize = 4096;
/// A block.
pub type Block = [u8; BLOCK];
/// Maximum length of a name, in bytes.
pub const NAME: usize = 64;
/// Maximum number of files.
pub const FILES: usize = 1024;

/// Number of pointers in a map block.
pub(crate) const FAN: usize = BLOCK / 8;
/// Size of an entry of the directory in bytes.
pub(crate) const ENTRY: usize = 128;
/// Number of entries in a block of the directory.
pub(crate) const ENTRIES: usize = BLOCK / ENTRY;
/// First block after the heads.
pub(crate) const FIRST: u32 = 2;

const MAGIC: [u8; 8] = *b"upfiles1";
/// Number of bytes of a head that the checksum covers.
const SUMMED: usize = 40;

/// Number of a block, and the checksum of its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pointer {
    /// Number of the block, or 0 if there is none.
    pub(crate) block: u32,
    pub(crate) sum: u32,
}

impl Pointer {
    fn to_bytes(self) -> [u8; 8] {
        (u64::from(self.block) | u64::from(self.sum) << 32).to_le_bytes()
    }

    fn from_bytes(bytes: &[u8]) -> Pointer {
        let word = word(bytes, 0);
        Pointer {
            block: word as u32,
            sum: (word >> 32) as u32,
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes
        .get(at..at + 8)
        .and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u64::from_le_bytes)
}

pub(crate) fn sum(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

/// The root of the file system, in block 0 or 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) generation: u64,
    pub(crate) blocks: u64,
    pub(crate) size: u64,
    pub(crate) root: Pointer,
}

impl Head {
    pub(crate) fn write(&self, to: &mut Block) {
        to.fill(0);
        to[..8].copy_from_slice(&MAGIC);
        to[8..16].copy_from_slice(&self.generation.to_le_bytes());
        to[16..24].copy_from_slice(&self.blocks.to_le_bytes());
        to[24..32].copy_from_slice(&self.size.to_le_bytes());
        to[32..40].copy_from_slice(&self.root.to_bytes());
        let sum = sum(&to[..SUMMED]);
        to[SUMMED..SUMMED + 4].copy_from_slice(&sum.to_le_bytes());
    }

    /// Reads a head; `None` if it was not written completely.
    pub(crate) fn read(from: &Block) -> Option<Head> {
        let is_whole =
            from[..8] == MAGIC && from[SUMMED..SUMMED + 4] == sum(&from[..SUMMED]).to_le_bytes();
        is_whole.then(|| Head {
            generation: word(from, 8),
            blocks: word(from, 16),
            size: word(from, 24),
            root: Pointer::from_bytes(&from[32..40]),
        })
    }
}

/// A name that is stored inline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    len: u8,
    bytes: [u8; NAME],
}

impl Name {
    /// Checks a name; `None` if it is empty, too long, or not UTF-8.
    pub(crate) fn new(name: &[u8]) -> Option<Name> {
        let is_name = !name.is_empty() && name.len() <= NAME && core::str::from_utf8(name).is_ok();
        is_name.then(|| {
            let mut bytes = [0; NAME];
            bytes[..name.len()].copy_from_slice(name);
            Name {
                len: name.len() as u8,
                bytes,
            }
        })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Returns whether a file may be created at this path. Its parts are separated by single
    /// slashes, and none is `.` or `..`, which have a meaning in other systems.
    pub(crate) fn is_path(&self) -> bool {
        let mut parts = self.bytes().split(|byte| *byte == b'/');
        parts.all(|part| !matches!(part, b"" | b"." | b".."))
    }

    /// Returns whether this is the path of a directory that contains `file`.
    pub(crate) fn contains(&self, file: &Name) -> bool {
        let rest = file.bytes().strip_prefix(self.bytes());
        rest.is_some_and(|rest| rest.first() == Some(&b'/'))
    }
}

/// The entry of a file in the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: Name,
    pub(crate) size: u64,
    pub(crate) root: Pointer,
}

impl Entry {
    pub(crate) fn write(&self, to: &mut [u8]) {
        to.fill(0);
        to[0] = self.name.len;
        to[1..=NAME].copy_from_slice(&self.name.bytes);
        to[72..80].copy_from_slice(&self.size.to_le_bytes());
        to[80..88].copy_from_slice(&self.root.to_bytes());
    }

    /// Reads an entry; `Ok(None)` if there is no file.
    ///
    /// # Errors
    /// The entry is invalid.
    pub(crate) fn read(from: &[u8]) -> Result<Option<Entry>, ()> {
        let len = usize::from(from[0]);
        if len == 0 {
            return Ok(None);
        }
        let name = from.get(1..1 + len.min(NAME + 1)).and_then(Name::new);
        Ok(Some(Entry {
            name: name.ok_or(())?,
            size: word(from, 72),
            root: Pointer::from_bytes(&from[80..88]),
        }))
    }
}

pub(crate) fn write_pointers(pointers: &[Pointer], to: &mut Block) {
    to.fill(0);
    for (bytes, pointer) in to.chunks_exact_mut(8).zip(pointers) {
        bytes.copy_from_slice(&pointer.to_bytes());
    }
}

/// Reads pointers of a map block, as many as fit into `to`.
pub(crate) fn read_pointers(from: &Block, to: &mut [Pointer]) {
    for (pointer, bytes) in to.iter_mut().zip(from.chunks_exact(8)) {
        *pointer = Pointer::from_bytes(bytes);
    }
}
