//! Tracks the free blocks of the disk. A block is free if neither the last head on the disk nor the
//! trees in memory reach it.

use alloc::vec::Vec;

use crate::Error;
use crate::layout::FIRST;

pub(crate) struct Space {
    blocks: u32,
    /// A bit for each block that memory points to.
    current: Vec<u64>,
    /// A bit for each block that the last head reaches.
    committed: Vec<u64>,
    free: u32,
    /// Block at which the next search starts.
    next: u32,
}

fn has(bits: &[u64], block: u32) -> bool {
    bits[block as usize / 64] >> (block % 64) & 1 != 0
}

impl Space {
    /// Creates a space in which all blocks except the heads are free.
    pub(crate) fn new(blocks: u32) -> Result<Space, Error> {
        let words = (blocks as usize).div_ceil(64);
        let zeroes = || {
            let mut bits = Vec::new();
            bits.try_reserve_exact(words)
                .map_err(|_| Error::OutOfMemory)?;
            bits.resize(words, 0u64);
            Ok(bits)
        };
        Ok(Space {
            blocks,
            current: zeroes()?,
            committed: zeroes()?,
            free: blocks.saturating_sub(FIRST),
            next: FIRST,
        })
    }

    pub(crate) fn blocks(&self) -> u32 {
        self.blocks
    }

    pub(crate) fn free(&self) -> u32 {
        self.free
    }

    /// Claims the block of a pointer on the disk. Fails if there is no such block, or if another
    /// pointer leads to it.
    pub(crate) fn claim(&mut self, block: u32) -> Result<(), Error> {
        if block < FIRST || block >= self.blocks || has(&self.current, block) {
            return Err(Error::Damaged);
        }
        self.current[block as usize / 64] |= 1 << (block % 64);
        self.free -= 1;
        Ok(())
    }

    pub(crate) fn allocate(&mut self) -> Result<u32, Error> {
        let is_free = |block: &u32| !has(&self.current, *block) && !has(&self.committed, *block);
        let blocks = (self.next..self.blocks).chain(FIRST..self.next.min(self.blocks));
        let block = blocks.into_iter().find(is_free).ok_or(Error::NoSpace)?;
        self.current[block as usize / 64] |= 1 << (block % 64);
        self.free -= 1;
        self.next = block + 1;
        Ok(block)
    }

    /// Releases a block to which memory no longer points; it becomes free when no head reaches it.
    /// Block 0 means that there is no block.
    pub(crate) fn release(&mut self, block: u32) {
        if block == 0 {
            return;
        }
        self.current[block as usize / 64] &= !(1 << (block % 64));
        self.free += u32::from(!has(&self.committed, block));
    }

    /// Records that the head now reaches all blocks to which memory points.
    pub(crate) fn commit(&mut self) {
        let used: u32 = self.current.iter().map(|word| word.count_ones()).sum();
        self.committed.copy_from_slice(&self.current);
        self.free = self.blocks.saturating_sub(FIRST) - used;
    }
}
