//! The file descriptors of a process.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use os_abi::Error;

use super::Share;
use super::share::{Resource, Taken};
use crate::console;
use crate::net::Socket;
use crate::pipe::End;
use crate::storage::Opened;

/// The most descriptors of a process: both ends of 4,096 pipes.
const MAX_FILES: usize = 8192;
/// The most that a new process gets.
pub(crate) const MAX_PASSED: usize = 16;

/// Object that a descriptor stands for.
#[derive(Clone)]
pub(crate) enum File {
    /// The console.
    Console,
    /// An end of a pipe.
    Pipe(End),
    /// A socket.
    Socket(Arc<Socket>),
    /// A file of the disk.
    Stored(Arc<Opened>),
}

impl File {
    /// Waits until there is something to take, or will never be.
    ///
    /// # Errors
    /// Errors of the disk.
    pub(crate) async fn readable(&self) -> Result<(), Error> {
        match self {
            File::Console => console::readable().await,
            File::Pipe(end) => end.readable().await,
            File::Socket(socket) => socket.readable().await,
            // In a box, so that calls of other files, which are many, stay small.
            File::Stored(file) => Box::pin(file.readable()).await?,
        }
        Ok(())
    }

    /// Waits until there is room, or no reader any more.
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

    /// Takes the bytes that are there; 0 at the end. `None`: nothing yet.
    pub(crate) fn try_read(&self, to: &mut [u8]) -> Option<Result<usize, Error>> {
        match self {
            File::Console => console::try_read(to).map(Ok),
            File::Pipe(end) => end.try_read(to),
            // In place: see `syscall/sockets.rs` and `syscall/storage.rs`.
            File::Socket(_) | File::Stored(_) => Some(Err(Error::BadFile)),
        }
    }

    /// Stores all the bytes if they fit, or returns an error. `None`: they do not fit.
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

    /// Returns the socket.
    ///
    /// # Errors
    /// [`Error::BadFile`]: it is none.
    pub(crate) fn socket(self) -> Result<Arc<Socket>, Error> {
        match self {
            File::Socket(socket) => Ok(socket),
            _ => Err(Error::BadFile),
        }
    }

    /// Returns the file of the disk.
    ///
    /// # Errors
    /// [`Error::BadFile`]: it is none.
    pub(crate) fn stored(self) -> Result<Arc<Opened>, Error> {
        match self {
            File::Stored(file) => Ok(file),
            _ => Err(Error::BadFile),
        }
    }

    /// Stores the bytes that fit, or returns an error. `None`: nothing fits.
    pub(crate) fn put(&self, from: &[u8]) -> Option<Result<usize, Error>> {
        match self {
            File::Console => self.try_write(from),
            File::Pipe(end) => end.put(from),
            File::Socket(_) | File::Stored(_) => Some(Err(Error::BadFile)),
        }
    }
}

/// Returns the KiB that a table of `places` places takes at most.
const fn kib(places: usize) -> usize {
    (2 * places * size_of::<Option<File>>()).div_ceil(1 << 10)
}

/// The table of a process: as long as its highest descriptor.
pub(crate) struct Files {
    places: Vec<Option<File>>,
    /// Below this all are taken.
    lowest: usize,
    /// Memory that the table takes of a share.
    taken: Option<Taken>,
    /// The most places it has had.
    most: usize,
}

impl Files {
    /// Creates a table without files.
    pub(crate) const fn new() -> Files {
        Files {
            places: Vec::new(),
            lowest: 0,
            taken: None,
            most: 0,
        }
    }

    /// Returns a table of the same files under the same descriptors.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub(crate) fn copy(&self, share: &Arc<Share>) -> Result<Files, Error> {
        let taken = share.take(Resource::Memory, kib(self.places.len()))?;
        let mut places = Vec::new();
        let reserved = places.try_reserve_exact(self.places.len());
        reserved.map_err(|_| Error::OutOfMemory)?;
        places.extend_from_slice(&self.places);
        Ok(Files {
            places,
            lowest: self.lowest,
            taken: Some(taken),
            most: self.places.len(),
        })
    }

    /// Returns the file of a descriptor.
    ///
    /// # Errors
    /// [`Error::BadFile`].
    pub(crate) fn get(&self, descriptor: usize) -> Result<File, Error> {
        let file = self.places.get(descriptor).and_then(Option::as_ref);
        file.cloned().ok_or(Error::BadFile)
    }

    /// Gives files descriptors, all or none: the lowest that are free. O(1) unless some
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
        let mut from = self.lowest.min(self.places.len());
        for descriptor in &mut descriptors {
            let free = |place: &Option<File>| place.is_none();
            let found = self.places[from..].iter().position(free);
            *descriptor = found.map_or(self.places.len(), |found| from + found);
            if *descriptor >= MAX_FILES {
                return Err(Error::TooMany);
            }
            if found.is_none() {
                self.pay(share)?;
                self.places.try_reserve(1).map_err(|_| Error::OutOfMemory)?;
                self.places.push(None);
            }
            from = *descriptor + 1;
        }
        for (descriptor, file) in descriptors.iter().zip(files) {
            self.places[*descriptor] = Some(file);
        }
        self.lowest = from;
        Ok(descriptors)
    }

    /// Takes the memory for another place from the share. Memory is given back only for all places
    /// together.
    fn pay(&mut self, share: &Arc<Share>) -> Result<(), Error> {
        let more = kib(self.places.len() + 1) - kib(self.places.len());
        match &self.taken {
            _ if self.places.len() < self.most => {}
            Some(taken) => taken.more(more)?,
            None => self.taken = Some(share.take(Resource::Memory, more)?),
        }
        self.most = self.most.max(self.places.len() + 1);
        Ok(())
    }

    /// Frees a descriptor. The file is to be dropped after the lock is released.
    ///
    /// # Errors
    /// [`Error::BadFile`].
    pub(crate) fn remove(&mut self, descriptor: usize) -> Result<File, Error> {
        let place = self.places.get_mut(descriptor).ok_or(Error::BadFile)?;
        let file = place.take().ok_or(Error::BadFile)?;
        self.lowest = self.lowest.min(descriptor);
        while self.places.last().is_some_and(Option::is_none) {
            self.places.pop();
        }
        if self.places.len() < self.places.capacity() / 4 {
            self.places.shrink_to(self.places.len() * 2);
        }
        Ok(file)
    }
}
