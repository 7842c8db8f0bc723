//! A pool of receive buffers, and the buffer ring through which the kernel takes them. Only the
//! thread that owns the ring may use a pool, but any thread may read a buffer through its
//! [`RecvBuf`](crate::RecvBuf).
//!
//! All buffers of a pool belong to the kernel at first. Each completion of a receive takes a buffer
//! out of the pool. [`publish`](Pool::publish) gives it back with three stores and a release of the
//! tail, without a system call. `available` counts the kernel's buffers. The count is exact once
//! all completions have been read. Until then it is too high, which costs at most one futile
//! attempt to receive.

use std::cell::Cell;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU16, Ordering};

/// An entry of the buffer ring in the kernel's layout. The last field of entry 0 is the tail of the
/// ring.
#[repr(C)]
pub(crate) struct BufferEntry {
    pub(crate) address: u64,
    pub(crate) length: u32,
    pub(crate) id: u16,
    pub(crate) tail: AtomicU16,
}

/// A private anonymous mapping, page-aligned and zeroed, that a child of `fork` does not inherit.
struct Mapping {
    base: NonNull<u8>,
    length: usize,
}

impl Mapping {
    fn new(length: usize) -> io::Result<Self> {
        // SAFETY: the kernel chooses the address, so no other memory is affected.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapping = NonNull::new(base.cast())
            .map(|base| Self { base, length })
            .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        // SAFETY: the range is the mapping that was just made, so no other memory is affected.
        match unsafe { libc::madvise(base, length, libc::MADV_DONTFORK) } {
            0 => Ok(mapping),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` mapped this range, and no pointer into it is used any more.
        unsafe {
            libc::munmap(self.base.as_ptr().cast(), self.length);
        }
    }
}

/// Returns the distance in bytes from one buffer to the next, which is a cache line more than the
/// size of a buffer. Without the extra line, the first bytes of all buffers that consist of whole
/// pages would share a few sets of each cache.
#[inline]
fn stride(size: u32) -> usize {
    size as usize + 64
}

pub(crate) struct Pool {
    ring: Mapping,
    memory: Mapping,
    entries: u16,
    size: u32,
    tail: Cell<u16>,
    available: Cell<u32>,
}

impl Pool {
    pub(crate) fn new(entries: u16, size: u32) -> io::Result<Self> {
        let pool = Self {
            ring: Mapping::new(usize::from(entries) * size_of::<BufferEntry>())?,
            memory: Mapping::new(usize::from(entries) * stride(size))?,
            entries,
            size,
            tail: Cell::new(0),
            available: Cell::new(0),
        };
        for id in 0..entries {
            pool.publish(id);
        }
        Ok(pool)
    }

    pub(crate) fn address(&self) -> u64 {
        self.ring.base.as_ptr().expose_provenance() as u64
    }

    /// Returns the number of the kernel's buffers, according to the completions read so far.
    #[inline]
    pub(crate) fn available(&self) -> u32 {
        self.available.get()
    }

    #[inline]
    pub(crate) fn count_taken(&self) {
        self.available.set(self.available.get().saturating_sub(1));
    }

    #[inline]
    pub(crate) fn buffer(&self, id: u16) -> NonNull<u8> {
        let id = usize::from(id) & (usize::from(self.entries) - 1);
        // SAFETY: the sum stays within the mapping, because `id` is less than `entries`.
        unsafe { self.memory.base.add(id * stride(self.size)) }
    }

    #[inline]
    pub(crate) fn publish(&self, id: u16) {
        let ring = self.ring.base.cast::<BufferEntry>().as_ptr();
        let tail = self.tail.get();
        let index = usize::from(tail & (self.entries - 1));
        // SAFETY: the entry is within the mapping. The kernel does not read entries from the tail
        // on, and there are as many entries as buffers, so this entry is free. The fields are
        // written one by one, because the last field of entry 0 is the tail.
        unsafe {
            let entry = ring.add(index);
            (&raw mut (*entry).address).write(self.buffer(id).as_ptr().expose_provenance() as u64);
            (&raw mut (*entry).length).write(self.size);
            (&raw mut (*entry).id).write(id);
            (*ring).tail.store(tail.wrapping_add(1), Ordering::Release);
        }
        self.tail.set(tail.wrapping_add(1));
        self.available.set(self.available.get() + 1);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_laid_out_as_the_kernel_expects() {
        assert_eq!(size_of::<BufferEntry>(), 16);
        assert_eq!(std::mem::offset_of!(BufferEntry, tail), 14);
    }

    #[test]
    fn buffers_are_counted_and_distinct() {
        let pool = Pool::new(8, 100).unwrap();
        assert_eq!(pool.available(), 8);
        pool.count_taken();
        assert_eq!(pool.available(), 7);
        pool.publish(3);
        assert_eq!(pool.available(), 8);
        let gap = pool.buffer(4).as_ptr().addr() - pool.buffer(3).as_ptr().addr();
        assert_eq!(gap, stride(100));
    }
}
