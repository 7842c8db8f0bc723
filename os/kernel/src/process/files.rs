//! The file descriptors of a process.

use os_abi::Error;

use crate::console;
use crate::pipe::End;

/// The most descriptors of a process.
pub(crate) const MAX_FILES: usize = 16;

/// What a descriptor stands for.
#[derive(Clone)]
pub(crate) enum File {
    /// The console.
    Console,
    /// One end of a pipe.
    Pipe(End),
}

impl File {
    /// Waits for bytes and takes what there is; 0 at the end.
    ///
    /// # Errors
    /// [`Error::BadFile`]: not for reading.
    pub(crate) async fn read(&self, to: &mut [u8]) -> Result<usize, Error> {
        match self {
            File::Console => Ok(console::read(to).await),
            File::Pipe(end) => end.read(to).await,
        }
    }

    /// Takes what there is, if anything is or will ever be.
    pub(crate) fn try_read(&self, to: &mut [u8]) -> Option<Result<usize, Error>> {
        match self {
            File::Console => console::try_read(to).map(Ok),
            File::Pipe(end) => end.try_read(to),
        }
    }

    /// Puts in what there is room for, perhaps nothing.
    ///
    /// # Errors
    /// As [`File::write`].
    pub(crate) fn try_write(&self, from: &[u8]) -> Result<usize, Error> {
        match self {
            File::Console => {
                console::write(from);
                Ok(from.len())
            }
            File::Pipe(end) => end.try_write(from),
        }
    }

    /// Waits for room and puts in what fits.
    ///
    /// # Errors
    /// [`Error::BadFile`]: not for writing; [`Error::BrokenPipe`].
    pub(crate) async fn write(&self, from: &[u8]) -> Result<usize, Error> {
        match self {
            File::Console => {
                console::write(from);
                Ok(from.len())
            }
            File::Pipe(end) => end.write(from).await,
        }
    }
}

/// The table of a process.
#[derive(Clone)]
pub(crate) struct Files([Option<File>; MAX_FILES]);

impl Files {
    /// No files.
    pub(crate) const fn new() -> Files {
        Files([const { None }; MAX_FILES])
    }

    /// The file of a descriptor.
    ///
    /// # Errors
    /// [`Error::BadFile`].
    pub(crate) fn get(&self, descriptor: usize) -> Result<File, Error> {
        let file = self.0.get(descriptor).and_then(Option::as_ref);
        file.cloned().ok_or(Error::BadFile)
    }

    /// Gives files descriptors, all or none: the lowest that are free.
    ///
    /// # Errors
    /// [`Error::TooMany`]; the files are dropped.
    pub(crate) fn add<const N: usize>(&mut self, files: [File; N]) -> Result<[usize; N], Error> {
        if self.0.iter().filter(|place| place.is_none()).count() < N {
            return Err(Error::TooMany);
        }
        Ok(files.map(|file| {
            let free = self.0.iter().position(Option::is_none);
            let descriptor = free.expect("counted just now");
            self.0[descriptor] = Some(file);
            descriptor
        }))
    }

    /// Frees a descriptor. The file is to be dropped after the lock is released.
    ///
    /// # Errors
    /// [`Error::BadFile`].
    pub(crate) fn remove(&mut self, descriptor: usize) -> Result<File, Error> {
        let place = self.0.get_mut(descriptor).ok_or(Error::BadFile)?;
        place.take().ok_or(Error::BadFile)
    }
}
