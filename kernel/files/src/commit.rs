//! From memory to the disk, a block a step.
//!
//! ```text
//!  a file's data ─► its map blocks, bottom up ─► all files ─► directory ─► flush ─► head ─► flush
//! ```
//!
//! Only the commit changes the volume meanwhile, so it holds the state of one moment. If the disk
//! fails, the volume is read from memory while it is mounted, and the disk is as it was after the
//! last commit.

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
    /// All writes so far must reach the disk before the next write.
    Flush,
    /// The commit is over.
    Done,
}

/// Owner of the blocks that are written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    File(u32),
    Directory,
}

/// Stage of a commit.
pub(crate) enum Stage {
    /// Looks for the next file with dirty blocks, from a place on.
    Look(u32),
    /// Writes data from an index on; `written` blocks were written.
    Data {
        whose: Whose,
        from: u32,
        written: Vec<u32>,
    },
    /// Writes the map blocks of a level: those of `indices` from `at` on.
    Map {
        whose: Whose,
        level: usize,
        indices: Vec<u32>,
        at: usize,
    },
    Flush,
    Head,
    LastFlush,
    Over,
}

impl Volume {
    /// Begins to write the changes. Returns false if there are none, the disk has failed, or a
    /// commit is under way.
    pub fn begin_commit(&mut self) -> bool {
        if !self.is_changed() || self.has_failed || self.stage.is_some() {
            return false;
        }
        self.committing = self.changes;
        self.stage = Some(Stage::Look(0));
        true
    }

    /// Returns whether a commit is under way.
    #[must_use]
    pub fn is_committing(&self) -> bool {
        self.stage.is_some()
    }

    /// Takes the next step of the commit that is under way. `buffer` gets the block to be written.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::OutOfMemory`]: the volume has [failed](Volume::fail).
    pub fn commit(&mut self, buffer: &mut Block) -> Result<Step, Error> {
        loop {
            let Some(stage) = self.stage.take() else {
                return Ok(Step::Done);
            };
            match self.go_on(stage, buffer) {
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

    /// Marks the volume as failed: the disk does not write.
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

    fn go_on(
        &mut self,
        stage: Stage,
        buffer: &mut Block,
    ) -> Result<(Option<Stage>, Option<Step>), Error> {
        Ok(match stage {
            Stage::Look(from) => (Some(self.look(from)), None),
            Stage::Data {
                whose,
                from,
                written,
            } => self.data(whose, from, written, buffer)?,
            Stage::Map {
                whose,
                level,
                indices,
                at,
            } => self.map(whose, level, indices, at, buffer)?,
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
            Stage::LastFlush => (Some(Stage::Over), Some(Step::Flush)),
            Stage::Over => {
                self.generation += 1;
                self.space.commit();
                self.committed = self.committing;
                self.sweep_all();
                (None, Some(Step::Done))
            }
        })
    }

    fn look(&self, from: u32) -> Stage {
        let mut slots = from..self.files.len() as u32;
        let found = slots.find(|slot| self.cache.next_dirty(*slot, 0).is_some());
        let whose = found.map_or(Whose::Directory, Whose::File);
        Stage::Data {
            whose,
            from: 0,
            written: Vec::new(),
        }
    }

    /// Writes the next block of data that the disk has not.
    fn data(
        &mut self,
        whose: Whose,
        from: u32,
        mut written: Vec<u32>,
        buffer: &mut Block,
    ) -> Result<(Option<Stage>, Option<Step>), Error> {
        let index = match whose {
            Whose::File(slot) => self.cache.next_dirty(slot, from),
            Whose::Directory => self.next_changed(from),
        };
        let Some(index) = index else {
            let indices = written;
            let (level, at) = (1, 0);
            let next = Stage::Map {
                whose,
                level,
                indices,
                at,
            };
            return Ok((Some(next), None));
        };
        match whose {
            Whose::File(slot) => {
                let key = Key { slot, index };
                if let Some(bytes) = self.cache.get(key) {
                    buffer.copy_from_slice(bytes);
                }
                self.cache.clean(key);
                self.mark_entry(slot);
            }
            Whose::Directory => self.entries(index, buffer),
        }
        let block = self.move_to(whose, 0, index, sum(buffer))?;
        written.try_reserve(1).map_err(|_| Error::OutOfMemory)?;
        written.push(index);
        let next = Stage::Data {
            whose,
            from: index + 1,
            written,
        };
        Ok((Some(next), Some(Step::Write(block))))
    }

    /// Writes the next map block above those that were written.
    fn map(
        &mut self,
        whose: Whose,
        level: usize,
        mut indices: Vec<u32>,
        at: usize,
        buffer: &mut Block,
    ) -> Result<(Option<Stage>, Option<Step>), Error> {
        let height = match whose {
            Whose::File(slot) => self.stored(slot).map_or(0, |file| file.tree.height()),
            Whose::Directory => self.directory.height(),
        };
        if level >= height {
            return Ok((
                Some(match whose {
                    Whose::File(slot) => Stage::Look(slot + 1),
                    Whose::Directory => Stage::Flush,
                }),
                None,
            ));
        }
        if at == 0 {
            // Of those below, in order.
            for index in &mut indices {
                *index /= FAN as u32;
            }
            indices.dedup();
        }
        let Some(&index) = indices.get(at) else {
            let (level, at) = (level + 1, 0);
            let next = Stage::Map {
                whose,
                level,
                indices,
                at,
            };
            return Ok((Some(next), None));
        };
        let children = match whose {
            Whose::File(slot) => match self.files.get(slot as usize) {
                Some(Some(file)) => file.tree.children(level, index as usize),
                _ => &[],
            },
            Whose::Directory => self.directory.children(level, index as usize),
        };
        write_pointers(children, buffer);
        let block = self.move_to(whose, level, index, sum(buffer))?;
        let at = at + 1;
        let next = Stage::Map {
            whose,
            level,
            indices,
            at,
        };
        Ok((Some(next), Some(Step::Write(block))))
    }

    /// Gives a block of a tree a new place; its old place is free after this commit.
    fn move_to(&mut self, whose: Whose, level: usize, index: u32, sum: u32) -> Result<u32, Error> {
        let block = self.space.allocate()?;
        let new = Pointer { block, sum };
        let tree = match whose {
            Whose::File(slot) => self.stored(slot).map(|file| &mut file.tree),
            Whose::Directory => Some(&mut self.directory),
        };
        let old = tree.and_then(|tree| tree.pointer(level, index as usize));
        if let Some(old) = old.map(|place| replace(place, new)) {
            self.space.release(old.block);
        }
        Ok(block)
    }

    /// Marks the entry of a file as changed since the last commit.
    fn mark_entry(&mut self, slot: u32) {
        self.changed[slot as usize / 64] |= 1 << (slot % 64);
    }

    /// Returns the next block of the directory with an entry that the disk does not have.
    fn next_changed(&self, from: u32) -> Option<u32> {
        let is_changed = |block: &u32| {
            let mut slots = *block as usize * ENTRIES..(*block as usize + 1) * ENTRIES;
            slots.any(|slot| self.changed[slot / 64] >> (slot % 64) & 1 != 0)
        };
        (from..(FILES / ENTRIES) as u32).find(is_changed)
    }

    /// The bytes of a block of the directory, which the disk has from now on.
    fn entries(&mut self, block: u32, buffer: &mut Block) {
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
