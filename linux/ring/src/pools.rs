//! The receive-buffer pools of a ring, one for each level that receives. Only the thread that owns
//! the ring may use them.
//!
//! A pool is made when the first stream of its level is armed. Levels have separate pools, so that
//! data that less urgent coroutines have not read yet cannot use up the buffers of more urgent
//! ones.

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
    /// Creates an empty set. With `entries` 0 the set stays empty.
    pub(crate) fn new(entries: u16, size: u32) -> Self {
        Self {
            entries,
            size,
            pools: Box::new([const { OnceCell::new() }; LEVELS]),
        }
    }

    #[inline]
    pub(crate) fn get(&self, level: u8) -> Option<&Pool> {
        self.pools[usize::from(level) % LEVELS].get()
    }

    pub(crate) fn buffer_size(&self) -> usize {
        self.size as usize
    }

    /// Makes the pool of a level unless it exists.
    ///
    /// # Errors
    /// EOPNOTSUPP if the ring is configured without buffers, otherwise the errno of mapping or
    /// registering the buffers.
    pub(crate) fn provide(&self, level: u8, backend: &Backend) -> io::Result<()> {
        if self.entries == 0 {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        let cell = &self.pools[usize::from(level) % LEVELS];
        if cell.get().is_none() {
            let pool = Pool::new(self.entries, self.size)?;
            // SAFETY: the memory stays valid until it is unregistered or the backend is closed,
            // because the pool lives as long as the driver, which does either first.
            unsafe { backend.register_buffers(pool.address(), self.entries, group(level))? };
            let result = cell.set(pool);
            debug_assert!(result.is_ok(), "one thread makes the pools");
        }
        Ok(())
    }

    pub(crate) fn withdraw(&self, backend: &Backend) {
        for (level, pool) in self.pools.iter().enumerate() {
            if pool.get().is_some() {
                backend.unregister_buffers(level as u16);
            }
        }
    }
}

pub(crate) fn group(level: u8) -> u16 {
    u16::from(level) % LEVELS as u16
}
