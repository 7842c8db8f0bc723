//! The pools of receive buffers of a ring, one for each level that receives. Owner only.
//!
//! A pool is made when the first stream of its level is armed. Data that waits for coroutines which more urgent ones keep from the CPU
//! does not take the buffers of the more urgent.

use crate::backend::Backend;
use crate::backlog::LEVELS;
use crate::pool::Pool;
use std::cell::OnceCell;
use std::io;

/// The pools of a ring, by level; the level is the kernel's buffer group.
pub(crate) struct Pools {
    entries: u16,
    size: u32,
    pools: Box<[OnceCell<Pool>; LEVELS]>,
}

impl Pools {
    /// None yet; with `entries` 0 there never is one.
    pub(crate) fn new(entries: u16, size: u32) -> Self {
        Self {
            entries,
            size,
            pools: Box::new([const { OnceCell::new() }; LEVELS]),
        }
    }

    /// The pool of a level that has one.
    #[inline]
    pub(crate) fn get(&self, level: u8) -> Option<&Pool> {
        self.pools[usize::from(level) % LEVELS].get()
    }

    /// Bytes of a buffer.
    pub(crate) fn buffer_size(&self) -> usize {
        self.size as usize
    }

    /// Makes the pool of a level unless it is there.
    ///
    /// # Errors
    /// EOPNOTSUPP if the ring is to have no buffers; what mapping or registering them answered.
    pub(crate) fn provide(&self, level: u8, backend: &Backend) -> io::Result<()> {
        if self.entries == 0 {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        let place = &self.pools[usize::from(level) % LEVELS];
        if place.get().is_none() {
            let pool = Pool::new(self.entries, self.size)?;
            // SAFETY: the pool lives as long as the driver, which unregisters it before it goes.
            unsafe { backend.register_buffers(pool.address(), self.entries, group(level))? };
            let made = place.set(pool);
            debug_assert!(made.is_ok(), "one thread makes the pools");
        }
        Ok(())
    }

    /// Takes all pools from the kernel.
    pub(crate) fn withdraw(&self, backend: &Backend) {
        for (level, pool) in self.pools.iter().enumerate() {
            if pool.get().is_some() {
                backend.unregister_buffers(level as u16);
            }
        }
    }
}

/// The kernel's buffer group of a level.
pub(crate) fn group(level: u8) -> u16 {
    u16::from(level) % LEVELS as u16
}
