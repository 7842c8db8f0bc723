//! A volume on a synchronous disk: an image in a file, or in memory.

use alloc::vec::Vec;

use crate::layout::{BLOCK, Block};
use crate::{Error, File, Mount, Read, Step, Volume, Write};

/// A disk.
pub trait Disk {
    /// Returns the number of blocks.
    fn blocks(&self) -> u64;
    /// Reads a block.
    ///
    /// # Errors
    /// Errors of the disk.
    fn read(&mut self, block: u32, to: &mut Block) -> Result<(), Error>;
    /// Writes a block.
    ///
    /// # Errors
    /// Errors of the disk.
    fn write(&mut self, block: u32, from: &Block) -> Result<(), Error>;
    /// Makes earlier writes durable.
    ///
    /// # Errors
    /// Errors of the disk.
    fn flush(&mut self) -> Result<(), Error>;
}

/// A disk in memory.
impl Disk for Vec<u8> {
    fn blocks(&self) -> u64 {
        (self.len() / BLOCK) as u64
    }

    fn read(&mut self, block: u32, to: &mut Block) -> Result<(), Error> {
        let start = block as usize * BLOCK;
        to.copy_from_slice(self.get(start..start + BLOCK).ok_or(Error::Failed)?);
        Ok(())
    }

    fn write(&mut self, block: u32, from: &Block) -> Result<(), Error> {
        let start = block as usize * BLOCK;
        let target = self.get_mut(start..start + BLOCK).ok_or(Error::Failed)?;
        target.copy_from_slice(from);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

/// A disk and its mounted volume.
pub struct Mounted<D> {
    /// The disk.
    pub disk: D,
    /// The volume with the files.
    pub volume: Volume,
}

impl<D: Disk> Mounted<D> {
    /// Mounts a disk.
    ///
    /// # Errors
    /// [`Error::Blank`], [`Error::Damaged`], errors of the disk.
    pub fn mount(mut disk: D) -> Result<Mounted<D>, Error> {
        let mut mount = Mount::new(disk.blocks());
        let mut buffer = [0; BLOCK];
        while let Some(block) = mount.next() {
            disk.read(block, &mut buffer)?;
            mount.supply(&buffer)?;
        }
        let volume = mount.finish()?;
        Ok(Mounted { disk, volume })
    }

    /// Creates a file system on a disk.
    ///
    /// # Errors
    /// [`Error::NoSpace`], errors of the disk.
    pub fn format(disk: D) -> Result<Mounted<D>, Error> {
        let volume = Volume::format(disk.blocks())?;
        let mut mounted = Mounted { disk, volume };
        mounted.sync()?;
        Ok(mounted)
    }

    /// Writes all changes to the disk.
    ///
    /// # Errors
    /// Errors of the disk, after which the volume has failed.
    pub fn sync(&mut self) -> Result<(), Error> {
        if !self.volume.is_changed() {
            return Ok(());
        }
        self.volume.begin_commit();
        let mut buffer = [0; BLOCK];
        loop {
            let done = match self.volume.commit(&mut buffer)? {
                Step::Write(block) => self.disk.write(block, &buffer),
                Step::Flush => self.disk.flush(),
                Step::Done => break,
            };
            if let Err(error) = done {
                self.volume.fail();
                return Err(error);
            }
        }
        self.volume.is_durable(self.volume.version()).map(|_| ())
    }

    /// Opens a file.
    ///
    /// # Errors
    /// Errors of [`Volume::open`], and of the disk.
    pub fn open(&mut self, name: &[u8], create: bool) -> Result<File, Error> {
        loop {
            if let Some(file) = self.volume.open(name, create)? {
                return Ok(file);
            }
            self.sync()?;
        }
    }

    /// Removes all bytes of a file.
    ///
    /// # Errors
    /// Errors of [`Volume::truncate`], and of the disk.
    pub fn truncate(&mut self, file: &File) -> Result<(), Error> {
        while !self.volume.truncate(file)? {
            self.sync()?;
        }
        Ok(())
    }

    /// Removes a name.
    ///
    /// # Errors
    /// Errors of [`Volume::unlink`], and of the disk.
    pub fn unlink(&mut self, name: &[u8]) -> Result<(), Error> {
        while !self.volume.unlink(name)? {
            self.sync()?;
        }
        Ok(())
    }

    /// Writes all bytes.
    ///
    /// # Errors
    /// Errors of [`Volume::write`], and of the disk.
    pub fn write(&mut self, file: &File, mut offset: u64, mut bytes: &[u8]) -> Result<(), Error> {
        while !bytes.is_empty() {
            let put = |to: &mut [u8]| {
                to.copy_from_slice(&bytes[..to.len()]);
                Ok::<(), Error>(())
            };
            match self.volume.write(file, offset, bytes.len(), put)? {
                Write::Done(count) => {
                    offset += count as u64;
                    bytes = &bytes[count..];
                }
                Write::Fetch(fetch) => self.supply(fetch)?,
                Write::Wait => self.sync()?,
            }
        }
        Ok(())
    }

    /// Reads a whole file.
    ///
    /// # Errors
    /// [`Error::Damaged`], errors of the disk.
    pub fn read_all(&mut self, file: &File) -> Result<Vec<u8>, Error> {
        let mut all = Vec::new();
        loop {
            let offset = all.len() as u64;
            let append = |bytes: &[u8]| {
                all.extend_from_slice(bytes);
                Ok::<(), Error>(())
            };
            match self.volume.read(file, offset, BLOCK, append)? {
                Read::Done(0) => return Ok(all),
                Read::Done(_) => {}
                Read::Fetch(fetch) => self.supply(fetch)?,
            }
        }
    }

    /// Writes a whole file, and replaces a file with the same name.
    ///
    /// # Errors
    /// Errors of [`Volume::open`], [`Volume::write`], and of the disk.
    pub fn put(&mut self, name: &[u8], bytes: &[u8]) -> Result<(), Error> {
        let file = self.open(name, true)?;
        let written = self
            .truncate(&file)
            .and_then(|()| self.write(&file, 0, bytes));
        self.volume.close(file);
        written
    }

    fn supply(&mut self, fetch: crate::Fetch) -> Result<(), Error> {
        let mut buffer = [0; BLOCK];
        self.disk.read(fetch.block(), &mut buffer)?;
        self.volume.supply(fetch, &buffer)
    }
}
