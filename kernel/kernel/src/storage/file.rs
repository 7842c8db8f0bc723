//! An open file of the disk: descriptors that were passed on or inherited share it, and its
//! position.

use alloc::sync::Arc;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use os_abi::{Error, number};
use os_files::{BLOCK, File, Read, Write};

use super::{STORAGE, fetch, told, until_committed, when_it_may};
use crate::process::Share;
use crate::process::share::{Resource, Taken};

/// KiB that it takes.
const KIB: usize = 1;

/// See the module.
pub(crate) struct Opened {
    /// The file; `None` once it is dropped.
    file: Option<File>,
    /// Changed under the lock of the storage only.
    position: AtomicU64,
    /// Memory taken of the share of the process that has opened the file.
    _taken: Taken,
}

/// An error while moving bytes: of the file system, or of the program's memory.
enum Fault {
    Files(os_files::Error),
    Memory(Error),
}

impl From<os_files::Error> for Fault {
    fn from(error: os_files::Error) -> Fault {
        Fault::Files(error)
    }
}

impl Fault {
    /// Returns the error that the program gets.
    fn told(self) -> Error {
        match self {
            Fault::Files(error) => told(error),
            Fault::Memory(error) => error,
        }
    }
}

impl Opened {
    /// Opens a file.
    ///
    /// # Errors
    /// [`Error::NoFile`], [`Error::NoSpace`], [`Error::BadArgument`], [`Error::OutOfMemory`],
    /// [`Error::DiskFailed`].
    pub(crate) async fn open(
        name: &[u8],
        flags: usize,
        share: &Arc<Share>,
    ) -> Result<Arc<Opened>, Error> {
        if flags & !(number::CREATE | number::TRUNCATE) != 0 {
            return Err(Error::BadArgument);
        }
        let taken = share.take(Resource::Memory, KIB)?;
        let create = flags & number::CREATE != 0;
        let file = when_it_may(|volume| volume.open(name, create)).await?;
        let opened = Arc::new(Opened {
            file: Some(file),
            position: AtomicU64::new(0),
            _taken: taken,
        });
        if flags & number::TRUNCATE != 0 {
            let file = opened.file()?;
            when_it_may(|volume| Ok(volume.truncate(file)?.then_some(()))).await?;
        }
        Ok(opened)
    }

    fn file(&self) -> Result<&File, Error> {
        self.file.as_ref().ok_or(Error::BadFile)
    }

    /// Sets the position, or leaves it; returns the file's length in bytes.
    ///
    /// # Errors
    /// [`Error::DiskFailed`].
    pub(crate) fn seek(&self, position: usize) -> Result<usize, Error> {
        let mut storage = STORAGE.lock();
        let size = storage.volume()?.size(self.file()?);
        if position != number::STAY {
            self.position.store(position as u64, Relaxed);
        }
        Ok(size as usize)
    }

    /// Reads bytes that are in memory, at most up to the end of a block. `None`: they are not.
    pub(crate) fn read(
        &self,
        len: usize,
        give: impl FnOnce(&[u8]) -> Result<(), Error>,
    ) -> Option<Result<usize, Error>> {
        let mut storage = STORAGE.lock();
        let try_read = || {
            let position = self.position.load(Relaxed);
            let read = storage.volume()?.read(self.file()?, position, len, give)?;
            if let Read::Done(count) = read {
                self.position.store(position + count as u64, Relaxed);
            }
            Ok(read)
        };
        match try_read() {
            Ok(Read::Done(count)) => Some(Ok(count)),
            Ok(Read::Fetch(_)) => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// Waits until there is something to read in memory.
    ///
    /// # Errors
    /// [`Error::DiskFailed`], [`Error::OutOfMemory`].
    pub(crate) async fn readable(&self) -> Result<(), Error> {
        let lacks = {
            let mut storage = STORAGE.lock();
            let position = self.position.load(Relaxed);
            storage.volume()?.lacks_to_read(self.file()?, position)
        };
        match lacks {
            Some(block) => fetch(block).await,
            None => Ok(()),
        }
    }

    /// Writes to memory, at most up to the end of a block; nothing if `all` do not fit there.
    /// `None`: the write has to wait.
    pub(crate) fn write(
        &self,
        len: usize,
        all: bool,
        put: impl FnOnce(&mut [u8]) -> Result<(), Error>,
    ) -> Option<Result<usize, Error>> {
        let mut storage = STORAGE.lock();
        let position = self.position.load(Relaxed);
        if all && len > BLOCK - (position % BLOCK as u64) as usize {
            return None;
        }
        let try_write = || {
            let put = |bytes: &mut [u8]| put(bytes).map_err(Fault::Memory);
            let written = storage.volume()?.write(self.file()?, position, len, put);
            let written = written.map_err(Fault::told)?;
            if let Write::Done(count) = written {
                self.position.store(position + count as u64, Relaxed);
            }
            Ok(written)
        };
        match try_write() {
            Ok(Write::Done(count)) => Some(Ok(count)),
            Ok(Write::Fetch(_) | Write::Wait) => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// Waits until something can be written.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::DiskFailed`], [`Error::OutOfMemory`].
    pub(crate) async fn writable(&self) -> Result<(), Error> {
        let (lacks, moment) = {
            let mut storage = STORAGE.lock();
            let position = self.position.load(Relaxed);
            let volume = storage.volume()?;
            let lacks = volume.lacks_to_write(self.file()?, position);
            (lacks.map_err(told)?, volume.moment())
        };
        match lacks {
            Some(Write::Fetch(block)) => fetch(block).await,
            Some(Write::Wait) => until_committed(moment).await,
            _ => Ok(()),
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let (Some(file), Some(volume)) = (self.file.take(), &mut STORAGE.lock().volume) {
            volume.close(file);
        }
    }
}
