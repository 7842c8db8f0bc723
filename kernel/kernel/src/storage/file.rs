//! An open file of the disk. Descriptors that were passed on or inherited share it, with its
//! position.

use alloc::sync::Arc;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use os_abi::{Error, number};
use os_files::{BLOCK, File, Read, Write};

use super::{STORAGE, abi_error, fetch, retry_after_commits, wait_until_committed};
use crate::process::Share;
use crate::process::share::{Charge, Resource};

/// Memory of an open file in KiB.
const KIB: usize = 1;

pub(crate) struct OpenFile {
    /// `None` once the file is dropped.
    file: Option<File>,
    /// Changed only under the lock of the storage.
    position: AtomicU64,
    _charge: Charge,
}

/// Error of a transfer: of the file system, or of the program's memory.
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
    fn into_abi(self) -> Error {
        match self {
            Fault::Files(error) => abi_error(error),
            Fault::Memory(error) => error,
        }
    }
}

impl OpenFile {
    /// Opens a file.
    ///
    /// # Errors
    /// [`Error::NoFile`], [`Error::NoSpace`], [`Error::BadArgument`], [`Error::OutOfMemory`],
    /// [`Error::DiskFailed`].
    pub(crate) async fn open(
        name: &[u8],
        flags: usize,
        share: &Arc<Share>,
    ) -> Result<Arc<OpenFile>, Error> {
        if flags & !(number::CREATE | number::TRUNCATE) != 0 {
            return Err(Error::BadArgument);
        }
        let charge = share.charge(Resource::Memory, KIB)?;
        let create = flags & number::CREATE != 0;
        let file = retry_after_commits(|volume| volume.open(name, create)).await?;
        let opened = Arc::new(OpenFile {
            file: Some(file),
            position: AtomicU64::new(0),
            _charge: charge,
        });
        if flags & number::TRUNCATE != 0 {
            let file = opened.file()?;
            retry_after_commits(|volume| Ok(volume.truncate(file)?.then_some(()))).await?;
        }
        Ok(opened)
    }

    fn file(&self) -> Result<&File, Error> {
        self.file.as_ref().ok_or(Error::BadFile)
    }

    /// Sets the position, or keeps it; returns the length of the file in bytes.
    ///
    /// # Errors
    /// [`Error::DiskFailed`].
    pub(crate) fn seek(&self, position: usize) -> Result<usize, Error> {
        let mut storage = STORAGE.lock();
        let size = storage.volume()?.size(self.file()?);
        if position != number::KEEP_POSITION {
            self.position.store(position as u64, Relaxed);
        }
        Ok(size as usize)
    }

    /// Reads bytes that are in memory, at most up to the end of a block. Returns `None` if they are
    /// not in memory.
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

    /// Waits until the next bytes are in memory.
    ///
    /// # Errors
    /// [`Error::DiskFailed`], [`Error::OutOfMemory`].
    pub(crate) async fn readable(&self) -> Result<(), Error> {
        let missing = {
            let mut storage = STORAGE.lock();
            let position = self.position.load(Relaxed);
            storage.volume()?.missing_for_read(self.file()?, position)
        };
        match missing {
            Some(block) => fetch(block).await,
            None => Ok(()),
        }
    }

    /// Writes to memory, at most up to the end of a block; with `all`, all bytes or none. Returns
    /// `None` if the write must wait.
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
            let written = written.map_err(Fault::into_abi)?;
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

    /// Waits until a write can make progress.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::DiskFailed`], [`Error::OutOfMemory`].
    pub(crate) async fn writable(&self) -> Result<(), Error> {
        let (missing, version) = {
            let mut storage = STORAGE.lock();
            let position = self.position.load(Relaxed);
            let volume = storage.volume()?;
            let missing = volume.missing_for_write(self.file()?, position);
            (missing.map_err(abi_error)?, volume.version())
        };
        match missing {
            Some(Write::Fetch(block)) => fetch(block).await,
            Some(Write::Wait) => wait_until_committed(version).await,
            _ => Ok(()),
        }
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if let (Some(file), Some(volume)) = (self.file.take(), &mut STORAGE.lock().volume) {
            volume.close(file);
        }
    }
}
