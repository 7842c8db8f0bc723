//! The block tree of a file: pointers to its data, to the map blocks that contain these pointers,
//! and so on up to a root. All pointers are in memory.

use alloc::vec::Vec;

use crate::Error;
use crate::layout::{BLOCK, FAN, Pointer};

#[derive(Default)]
pub(crate) struct Tree {
    pub(crate) size: u64,
    /// Pointers by level, beginning with the pointers to data; the last level contains one pointer,
    /// the root. Empty for an empty file.
    levels: Vec<Vec<Pointer>>,
}

impl Tree {
    /// Creates a tree for `size` bytes whose pointers are all null.
    pub(crate) fn new(size: u64, max_blocks: u32) -> Result<Tree, Error> {
        if size.div_ceil(BLOCK as u64) > u64::from(max_blocks) {
            return Err(Error::Damaged);
        }
        let mut tree = Tree {
            size,
            levels: Vec::new(),
        };
        tree.grow(size.div_ceil(BLOCK as u64) as usize)?;
        Ok(tree)
    }

    /// Returns the number of data blocks.
    pub(crate) fn len(&self) -> usize {
        self.levels.first().map_or(0, Vec::len)
    }

    /// Returns the number of levels, including those of the data and of the root.
    pub(crate) fn height(&self) -> usize {
        self.levels.len()
    }

    pub(crate) fn root(&self) -> Pointer {
        self.levels
            .last()
            .map_or(Pointer::default(), |root| root[0])
    }

    pub(crate) fn pointer(&mut self, level: usize, index: usize) -> Option<&mut Pointer> {
        self.levels.get_mut(level)?.get_mut(index)
    }

    pub(crate) fn data(&self, index: usize) -> Option<Pointer> {
        self.levels.first()?.get(index).copied()
    }

    /// Returns the pointers of a map block.
    pub(crate) fn children(&self, level: usize, index: usize) -> &[Pointer] {
        let pointers = level
            .checked_sub(1)
            .and_then(|level_below| self.levels.get(level_below));
        let pointers = pointers.map_or(&[][..], Vec::as_slice);
        let first = (index * FAN).min(pointers.len());
        &pointers[first..pointers.len().min(first + FAN)]
    }

    pub(crate) fn children_mut(&mut self, level: usize, index: usize) -> &mut [Pointer] {
        let pointers = level
            .checked_sub(1)
            .and_then(|level_below| self.levels.get_mut(level_below));
        let Some(pointers) = pointers else {
            return &mut [];
        };
        let first = (index * FAN).min(pointers.len());
        let end = pointers.len().min(first + FAN);
        &mut pointers[first..end]
    }

    /// Grows the tree to `blocks` data blocks, on all levels or on none. New pointers are null. The
    /// caller must write the new blocks, and all map blocks above them.
    pub(crate) fn grow(&mut self, blocks: usize) -> Result<(), Error> {
        let out_of_memory = |_| Error::OutOfMemory;
        let (mut len, mut height) = (blocks, 0);
        while len > 0 {
            if self.levels.len() <= height {
                self.levels.try_reserve(1).map_err(out_of_memory)?;
                self.levels.push(Vec::new());
            }
            let level = &mut self.levels[height];
            let additional = len.saturating_sub(level.len());
            if level.try_reserve(additional).is_err() {
                self.trim();
                return Err(Error::OutOfMemory);
            }
            if len == 1 {
                break;
            }
            (len, height) = (len.div_ceil(FAN), height + 1);
        }
        let (mut len, mut height) = (blocks, 0);
        while len > 0 {
            let level = &mut self.levels[height];
            if level.len() < len {
                level.resize(len, Pointer::default());
            }
            if len == 1 {
                break;
            }
            (len, height) = (len.div_ceil(FAN), height + 1);
        }
        Ok(())
    }

    /// Removes empty levels.
    fn trim(&mut self) {
        while self.levels.last().is_some_and(Vec::is_empty) {
            self.levels.pop();
        }
    }

    /// Removes all blocks of the tree, and returns their pointers.
    pub(crate) fn take_blocks(&mut self) -> impl Iterator<Item = Pointer> {
        let levels = core::mem::take(&mut self.levels);
        self.size = 0;
        levels.into_iter().flatten()
    }
}
