//! Blocks of files in memory. A dirty block is newer than the disk, and is kept until it is
//! committed. When the cache is full, the least recently used clean block is dropped.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::Error;
use crate::layout::{BLOCK, Block};

/// Maximum number of blocks in memory.
pub const CACHE: usize = 64;
/// Maximum number of dirty blocks, which wait to be written.
pub const DIRTY: usize = 32;

/// Key of a block: file and index.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) slot: u32,
    pub(crate) index: u32,
}

struct Cached {
    key: Key,
    bytes: Box<Block>,
    is_dirty: bool,
    last_use: u64,
}

pub(crate) struct Cache {
    blocks: Vec<Cached>,
    dirty_count: usize,
    clock: u64,
}

/// Allocates a block of zeroes.
pub(crate) fn new_block() -> Result<Box<Block>, Error> {
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(BLOCK)
        .map_err(|_| Error::OutOfMemory)?;
    bytes.resize(BLOCK, 0u8);
    bytes
        .into_boxed_slice()
        .try_into()
        .map_err(|_| Error::OutOfMemory)
}

impl Cache {
    pub(crate) fn new() -> Result<Cache, Error> {
        let mut blocks = Vec::new();
        blocks
            .try_reserve_exact(CACHE)
            .map_err(|_| Error::OutOfMemory)?;
        Ok(Cache {
            blocks,
            dirty_count: 0,
            clock: 0,
        })
    }

    /// Returns the number of dirty blocks.
    pub(crate) fn dirty_count(&self) -> usize {
        self.dirty_count
    }

    fn find(&mut self, key: Key) -> Option<&mut Cached> {
        self.clock += 1;
        let clock = self.clock;
        let found = self.blocks.iter_mut().find(|cached| cached.key == key)?;
        found.last_use = clock;
        Some(found)
    }

    pub(crate) fn get(&mut self, key: Key) -> Option<&Block> {
        self.find(key).map(|cached| &*cached.bytes)
    }

    /// Returns a block to be changed, which becomes dirty. There must be [space](Cache::has_room)
    /// for another dirty block.
    pub(crate) fn change(&mut self, key: Key) -> Option<&mut Block> {
        let cached = self.find(key)?;
        let was_dirty = core::mem::replace(&mut cached.is_dirty, true);
        self.dirty_count += usize::from(!was_dirty);
        let cached = self.blocks.iter_mut().find(|cached| cached.key == key)?;
        Some(&mut cached.bytes)
    }

    /// Returns whether this block may become dirty.
    pub(crate) fn has_room(&self, key: Key) -> bool {
        let matches = |cached: &Cached| cached.key == key && cached.is_dirty;
        self.dirty_count < DIRTY || self.blocks.iter().any(matches)
    }

    /// Caches a missing block as clean, replacing another block if necessary.
    pub(crate) fn insert(&mut self, key: Key, bytes: &Block) -> Result<(), Error> {
        self.clock += 1;
        let last_use = self.clock;
        if self.blocks.len() < CACHE {
            let mut new = new_block()?;
            new.copy_from_slice(bytes);
            self.blocks.push(Cached {
                key,
                bytes: new,
                is_dirty: false,
                last_use,
            });
            return Ok(());
        }
        let clean = self.blocks.iter_mut().filter(|cached| !cached.is_dirty);
        let oldest = clean.min_by_key(|cached| cached.last_use);
        let oldest = oldest.ok_or(Error::OutOfMemory)?;
        oldest.bytes.copy_from_slice(bytes);
        (oldest.key, oldest.last_use) = (key, last_use);
        Ok(())
    }

    /// Returns the next dirty block of a file at or above an index.
    pub(crate) fn next_dirty(&self, slot: u32, from: u32) -> Option<u32> {
        let dirty = self.blocks.iter().filter(|cached| cached.is_dirty);
        let dirty = dirty.filter(|cached| cached.key.slot == slot && cached.key.index >= from);
        dirty.map(|cached| cached.key.index).min()
    }

    pub(crate) fn clean(&mut self, key: Key) {
        if let Some(cached) = self.find(key) {
            let was_dirty = core::mem::replace(&mut cached.is_dirty, false);
            self.dirty_count -= usize::from(was_dirty);
        }
    }

    pub(crate) fn remove_file(&mut self, slot: u32) {
        self.blocks.retain(|cached| cached.key.slot != slot);
        self.dirty_count = self.blocks.iter().filter(|cached| cached.is_dirty).count();
    }
}
