//! The files of a mounted disk, in memory.
//!
//! A file is open while it is read or written. An unlinked file is removed when it is no longer
//! open.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::Error;
use crate::cache::{Cache, DIRTY, Key, new_block};
use crate::commit::Stage;
use crate::layout::{BLOCK, Block, ENTRIES, ENTRY, FILES, Name, Pointer, sum};
use crate::space::Space;
use crate::tree::Tree;

/// An open file, which must be [closed](Volume::close).
#[derive(Debug, PartialEq, Eq)]
pub struct File(pub(crate) u32);

/// Result of a read.
#[derive(Debug, PartialEq, Eq)]
pub enum Read {
    /// Number of bytes that were read; 0 at the end of the file.
    Done(usize),
    /// This block must first be read from the disk and [supplied](Volume::supply).
    Fetch(Fetch),
}

/// Result of a write.
#[derive(Debug, PartialEq, Eq)]
pub enum Write {
    /// Number of bytes that were written, up to the end of a block.
    Done(usize),
    /// This block must first be read from the disk and [supplied](Volume::supply).
    Fetch(Fetch),
    /// The write must wait for the end of a commit, which is in progress or should begin now.
    Wait,
}

/// A block of a file that is not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetch {
    key: (u32, u32),
    pointer: Pointer,
}

impl Fetch {
    /// Returns the block of the disk.
    #[must_use]
    pub fn block(&self) -> u32 {
        self.pointer.block
    }
}

/// A file of a [list](Volume::list).
#[derive(Debug, PartialEq, Eq)]
pub struct Listed<'a> {
    /// Number to continue the listing from.
    pub next: usize,
    /// Name of the file.
    pub name: &'a str,
    /// Length of the file in bytes.
    pub size: u64,
}

pub(crate) struct FileRecord {
    pub(crate) name: Name,
    pub(crate) tree: Tree,
    /// Number of open handles.
    open_count: u32,
    pub(crate) is_unlinked: bool,
}

impl FileRecord {
    pub(crate) fn new(name: Name, tree: Tree) -> FileRecord {
        FileRecord {
            name,
            tree,
            open_count: 0,
            is_unlinked: false,
        }
    }
}

/// A mounted disk.
pub struct Volume {
    pub(crate) space: Space,
    pub(crate) cache: Cache,
    /// Files, by their slots in the directory.
    pub(crate) files: Vec<Option<FileRecord>>,
    pub(crate) directory: Tree,
    /// Slots whose entry differs from that on the disk: a bit for each.
    pub(crate) changed: [u64; FILES / 64],
    pub(crate) generation: u64,
    pub(crate) stage: Option<Stage>,
    /// Number of all changes.
    pub(crate) changes: u64,
    /// Number of changes that the disk will have after the commit in progress.
    pub(crate) committing: u64,
    /// Number of changes that the disk has.
    pub(crate) committed: u64,
    pub(crate) has_failed: bool,
    /// The block being written, until all its bytes have arrived.
    scratch: Box<Block>,
}

/// Maximum number of blocks that a commit needs for the directory: its data, and a map block.
const DIRECTORY_BLOCKS: usize = FILES / ENTRIES + 1;
/// Minimum number of blocks of a disk.
const MIN_BLOCKS: u64 = 64;
/// Maximum number of blocks that are used: 1 GiB. This bound limits a file to two levels of map
/// blocks.
const MAX_BLOCKS: u64 = 1 << 18;

static ZEROES: Block = [0; BLOCK];

impl Volume {
    pub(crate) fn empty(blocks: u64) -> Result<Volume, Error> {
        if blocks < MIN_BLOCKS {
            return Err(Error::NoSpace);
        }
        let blocks = blocks.min(MAX_BLOCKS) as u32;
        let mut files = Vec::new();
        files
            .try_reserve_exact(FILES)
            .map_err(|_| Error::OutOfMemory)?;
        Ok(Volume {
            space: Space::new(blocks)?,
            cache: Cache::new()?,
            files,
            directory: Tree::default(),
            changed: [0; FILES / 64],
            generation: 0,
            stage: None,
            changes: 0,
            committing: 0,
            committed: 0,
            has_failed: false,
            scratch: new_block()?,
        })
    }

    /// Creates a volume for a blank disk of `blocks` blocks; the disk has a file system after the
    /// first commit.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if there are too few blocks; [`Error::OutOfMemory`].
    pub fn format(blocks: u64) -> Result<Volume, Error> {
        let mut volume = Volume::empty(blocks)?;
        volume.changes = 1;
        Ok(volume)
    }

    /// Returns the number of free blocks.
    #[must_use]
    pub fn free(&self) -> u32 {
        self.space.free()
    }

    fn find(&self, name: &Name) -> Option<u32> {
        let matches = |file: &Option<FileRecord>| {
            file.as_ref()
                .is_some_and(|file| !file.is_unlinked && file.name == *name)
        };
        self.files.iter().position(matches).map(|slot| slot as u32)
    }

    pub(crate) fn stored(&mut self, slot: u32) -> Option<&mut FileRecord> {
        self.files.get_mut(slot as usize)?.as_mut()
    }

    pub(crate) fn mark_changed(&mut self, slot: u32) {
        self.changed[slot as usize / 64] |= 1 << (slot % 64);
        self.changes += 1;
    }

    /// Returns whether a change must wait for a commit. If space is short, a commit helps only if
    /// it frees blocks.
    fn must_wait(&self, blocks: usize) -> Result<bool, Error> {
        if self.has_failed {
            return Err(Error::Failed);
        }
        if self.stage.is_some() {
            return Ok(true);
        }
        let entries: u32 = self.changed.iter().map(|word| word.count_ones()).sum();
        let is_full = entries as usize >= DIRTY;
        // A data block, with two levels of map blocks above it.
        let needed = 3 * (self.cache.dirty_count() + blocks) + DIRECTORY_BLOCKS;
        if is_full || (self.space.free() as usize) < needed {
            return if self.changes == self.committed {
                Err(Error::NoSpace)
            } else {
                Ok(true)
            };
        }
        Ok(false)
    }

    /// Opens a file; with `create`, creates a missing file. Returns `None` if the caller must wait
    /// for a commit.
    ///
    /// A name is a path: parts separated by single slashes, none of them `.` or `..`.
    ///
    /// # Errors
    /// [`Error::NoFile`], [`Error::BadName`], [`Error::NotDirectory`], [`Error::IsDirectory`],
    /// [`Error::NoSpace`], [`Error::Failed`].
    pub fn open(&mut self, name: &[u8], create: bool) -> Result<Option<File>, Error> {
        let name = Name::new(name).ok_or(Error::BadName)?;
        let slot = match self.find(&name) {
            Some(slot) => slot,
            None if self.is_directory(&name) => return Err(Error::IsDirectory),
            None if !create => return Err(Error::NoFile),
            None if !name.is_path() => return Err(Error::BadName),
            None if self.has_file_above(&name) => return Err(Error::NotDirectory),
            None if self.must_wait(1)? => return Ok(None),
            None => self.create(name)?,
        };
        let file = self.stored(slot).ok_or(Error::NoFile)?;
        file.open_count += 1;
        Ok(Some(File(slot)))
    }

    fn names(&self) -> impl Iterator<Item = &Name> {
        let files = self.files.iter().flatten();
        files
            .filter(|file| !file.is_unlinked)
            .map(|file| &file.name)
    }

    /// Returns whether a file is in the directory with this name. Takes O(files) time.
    fn is_directory(&self, name: &Name) -> bool {
        self.names().any(|file| name.contains(file))
    }

    /// Returns whether a part of the path is a file. Takes O(files) time.
    fn has_file_above(&self, name: &Name) -> bool {
        self.names().any(|file| file.contains(name))
    }

    fn create(&mut self, name: Name) -> Result<u32, Error> {
        let file = Some(FileRecord::new(name, Tree::default()));
        let slot = match self.files.iter().position(Option::is_none) {
            Some(free) => {
                self.files[free] = file;
                free
            }
            None if self.files.len() < FILES => {
                let size = (self.files.len() + 1) * ENTRY;
                self.directory.grow(size.div_ceil(BLOCK))?;
                self.directory.size = size as u64;
                self.files.push(file);
                self.files.len() - 1
            }
            None => return Err(Error::NoSpace),
        };
        self.mark_changed(slot as u32);
        Ok(slot as u32)
    }

    /// Closes a file.
    pub fn close(&mut self, file: File) {
        let File(slot) = file;
        let Some(stored) = self.stored(slot) else {
            return;
        };
        stored.open_count -= 1;
        self.sweep(slot);
    }

    /// Removes an unlinked file that is not open. Does nothing while a commit is in progress,
    /// because the end of the commit removes such files.
    pub(crate) fn sweep(&mut self, slot: u32) {
        let is_unused = |file: &mut FileRecord| file.is_unlinked && file.open_count == 0;
        if self.stage.is_none() && self.stored(slot).is_some_and(is_unused) {
            self.drop_blocks(slot);
            self.files[slot as usize] = None;
        }
    }

    fn drop_blocks(&mut self, slot: u32) {
        self.cache.remove_file(slot);
        let Some(Some(file)) = self.files.get_mut(slot as usize) else {
            return;
        };
        for pointer in file.tree.take_blocks() {
            self.space.release(pointer.block);
        }
    }

    /// Returns the file's length in bytes.
    #[must_use]
    pub fn size(&self, file: &File) -> u64 {
        let stored = self.files.get(file.0 as usize).and_then(Option::as_ref);
        stored.map_or(0, |stored| stored.tree.size)
    }

    /// Removes all bytes of a file. Returns false if the caller must wait for a commit.
    ///
    /// # Errors
    /// [`Error::Failed`], [`Error::NoSpace`].
    pub fn truncate(&mut self, file: &File) -> Result<bool, Error> {
        if self.size(file) == 0 {
            return Ok(true);
        }
        if self.must_wait_to_free()? {
            return Ok(false);
        }
        self.drop_blocks(file.0);
        self.mark_changed(file.0);
        Ok(true)
    }

    /// Returns whether a change that frees space must wait for a commit. It differs from
    /// [`Volume::must_wait`] in that such a change is possible on a full disk.
    fn must_wait_to_free(&self) -> Result<bool, Error> {
        match self.must_wait(0) {
            Err(Error::NoSpace) => Ok(false),
            other => other,
        }
    }

    /// Removes a name; a directory disappears with its last file. Returns false if the caller must
    /// wait for a commit.
    ///
    /// # Errors
    /// [`Error::NoFile`], [`Error::BadName`], [`Error::IsDirectory`], [`Error::Failed`].
    pub fn unlink(&mut self, name: &[u8]) -> Result<bool, Error> {
        let name = Name::new(name).ok_or(Error::BadName)?;
        let slot = match self.find(&name) {
            Some(slot) => slot,
            None if self.is_directory(&name) => return Err(Error::IsDirectory),
            None => return Err(Error::NoFile),
        };
        if self.must_wait_to_free()? {
            return Ok(false);
        }
        if let Some(file) = self.stored(slot) {
            file.is_unlinked = true;
        }
        self.mark_changed(slot);
        self.sweep(slot);
        Ok(true)
    }

    /// Returns the first file whose slot is not below `from`.
    #[must_use]
    pub fn list(&self, from: usize) -> Option<Listed<'_>> {
        let mut files = self.files.iter().enumerate().skip(from);
        files.find_map(|(slot, file)| {
            let file = file.as_ref().filter(|file| !file.is_unlinked)?;
            Some(Listed {
                next: slot + 1,
                name: core::str::from_utf8(file.name.bytes()).ok()?,
                size: file.tree.size,
            })
        })
    }

    /// Reads from a file, at most up to the end of a block. `give` gets the bytes, and is called at
    /// most once.
    ///
    /// # Errors
    /// Errors of `give`.
    pub fn read<E>(
        &mut self,
        file: &File,
        offset: u64,
        len: usize,
        give: impl FnOnce(&[u8]) -> Result<(), E>,
    ) -> Result<Read, E> {
        let remaining = self.size(file).saturating_sub(offset);
        let (index, start) = split_offset(offset);
        let count = len
            .min(BLOCK - start)
            .min(usize::try_from(remaining).unwrap_or(BLOCK));
        if count == 0 {
            return Ok(Read::Done(0));
        }
        let key = Key {
            slot: file.0,
            index,
        };
        if let Some(block) = self.cache.get(key) {
            give(&block[start..start + count])?;
            return Ok(Read::Done(count));
        }
        Ok(Read::Fetch(self.fetch(key)))
    }

    fn fetch(&mut self, key: Key) -> Fetch {
        let stored = self.files.get(key.slot as usize).and_then(Option::as_ref);
        let pointer = stored.and_then(|stored| stored.tree.data(key.index as usize));
        Fetch {
            key: (key.slot, key.index),
            pointer: pointer.unwrap_or_default(),
        }
    }

    /// Supplies the bytes of a block that the volume has requested. If the file has changed
    /// meanwhile, the bytes are ignored. In both cases the caller repeats its operation.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::OutOfMemory`].
    pub fn supply(&mut self, fetch: Fetch, bytes: &Block) -> Result<(), Error> {
        let (slot, index) = fetch.key;
        let key = Key { slot, index };
        if self.fetch(key) != fetch || self.cache.get(key).is_some() {
            return Ok(());
        }
        if sum(bytes) != fetch.pointer.sum {
            return Err(Error::Damaged);
        }
        self.cache.insert(key, bytes)
    }

    /// Writes to a file, at most up to the end of a block. `put` fills a slice with the bytes to be
    /// written, and is called at most once; if it fails, no bytes are written.
    ///
    /// # Errors
    /// [`Error::BadOffset`], [`Error::NoSpace`], [`Error::OutOfMemory`], [`Error::Failed`], and
    /// errors of `put`.
    pub fn write<E: From<Error>>(
        &mut self,
        file: &File,
        offset: u64,
        len: usize,
        put: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Write, E> {
        let size = self.size(file);
        if offset > size {
            return Err(Error::BadOffset.into());
        }
        let (index, start) = split_offset(offset);
        let count = len.min(BLOCK - start);
        if count == 0 {
            return Ok(Write::Done(0));
        }
        let key = Key {
            slot: file.0,
            index,
        };
        if let Some(first) = self.step_before_write(key)? {
            return Ok(first);
        }
        let blocks = self.stored(file.0).map_or(0, |stored| stored.tree.len());
        let is_new = index as usize >= blocks;
        put(&mut self.scratch[..count])?;
        if is_new {
            self.add_block(key)?;
        }
        if let Some(block) = self.cache.change(key) {
            block[start..start + count].copy_from_slice(&self.scratch[..count]);
        }
        if let Some(stored) = self.stored(file.0) {
            stored.tree.size = size.max(offset + count as u64);
        }
        self.mark_changed(file.0);
        Ok(Write::Done(count))
    }

    /// Returns the step that must precede a write to a block of a file.
    fn step_before_write(&mut self, key: Key) -> Result<Option<Write>, Error> {
        if self.must_wait(1)? || !self.cache.has_room(key) {
            return Ok(Some(Write::Wait));
        }
        let blocks = self.stored(key.slot).map_or(0, |stored| stored.tree.len());
        let is_new = key.index as usize >= blocks;
        if !is_new && self.cache.get(key).is_none() {
            return Ok(Some(Write::Fetch(self.fetch(key))));
        }
        Ok(None)
    }

    /// Returns the step that must precede a write at this offset of a file: a fetch, or a wait.
    /// `None` if the write can proceed.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Failed`].
    pub fn missing_for_write(&mut self, file: &File, offset: u64) -> Result<Option<Write>, Error> {
        let slot = file.0;
        let (index, _) = split_offset(offset);
        self.step_before_write(Key { slot, index })
    }

    /// Returns the block that must be fetched before a read at this offset of a file; `None` if the
    /// read can proceed.
    pub fn missing_for_read(&mut self, file: &File, offset: u64) -> Option<Fetch> {
        let slot = file.0;
        let (index, _) = split_offset(offset);
        let key = Key { slot, index };
        (offset < self.size(file) && self.cache.get(key).is_none()).then(|| self.fetch(key))
    }

    fn add_block(&mut self, key: Key) -> Result<(), Error> {
        if self.cache.get(key).is_none() {
            self.cache.insert(key, &ZEROES)?;
        }
        match self.stored(key.slot) {
            Some(stored) => stored.tree.grow(key.index as usize + 1),
            None => Err(Error::NoFile),
        }
    }

    /// Returns whether there is a change that is not on the disk.
    #[must_use]
    pub fn is_changed(&self) -> bool {
        self.changes != self.committed
    }

    /// Returns the current version. All changes until now are on the disk when
    /// [`Volume::is_durable`] returns true for this version.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.changes
    }

    /// Returns whether all changes before `version` are on the disk.
    ///
    /// # Errors
    /// [`Error::Failed`] if they will never be.
    pub fn is_durable(&self, version: u64) -> Result<bool, Error> {
        if self.committed < version && self.has_failed {
            return Err(Error::Failed);
        }
        Ok(self.committed >= version)
    }
}

/// Returns the index of the block, and the offset in it.
fn split_offset(offset: u64) -> (u32, usize) {
    let index = u32::try_from(offset / BLOCK as u64).unwrap_or(u32::MAX);
    (index, (offset % BLOCK as u64) as usize)
}
