//! Implements communicators. A communicator is a group of ranks with its own messages and
//! collectives.
//!
//! All ranks start the collectives of a communicator in the same order. Coroutines that run
//! concurrently without an order between them each need their own communicator ([`Comm::dup`]).

use std::ffi::c_int;
use std::fmt;
use std::sync::Arc;

use mpi_sys as sys;

use crate::error::{Error, Result, check};
use crate::job::Job;
use crate::peers::Peers;

/// A communicator. Clones refer to the same communicator, which is freed with the last clone; every
/// rank must drop all its clones.
#[derive(Clone)]
pub struct Comm {
    inner: Arc<Inner>,
}

struct Inner {
    job: Arc<Job>,
    handle: sys::MPI_Comm,
    rank: usize,
    /// World rank of each rank of the communicator.
    world: Arc<[u32]>,
    is_owned: bool,
}

// SAFETY: any thread may keep an MPI handle, which is only a name, and the handle is passed to MPI
// only under the lock.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Comm {
    /// Wraps a communicator, which is freed with the last clone if `is_owned`. The handle must
    /// be valid, and this thread must have the right to call MPI.
    pub(crate) fn adopt(job: &Arc<Job>, handle: sys::MPI_Comm, is_owned: bool) -> Result<Comm> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: the communicator is valid; the out-parameters are locals, and both arrays have
        // `size` items.
        let world = unsafe {
            check(sys::MPI_Comm_set_errhandler(
                handle,
                sys::RSMPI_ERRORS_RETURN,
            ))?;
            check(sys::MPI_Comm_rank(handle, &mut rank))?;
            check(sys::MPI_Comm_size(handle, &mut size))?;
            let (mut group, mut world_group) = (sys::RSMPI_GROUP_NULL, sys::RSMPI_GROUP_NULL);
            check(sys::MPI_Comm_group(handle, &mut group))?;
            check(sys::MPI_Comm_group(sys::RSMPI_COMM_WORLD, &mut world_group))?;
            let ranks: Vec<c_int> = (0..size).collect();
            let mut world = vec![0; ranks.len()];
            check(sys::MPI_Group_translate_ranks(
                group,
                size,
                ranks.as_ptr(),
                world_group,
                world.as_mut_ptr(),
            ))?;
            sys::MPI_Group_free(&mut group);
            sys::MPI_Group_free(&mut world_group);
            world
        };
        Ok(Comm {
            inner: Arc::new(Inner {
                job: job.clone(),
                handle,
                rank: rank as usize,
                world: world.into_iter().map(|rank| rank as u32).collect(),
                is_owned,
            }),
        })
    }

    /// Returns the number of this rank; ranks are counted from 0.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.inner.rank
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn size(&self) -> usize {
        self.inner.world.len()
    }

    pub(crate) fn job(&self) -> &Arc<Job> {
        &self.inner.job
    }

    pub(crate) fn handle(&self) -> sys::MPI_Comm {
        self.inner.handle
    }

    /// Returns the number of a rank for MPI.
    ///
    /// # Errors
    /// [`Error::Rank`] if the rank does not exist.
    pub(crate) fn checked_rank(&self, rank: usize) -> Result<c_int> {
        match c_int::try_from(rank) {
            Ok(number) if rank < self.size() => Ok(number),
            _ => Err(Error::Rank(rank, self.size())),
        }
    }

    pub(crate) fn peer(&self, rank: usize) -> Peers {
        self.inner
            .world
            .get(rank)
            .map_or(Peers::None, |world| Peers::One(*world))
    }

    pub(crate) fn all_peers(&self) -> Peers {
        Peers::All(self.inner.world.clone())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.is_owned {
            let handle = self.handle;
            self.job.with(|table| {
                table.free_comms.push(handle);
                table.request_look();
            });
        }
    }
}

impl fmt::Debug for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}", self.rank(), self.size())
    }
}
