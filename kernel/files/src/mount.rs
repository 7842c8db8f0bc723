//! Mounts a disk: reads both heads, then all blocks that the newer head reaches, except the data of
//! files.

use alloc::vec::Vec;

use crate::Error;
use crate::layout::{
    BLOCK, Block, ENTRIES, ENTRY, Entry, FILES, Head, Pointer, read_pointers, sum,
};
use crate::tree::Tree;
use crate::volume::{FileRecord, Volume};

/// A disk that is being mounted: [`Mount::next`] names the block that it needs, [`Mount::supply`]
/// takes the block's bytes.
pub struct Mount {
    blocks: u64,
    heads: [Option<Head>; 2],
    is_blank: bool,
    /// Number of heads that were read.
    heads_read: u32,
    volume: Option<Volume>,
    /// Blocks that must still be read.
    work: Vec<Work>,
    /// Total length of the files according to their entries.
    claimed_bytes: u64,
}

/// A block of a tree that must still be read. `slot` is that of a file, or `None` for the
/// directory.
#[derive(Clone, Copy)]
struct Work {
    slot: Option<u32>,
    level: usize,
    index: usize,
    pointer: Pointer,
}

impl Mount {
    /// Begins to mount a disk of `blocks` blocks.
    #[must_use]
    pub fn new(blocks: u64) -> Mount {
        Mount {
            blocks,
            heads: [None; 2],
            is_blank: true,
            heads_read: 0,
            volume: None,
            work: Vec::new(),
            claimed_bytes: 0,
        }
    }

    /// Returns the block that is needed next; `None` if none is needed.
    #[must_use]
    pub fn next(&self) -> Option<u32> {
        match self.heads_read {
            head @ 0..=1 => Some(head),
            _ => self.work.last().map(|work| work.pointer.block),
        }
    }

    /// Takes the bytes of the needed block.
    ///
    /// # Errors
    /// [`Error::Blank`], [`Error::Damaged`], [`Error::OutOfMemory`].
    pub fn supply(&mut self, bytes: &Block) -> Result<(), Error> {
        if let Some(head @ 0..=1) = self.next().filter(|_| self.heads_read < 2) {
            self.is_blank &= bytes.iter().all(|byte| *byte == 0);
            // A head in the wrong place is invalid.
            let is_in_its_block = |found: &Head| found.generation % 2 == u64::from(head);
            self.heads[head as usize] = Head::read(bytes).filter(is_in_its_block);
            self.heads_read += 1;
            return match self.heads_read {
                2 => self.begin(),
                _ => Ok(()),
            };
        }
        let Some(work) = self.work.pop() else {
            return Ok(());
        };
        if sum(bytes) != work.pointer.sum {
            return Err(Error::Damaged);
        }
        match (work.slot, work.level) {
            (None, 0) => self.add_entries(work.index, bytes),
            _ => self.add_pointers(work, bytes),
        }
    }

    fn begin(&mut self) -> Result<(), Error> {
        let newest = self
            .heads
            .iter()
            .flatten()
            .max_by_key(|head| head.generation);
        let Some(&head) = newest else {
            return Err(if self.is_blank {
                Error::Blank
            } else {
                Error::Damaged
            });
        };
        let slots = head.size / ENTRY as u64;
        let is_valid = head.blocks <= self.blocks
            && slots <= FILES as u64
            && head.size.is_multiple_of(ENTRY as u64);
        if !is_valid {
            return Err(Error::Damaged);
        }
        let mut volume = Volume::empty(head.blocks)?;
        volume.generation = head.generation;
        volume.directory = Tree::new(head.size, volume.space.blocks())?;
        volume.files.resize_with(slots as usize, || None);
        self.volume = Some(volume);
        self.add_root(None, head.root)
    }

    fn volume(&mut self) -> Result<&mut Volume, Error> {
        self.volume.as_mut().ok_or(Error::Damaged)
    }

    fn tree(&mut self, slot: Option<u32>) -> Result<&mut Tree, Error> {
        let volume = self.volume()?;
        match slot {
            None => Ok(&mut volume.directory),
            Some(slot) => Ok(&mut volume.stored(slot).ok_or(Error::Damaged)?.tree),
        }
    }

    /// Sets the root of a tree, and claims its block.
    fn add_root(&mut self, slot: Option<u32>, pointer: Pointer) -> Result<(), Error> {
        let tree = self.tree(slot)?;
        let Some(level) = tree.height().checked_sub(1) else {
            return Ok(());
        };
        if let Some(root) = tree.pointer(level, 0) {
            *root = pointer;
        }
        self.add_block(slot, level, 0, pointer)
    }

    /// Claims the block of a pointer. Data of files stays on the disk; all other blocks must be
    /// read.
    fn add_block(
        &mut self,
        slot: Option<u32>,
        level: usize,
        index: usize,
        pointer: Pointer,
    ) -> Result<(), Error> {
        self.volume()?.space.claim(pointer.block)?;
        if slot.is_some() && level == 0 {
            return Ok(());
        }
        self.work.try_reserve(1).map_err(|_| Error::OutOfMemory)?;
        self.work.push(Work {
            slot,
            level,
            index,
            pointer,
        });
        Ok(())
    }

    /// Adds the pointers of a map block to its tree, and claims their blocks.
    fn add_pointers(&mut self, work: Work, bytes: &Block) -> Result<(), Error> {
        let Work {
            slot, level, index, ..
        } = work;
        let children = self.tree(slot)?.children_mut(level, index);
        read_pointers(bytes, children);
        let count = children.len();
        for at in 0..count {
            let child = self.tree(slot)?.children(level, index)[at];
            let index = index * crate::layout::FAN + at;
            self.add_block(slot, level - 1, index, child)?;
        }
        Ok(())
    }

    /// Adds the files of a block of the directory.
    fn add_entries(&mut self, block: usize, bytes: &Block) -> Result<(), Error> {
        for (at, bytes) in bytes.chunks_exact(ENTRY).enumerate() {
            let slot = block * ENTRIES + at;
            let Some(entry) = Entry::read(bytes).map_err(|()| Error::Damaged)? else {
                continue;
            };
            // Checked before memory is allocated for the file.
            self.claimed_bytes = self.claimed_bytes.saturating_add(entry.size);
            if self.claimed_bytes > self.blocks.saturating_mul(BLOCK as u64) {
                return Err(Error::Damaged);
            }
            let volume = self.volume()?;
            let tree = Tree::new(entry.size, volume.space.blocks())?;
            let is_duplicate = volume
                .files
                .iter()
                .flatten()
                .any(|file| file.name == entry.name);
            let target = volume.files.get_mut(slot).filter(|_| !is_duplicate);
            *target.ok_or(Error::Damaged)? = Some(FileRecord::new(entry.name, tree));
            self.add_root(Some(slot as u32), entry.root)?;
        }
        Ok(())
    }

    /// Returns the volume, when no block is needed any more.
    ///
    /// # Errors
    /// [`Error::Damaged`] if not all blocks were supplied.
    pub fn finish(self) -> Result<Volume, Error> {
        let mut volume = self
            .volume
            .filter(|_| self.work.is_empty())
            .ok_or(Error::Damaged)?;
        volume.space.commit();
        Ok(volume)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use alloc::vec;

    use super::*;
    use crate::layout::{FAN, Name, write_pointers};

    /// Mounts heads, directories and map blocks with random pointers and sizes, and with valid
    /// checksums. Mounting must end, with an error or with a volume whose files can be listed.
    #[test]
    fn mounting_random_blocks_with_valid_sums_ends() {
        const BLOCKS: u64 = 1_200;
        let mut state = 1u64;
        let mut random = move |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % below
        };
        let (mut mounted, mut damaged) = (0, 0);
        for _ in 0..3_000 {
            // Every block is a map block or a directory, and is built before the block that points
            // to it.
            let mut disk = vec![[0u8; BLOCK]; 40];
            let mut sums = [0u32; 40];
            for block in (2..40).rev() {
                let pointer = |block: u64| Pointer {
                    block: block as u32,
                    sum: sums.get(block as usize).copied().unwrap_or(0),
                };
                let mut bytes = [0; BLOCK];
                if block < 4 {
                    for at in 0..1 + random(4) as usize {
                        let name = [b'a' + random(6) as u8];
                        let sizes = [1, BLOCK as u64, 600 * BLOCK as u64, u64::MAX];
                        let entry = Entry {
                            name: Name::new(&name).unwrap(),
                            size: sizes[random(4) as usize].wrapping_add(random(BLOCK as u64)),
                            root: pointer(random(44)),
                        };
                        entry.write(&mut bytes[at * ENTRY..(at + 1) * ENTRY]);
                    }
                } else {
                    let count = random(1 + FAN as u64) as usize;
                    let first = random(1_300);
                    let pointers: Vec<Pointer> = (0..count)
                        .map(|at| match random(300) {
                            0 => pointer(random(u64::from(u32::MAX))),
                            _ => pointer(first + at as u64),
                        })
                        .collect();
                    write_pointers(&pointers, &mut bytes);
                }
                sums[block] = sum(&bytes);
                disk[block] = bytes;
            }
            let max_slots = if random(9) == 0 { 2_000 } else { 32 };
            let head = Head {
                generation: random(2),
                blocks: BLOCKS - random(2),
                size: ENTRY as u64 * (1 + random(max_slots)),
                root: Pointer {
                    block: 2 + random(2) as u32,
                    sum: sums[2],
                },
            };
            head.write(&mut disk[(head.generation % 2) as usize]);
            let mut mount = Mount::new(BLOCKS);
            let mut reads = 0;
            let outcome = loop {
                let Some(block) = mount.next() else {
                    break mount.finish().map(|volume| volume.list(0).is_some());
                };
                reads += 1;
                assert!(reads <= BLOCKS, "mounting does not end");
                let bytes = disk.get(block as usize).copied();
                if let Err(error) = mount.supply(&bytes.unwrap_or([0; BLOCK])) {
                    break Err(error);
                }
            };
            match outcome {
                Ok(_) => mounted += 1,
                Err(_) => damaged += 1,
            }
        }
        assert!(
            mounted > 20 && damaged > 20,
            "{mounted} mounted, {damaged} damaged"
        );
    }
}
