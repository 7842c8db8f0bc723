//! Commits changes from memory to the disk, one block per step.
//!
//! ```text
//!  for each file: data ─► map blocks, bottom up
//!  then: directory ─► flush ─► head ─► flush
//! ```
//!
//! The volume does not change during a commit, so the commit contains the state of one moment.
//! After a failed write, the volume can still be read while it is mounted, and the disk is in the
//! state of the last commit.

use alloc::vec::Vec;
use core::mem::replace;

use crate::Error;
use crate::cache::Key;
use crate::layout::{Block, ENTRIES, ENTRY, Entry, FAN, FILES, Head, Pointer, sum, write_pointers};
use crate::volume::Volume;

/// Next step of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write the buffer to this block.
    Write(u32),
    /// All earlier writes must reach the disk before the next write.
    Flush,
    /// The commit has finished.
    Done,
}

/// Tree whose blocks are being written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum TreeOwner {
    File(u32),
    Directory,
}

/// Stage of a commit.
pub(crate) enum Stage {
    /// Finds the next file with dirty blocks, from this slot on.
    FindDirty(u32),
    /// Writes data from index `from` on; `written` lists the blocks that were written.
    Data {
        owner: TreeOwner,
        from: u32,
        written: Vec<u32>,
    },
    /// Writes the map blocks of a level, which `indices` lists, from position `at` on. While `at`
    /// is 0, `indices` still lists the blocks of the level below, which are first replaced by their
    /// parents.
    Map {
        owner: TreeOwner,
        level: usize,
        indices: Vec<u32>,
        at: usize,
    },
    Flush,
    Head,
    LastFlush,
    Finish,
}

impl Volume {
    /// Begins to write the changes. Returns false if there are no changes, the disk has failed, or
    /// a commit is in progress.
    pub fn begin_commit(&mut self) -> bool {
        if !self.is_changed() || self.has_failed || self.stage.is_some() {
            return false;
        }
        self.committing = self.changes;
        self.stage = Some(Stage::FindDirty(0));
        true
    }

    /// Returns whether a commit is in progress.
    #[must_use]
    pub fn is_committing(&self) -> bool {
        self.stage.is_some()
    }

    /// Executes the next step of the commit in progress. `buffer` receives the block to be written.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::OutOfMemory`]; after either, the volume has
    /// [failed](Volume::fail).
    pub fn commit(&mut self, buffer: &mut Block) -> Result<Step, Error> {
        loop {
            let Some(stage) = self.stage.take() else {
                return Ok(Step::Done);
            };
            match self.advance(stage, buffer) {
                Ok((next, step)) => {
                    self.stage = next;
                    if let Some(step) = step {
                        return Ok(step);
                    }
                }
                Err(error) => {
                    self.fail();
                    return Err(error);
                }
            }
        }
    }

    /// Marks the volume as failed, because a write to the disk has failed.
    pub fn fail(&mut self) {
        self.has_failed = true;
        self.stage = None;
        self.sweep_all();
    }

    fn sweep_all(&mut self) {
        for slot in 0..self.files.len() as u32 {
            self.sweep(slot);
        }
    }

    fn advance(
        &mut self,
        stage: Stage,
        buffer: &mut Block,
    ) -> Result<(Option<Stage>, Option<Step>), Error> {
        Ok(match stage {
            Stage::FindDirty(from) => (Some(self.find_dirty(from)), None),
            Stage::Data {
                owner,
                from,
                written,
            } => self.write_data(owner, from, written, buffer)?,
            Stage::Map {
                owner,
                level,
                indices,
                at,
            } => self.write_map(owner, level, indices, at, buffer)?,
            Stage::Flush => (Some(Stage::Head), Some(Step::Flush)),
            Stage::Head => {
                let head = Head {
                    generation: self.generation + 1,
                    blocks: u64::from(self.space.blocks()),
                    size: self.directory.size,
                    root: self.directory.root(),
                };
                head.write(buffer);
                let block = (head.generation % 2) as u32;
                (Some(Stage::LastFlush), Some(Step::Write(block)))
            }
            Stage::LastFlush => (Some(Stage::Finish), Some(Step::Flush)),
            Stage::Finish => {
                self.generation += 1;
                self.space.commit();
                self.committed = self.committing;
                self.sweep_all();
                (None, Some(Step::Done))
            }
        })
    }

    fn find_dirty(&self, from: u32) -> Stage {
        let mut slots = from..self.files.len() as u32;
        let found = slots.find(|slot| self.cache.next_dirty(*slot, 0).is_some());
        let owner = found.map_or(TreeOwner::Directory, TreeOwner::File);
        Stage::Data {
            owner,
            from: 0,
            written: Vec::new(),
        }
    }

    fn write_data(
        &mut self,
        owner: TreeOwner,
        from: u32,
        mut written: Vec<u32>,
        buffer: &mut Block,
    ) -> Result<(Option<Stage>, Option<Step>), Error> {
        let index = match owner {
            TreeOwner::File(slot) => self.cache.next_dirty(slot, from),
            TreeOwner::Directory => self.next_changed(from),
        };
        let Some(index) = index else {
            let indices = written;
            let (level, at) = (1, 0);
            let next = Stage::Map {
                owner,
                level,
                indices,
                at,
            };
            return Ok((Some(next), None));
        };
        match owner {
            TreeOwner::File(slot) => {
                let key = Key { slot, index };
                if let Some(bytes) = self.cache.get(key) {
                    buffer.copy_from_slice(bytes);
                }
                self.cache.clean(key);
                self.mark_entry(slot);
            }
            TreeOwner::Directory => self.fill_entries(index, buffer),
        }
        let block = self.relocate(owner, 0, index, sum(buffer))?;
        written.try_reserve(1).map_err(|_| Error::OutOfMemory)?;
        written.push(index);
        let next = Stage::Data {
            owner,
            from: index + 1,
            written,
        };
        Ok((Some(next), Some(Step::Write(block))))
    }

    fn write_map(
        &mut self,
        owner: TreeOwner,
        level: usize,
        mut indices: Vec<u32>,
        at: usize,
        buffer: &mut Block,
    ) -> Result<(Option<Stage>, Option<Step>), Error> {
        let height = match owner {
            TreeOwner::File(slot) => self.stored(slot).map_or(0, |file| file.tree.height()),
            TreeOwner::Directory => self.directory.height(),
        };
        if level >= height {
            return Ok((
                Some(match owner {
                    TreeOwner::File(slot) => Stage::FindDirty(slot + 1),
                    TreeOwner::Directory => Stage::Flush,
                }),
                None,
            ));
        }
        if at == 0 {
            // The parents of the lower blocks, in order.
            for index in &mut indices {
                *index /= FAN as u32;
            }
            indices.dedup();
        }
        let Some(&index) = indices.get(at) else {
            let (level, at) = (level + 1, 0);
            let next = Stage::Map {
                owner,
                level,
                indices,
                at,
            };
            return Ok((Some(next), None));
        };
        let children = match owner {
            TreeOwner::File(slot) => match self.files.get(slot as usize) {
                Some(Some(file)) => file.tree.children(level, index as usize),
                _ => &[],
            },
            TreeOwner::Directory => self.directory.children(level, index as usize),
        };
        write_pointers(children, buffer);
        let block = self.relocate(owner, level, index, sum(buffer))?;
        let at = at + 1;
        let next = Stage::Map {
            owner,
            level,
            indices,
            at,
        };
        Ok((Some(next), Some(Step::Write(block))))
    }

    /// Moves a block of a tree to a free block; the old block is free after this commit.
    fn relocate(
        &mut self,
        owner: TreeOwner,
        level: usize,
        index: u32,
        sum: u32,
    ) -> Result<u32, Error> {
        let block = self.space.allocate()?;
        let new = Pointer { block, sum };
        let tree = match owner {
            TreeOwner::File(slot) => self.stored(slot).map(|file| &mut file.tree),
            TreeOwner::Directory => Some(&mut self.directory),
        };
        let old = tree.and_then(|tree| tree.pointer(level, index as usize));
        if let Some(old) = old.map(|pointer| replace(pointer, new)) {
            self.space.release(old.block);
        }
        Ok(block)
    }

    /// Marks the entry of a file as changed since the last commit.
    fn mark_entry(&mut self, slot: u32) {
        self.changed[slot as usize / 64] |= 1 << (slot % 64);
    }

    /// Returns the next block of the directory with an entry that is not on the disk.
    fn next_changed(&self, from: u32) -> Option<u32> {
        let is_changed = |block: &u32| {
            let mut slots = *block as usize * ENTRIES..(*block as usize + 1) * ENTRIES;
            slots.any(|slot| self.changed[slot / 64] >> (slot % 64) & 1 != 0)
        };
        (from..(FILES / ENTRIES) as u32).find(is_changed)
    }

    /// Fills a block of the directory. Its entries count as written from now on.
    fn fill_entries(&mut self, block: u32, buffer: &mut Block) {
        buffer.fill(0);
        let first = block as usize * ENTRIES;
        for (at, bytes) in buffer.chunks_exact_mut(ENTRY).enumerate() {
            let slot = first + at;
            self.changed[slot / 64] &= !(1 << (slot % 64));
            if let Some(Some(file)) = self.files.get(slot)
                && !file.is_unlinked
            {
                let entry = Entry {
                    name: file.name,
                    size: file.tree.size,
                    root: file.tree.root(),
                };
                entry.write(bytes);
            }
        }
    }
}
