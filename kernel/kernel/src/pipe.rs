//! Pipes: a ring of [`CAPACITY`] bytes between writers and readers.
//!
//! Writers wait while the pipe is full, readers while it is empty. After the last writer has closed
//! its end, readers see the end of the stream; after the last reader has closed its end, writers
//! get an error.

use alloc::sync::Arc;

use os_abi::Error;

use crate::arch::lock::IrqLock;
use crate::memory;
use crate::process::Share;
use crate::process::share::{Charge, Resource};
use crate::waiters::{Awaited, Waiters, wait_until};

/// Size of a pipe's ring in bytes.
pub(crate) const CAPACITY: usize = 512;

/// Memory that is charged for a pipe, in KiB.
const CHARGED_KIB: usize = 1;

struct Ring {
    bytes: [u8; CAPACITY],
    /// Number of bytes that have been written since the pipe was created.
    written: usize,
    /// Number of bytes that have been read since the pipe was created.
    read: usize,
    /// Number of reading ends.
    readers: usize,
    /// Number of writing ends.
    writers: usize,
    waiters: Waiters,
    /// Charge to the share of the process that created the pipe.
    _charge: Charge,
}

impl Awaited for Ring {
    fn waiters(&mut self) -> &mut Waiters {
        &mut self.waiters
    }
}

impl Ring {
    /// Takes the available bytes and returns their number, 0 at the end of the stream; `None` if
    /// the caller must wait.
    fn take(&mut self, to: &mut [u8]) -> Option<usize> {
        let count = to.len().min(self.written - self.read);
        for byte in &mut to[..count] {
            *byte = self.bytes[self.read % CAPACITY];
            self.read += 1;
        }
        (count > 0 || to.is_empty() || self.writers == 0).then_some(count)
    }

    /// Stores as many bytes as fit, or returns an error if there is no reader; `None` if the caller
    /// must wait.
    fn put(&mut self, from: &[u8]) -> Option<Result<usize, Error>> {
        if self.readers == 0 {
            return Some(Err(Error::BrokenPipe));
        }
        let count = from.len().min(CAPACITY - (self.written - self.read));
        for byte in &from[..count] {
            self.bytes[self.written % CAPACITY] = *byte;
            self.written += 1;
        }
        (count > 0).then_some(Ok(count))
    }
}

/// An end of a pipe, for reading or for writing.
pub(crate) struct End {
    ring: Arc<IrqLock<Ring>>,
    is_writer: bool,
}

/// Creates a pipe; returns its reading end and its writing end.
///
/// # Errors
/// [`Error::OutOfMemory`] if memory is short, or the error of [`Share::charge`].
pub(crate) fn new(share: &Arc<Share>) -> Result<(End, End), Error> {
    if memory::is_short() {
        return Err(Error::OutOfMemory);
    }
    let charge = share.charge(Resource::Memory, CHARGED_KIB)?;
    let ring = Arc::new(IrqLock::new(Ring {
        bytes: [0; CAPACITY],
        written: 0,
        read: 0,
        readers: 1,
        writers: 1,
        waiters: Waiters::new(),
        _charge: charge,
    }));
    let reader = End {
        ring: ring.clone(),
        is_writer: false,
    };
    Ok((
        reader,
        End {
            ring,
            is_writer: true,
        },
    ))
}

impl End {
    /// Waits for bytes, or for the end of the stream.
    pub(crate) async fn readable(&self) {
        let condition =
            |ring: &mut Ring| (ring.written != ring.read || ring.writers == 0).then_some(());
        wait_until(&self.ring, condition).await;
    }

    /// Waits until there is space, or no reader is left.
    pub(crate) async fn writable(&self) {
        let condition = |ring: &mut Ring| {
            (ring.written - ring.read < CAPACITY || ring.readers == 0).then_some(())
        };
        wait_until(&self.ring, condition).await;
    }

    /// Takes the available bytes and returns their number, 0 at the end of the stream. Returns
    /// `None` if the caller must wait.
    pub(crate) fn try_read(&self, to: &mut [u8]) -> Option<Result<usize, Error>> {
        if self.is_writer {
            return Some(Err(Error::BadFile));
        }
        let mut ring = self.ring.lock();
        let count = ring.take(to)?;
        let waiters = ring.waiters.take();
        drop(ring);
        waiters.wake();
        Some(Ok(count))
    }

    /// Stores all bytes, or returns an error if there is no reader. Returns `None` if the bytes do
    /// not fit.
    pub(crate) fn try_write(&self, from: &[u8]) -> Option<Result<usize, Error>> {
        if !self.is_writer {
            return Some(Err(Error::BadFile));
        }
        let mut ring = self.ring.lock();
        if ring.readers != 0 && from.len() > CAPACITY - (ring.written - ring.read) {
            return None;
        }
        let result = ring.put(from).unwrap_or(Ok(0));
        let waiters = ring.waiters.take();
        drop(ring);
        waiters.wake();
        Some(result)
    }

    /// Stores as many bytes as fit, or returns an error if there is no reader. Returns `None` if no
    /// byte fits.
    pub(crate) fn put(&self, from: &[u8]) -> Option<Result<usize, Error>> {
        if !self.is_writer {
            return Some(Err(Error::BadFile));
        }
        let mut ring = self.ring.lock();
        let result = ring.put(from)?;
        let waiters = ring.waiters.take();
        drop(ring);
        waiters.wake();
        Some(result)
    }
}

impl Clone for End {
    fn clone(&self) -> End {
        let mut ring = self.ring.lock();
        if self.is_writer {
            ring.writers += 1
        } else {
            ring.readers += 1
        }
        End {
            ring: self.ring.clone(),
            is_writer: self.is_writer,
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let mut ring = self.ring.lock();
        let ends = if self.is_writer {
            &mut ring.writers
        } else {
            &mut ring.readers
        };
        *ends -= 1;
        // Only the last end of a side changes the state for the other side.
        if *ends == 0 {
            let waiters = ring.waiters.take();
            drop(ring);
            waiters.wake();
        }
    }
}
