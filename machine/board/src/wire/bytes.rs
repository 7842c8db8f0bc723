//! Reads and writes the bytes of messages, which are little-endian. All accesses are within bounds,
//! and nothing is allocated.

use super::lists::{Role, THREAD_LEN, Thread, Threads};
use super::{MAGIC, THREADS, WireError};
use crate::layout::VERSION;

pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, bytes: usize) -> Result<&'a [u8], WireError> {
        let (front, rest) = self.0.split_at_checked(bytes).ok_or(WireError::Body)?;
        self.0 = rest;
        Ok(front)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (front, rest) = self.0.split_first_chunk().ok_or(WireError::Body)?;
        self.0 = rest;
        Ok(*front)
    }

    pub(super) fn u16(&mut self) -> Result<u16, WireError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, WireError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, WireError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(super) fn threads(&mut self, count: usize, vcpus: usize) -> Result<Threads<'a>, WireError> {
        if count > THREADS {
            return Err(WireError::Body);
        }
        let threads = Threads(self.take(count * THREAD_LEN)?);
        let is_valid = |thread: Thread| thread.tid > 0 && usize::from(thread.vcpu) < vcpus;
        if threads.iter().filter(|&thread| is_valid(thread)).count() == count {
            Ok(threads)
        } else {
            Err(WireError::Body)
        }
    }

    pub(super) fn end(&self) -> Result<(), WireError> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(WireError::Body)
        }
    }

    /// Checks magic and version, and returns the kind.
    pub(super) fn header(&mut self) -> Result<u16, WireError> {
        let magic = self.u32().map_err(|_| WireError::Magic)?;
        if magic != MAGIC {
            return Err(WireError::Magic);
        }
        match self.u16()? {
            VERSION => self.u16(),
            other => Err(WireError::Version(other)),
        }
    }
}

/// A writer that fills a buffer from its front. Bytes beyond the end of the buffer are dropped, but
/// the limits of the encoders keep every message within it.
pub(super) struct Writer<'a> {
    buffer: &'a mut [u8],
    /// Number of bytes written.
    pub(super) len: usize,
}

impl<'a> Writer<'a> {
    pub(super) fn new(buffer: &'a mut [u8], kind: u16) -> Writer<'a> {
        let mut writer = Writer { buffer, len: 0 };
        writer.put(&MAGIC.to_le_bytes());
        writer.put(&VERSION.to_le_bytes());
        writer.put(&kind.to_le_bytes());
        writer
    }

    pub(super) fn put(&mut self, bytes: &[u8]) {
        if let Some(target) = self.buffer.get_mut(self.len..self.len + bytes.len()) {
            target.copy_from_slice(bytes);
            self.len += bytes.len();
        }
    }

    pub(super) fn thread(&mut self, thread: &Thread) {
        self.put(&thread.tid.to_le_bytes());
        self.put(&thread.vcpu.to_le_bytes());
        let role: u16 = match thread.role {
            Role::Worker => 0,
            Role::Dispatcher => 1,
        };
        self.put(&role.to_le_bytes());
    }
}
