//! File descriptors of a process.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use os_abi::Error;

use super::Share;
use super::share::{Charge, Resource};
use crate::console;
use crate::net::Socket;
use crate::pipe::End;
use crate::storage::OpenFile;

/// Maximum number of descriptors of a process: both ends of 4,096 pipes.
const MAX_FILES: usize = 8192;
/// Maximum number of files that a program passes to a child.
pub(crate) const MAX_PASSED: usize = 16;

#[derive(Clone)]
pub(crate) enum File {
    Console,
    Pipe(End),
    Socket(Arc<Socket>),
    Stored(Arc<OpenFile>),
}

impl File {
    /// Waits until bytes, the end or an error can be read.
    ///
    /// # Errors
    /// Errors of the disk.
    pub(crate) async fn readable(&self) -> Result<(), Error> {
        match self {
            File::Console => console::readable().await,
            File::Pipe(end) => end.readable().await,
            File::Socket(socket) => socket.readable().await,
            // In a box, so that the futures of other files, which are more frequent, stay small.
            File::Stored(file) => Box::pin(file.readable()).await?,
        }
        Ok(())
    }

    /// Waits until there is space to write, or an error.
    ///
    /// # Errors
    /// Errors of the disk.
    pub(crate) async fn writable(&self) -> Result<(), Error> {
        match self {
            File::Console => {}
            File::Pipe(end) => end.writable().await,
            File::Socket(socket) => socket.writable().await,
            File::Stored(file) => Box::pin(file.writable()).await?,
        }
        Ok(())
    }

    /// Takes the available bytes and returns their number, 0 at the end. Returns `None` if the
    /// caller must wait.
    pub(crate) fn try_read(&self, to: &mut [u8]) -> Option<Result<usize, Error>> {
        match self {
            File::Console => console::try_read(to).map(Ok),
            File::Pipe(end) => end.try_read(to),
            // Sockets and stored files are read and written in place: see `syscall/sockets.rs` and
            // `syscall/storage.rs`.
            File::Socket(_) | File::Stored(_) => Some(Err(Error::BadFile)),
        }
    }

    /// Stores all bytes. Returns `None` if they do not fit.
    pub(crate) fn try_write(&self, from: &[u8]) -> Option<Result<usize, Error>> {
        match self {
            File::Console => {
                console::write(from);
                Some(Ok(from.len()))
            }
            File::Pipe(end) => end.try_write(from),
            File::Socket(_) | File::Stored(_) => Some(Err(Error::BadFile)),
        }
    }

    pub(crate) fn socket(self) -> Result<Arc<Socket>, Error> {
        match self {
            File::Socket(socket) => Ok(socket),
            _ => Err(Error::BadFile),
        }
    }

    pub(crate) fn stored(self) -> Result<Arc<OpenFile>, Error> {
        match self {
            File::Stored(file) => Ok(file),
            _ => Err(Error::BadFile),
        }
    }

    /// Stores as many bytes as fit. Returns `None` if none fit.
    pub(crate) fn put(&self, from: &[u8]) -> Option<Result<usize, Error>> {
        match self {
            File::Console => self.try_write(from),
            File::Pipe(end) => end.put(from),
            File::Socket(_) | File::Stored(_) => Some(Err(Error::BadFile)),
        }
    }
}

/// Returns the maximum memory of a table of `slots` slots, in KiB. A vector that grows may allocate
/// twice the memory that it needs.
const fn kib(slots: usize) -> usize {
    (2 * slots * size_of::<Option<File>>()).div_ceil(1 << 10)
}

/// Descriptor table of a process: as long as its highest descriptor.
pub(crate) struct Files {
    slots: Vec<Option<File>>,
    /// Lower bound of the free slots: all slots below are in use.
    first_free: usize,
    charge: Option<Charge>,
    /// Maximum number of slots that the table has had.
    peak: usize,
}

impl Files {
    pub(crate) const fn new() -> Files {
        Files {
            slots: Vec::new(),
            first_free: 0,
            charge: None,
            peak: 0,
        }
    }

    /// Returns a table with the same files under the same descriptors.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub(crate) fn copy(&self, share: &Arc<Share>) -> Result<Files, Error> {
        let charge = share.charge(Resource::Memory, kib(self.slots.len()))?;
        let mut slots = Vec::new();
        let reserved = slots.try_reserve_exact(self.slots.len());
        reserved.map_err(|_| Error::OutOfMemory)?;
        slots.extend_from_slice(&self.slots);
        Ok(Files {
            slots,
            first_free: self.first_free,
            charge: Some(charge),
            peak: self.slots.len(),
        })
    }

    pub(crate) fn get(&self, descriptor: usize) -> Result<File, Error> {
        let file = self.slots.get(descriptor).and_then(Option::as_ref);
        file.cloned().ok_or(Error::BadFile)
    }

    /// Assigns the lowest free descriptors to all of the files, or to none. O(1) unless descriptors
    /// were freed.
    ///
    /// # Errors
    /// [`Error::TooMany`], [`Error::OutOfMemory`]; the files are dropped.
    pub(crate) fn add<const N: usize>(
        &mut self,
        share: &Arc<Share>,
        files: [File; N],
    ) -> Result<[usize; N], Error> {
        let mut descriptors = [0; N];
        let mut from = self.first_free.min(self.slots.len());
        for descriptor in &mut descriptors {
            let is_free = |slot: &Option<File>| slot.is_none();
            let offset = self.slots[from..].iter().position(is_free);
            *descriptor = offset.map_or(self.slots.len(), |offset| from + offset);
            if *descriptor >= MAX_FILES {
                return Err(Error::TooMany);
            }
            if offset.is_none() {
                self.charge_slot(share)?;
                self.slots.try_reserve(1).map_err(|_| Error::OutOfMemory)?;
                self.slots.push(None);
            }
            from = *descriptor + 1;
        }
        for (descriptor, file) in descriptors.iter().zip(files) {
            self.slots[*descriptor] = Some(file);
        }
        self.first_free = from;
        Ok(descriptors)
    }

    /// Charges the memory of another slot to the share. The charge is released only with the whole
    /// table.
    fn charge_slot(&mut self, share: &Arc<Share>) -> Result<(), Error> {
        let more = kib(self.slots.len() + 1) - kib(self.slots.len());
        match &self.charge {
            _ if self.slots.len() < self.peak => {}
            Some(charge) => charge.grow(more)?,
            None => self.charge = Some(share.charge(Resource::Memory, more)?),
        }
        self.peak = self.peak.max(self.slots.len() + 1);
        Ok(())
    }

    /// Frees a descriptor. The caller drops the file after it has released the lock.
    ///
    /// # Errors
    /// [`Error::BadFile`].
    pub(crate) fn remove(&mut self, descriptor: usize) -> Result<File, Error> {
        let slot = self.slots.get_mut(descriptor).ok_or(Error::BadFile)?;
        let file = slot.take().ok_or(Error::BadFile)?;
        self.first_free = self.first_free.min(descriptor);
        while self.slots.last().is_some_and(Option::is_none) {
            self.slots.pop();
        }
        if self.slots.len() < self.slots.capacity() / 4 {
            self.slots.shrink_to(self.slots.len() * 2);
        }
        Ok(file)
    }
}
