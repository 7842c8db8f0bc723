//! Communicators: a group of ranks, and a space of tags of its own.
//!
//! All ranks start the collectives of a communicator in the same order. Coroutines that are not ordered among themselves
//! each take a [`Comm::dup`].

use std::ffi::c_int;
use std::fmt;
use std::sync::Arc;

use mpi_sys as sys;

use crate::error::{Result, check};
use crate::job::Job;
use crate::operation::{Operation, start};
use crate::table::{Completion, Kind};

/// A communicator. Clones name the same one; with the last, which every rank drops, it is freed.
#[derive(Clone)]
pub struct Comm {
    inner: Arc<Inner>,
}

struct Inner {
    job: Arc<Job>,
    handle: sys::MPI_Comm,
    rank: usize,
    /// The rank in the world of each of its ranks.
    world: Arc<[u32]>,
    owned: bool,
}

// SAFETY: MPI's handles are names, which any thread may hold; they are used under the lock only.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// Which ranks an operation may let go on.
#[derive(Clone, Debug)]
pub(crate) enum Peers {
    None,
    One(u32),
    All(Arc<[u32]>),
}

impl Comm {
    /// Takes a communicator over. The caller is allowed to call MPI, and the handle is valid.
    pub(crate) fn adopt(job: &Arc<Job>, handle: sys::MPI_Comm, owned: bool) -> Result<Comm> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: a valid communicator, out-parameters, and arrays of the length that is said.
        let world = unsafe {
            check(sys::MPI_Comm_set_errhandler(
                handle,
                sys::RSMPI_ERRORS_RETURN,
            ))?;
            check(sys::MPI_Comm_rank(handle, &mut rank))?;
            check(sys::MPI_Comm_size(handle, &mut size))?;
            let (mut here, mut all) = (sys::RSMPI_GROUP_NULL, sys::RSMPI_GROUP_NULL);
            check(sys::MPI_Comm_group(handle, &mut here))?;
            check(sys::MPI_Comm_group(sys::RSMPI_COMM_WORLD, &mut all))?;
            let ranks: Vec<c_int> = (0..size).collect();
            let mut world = vec![0; ranks.len()];
            check(sys::MPI_Group_translate_ranks(
                here,
                size,
                ranks.as_ptr(),
                all,
                world.as_mut_ptr(),
            ))?;
            sys::MPI_Group_free(&mut here);
            sys::MPI_Group_free(&mut all);
            world
        };
        Ok(Comm {
            inner: Arc::new(Inner {
                job: job.clone(),
                handle,
                rank: rank as usize,
                world: world.into_iter().map(|rank| rank as u32).collect(),
                owned,
            }),
        })
    }

    /// The number of this rank, from 0 on.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.inner.rank
    }

    /// How many ranks there are.
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

    pub(crate) fn one(&self, rank: usize) -> Peers {
        self.inner
            .world
            .get(rank)
            .map_or(Peers::None, |world| Peers::One(*world))
    }

    pub(crate) fn all(&self) -> Peers {
        Peers::All(self.inner.world.clone())
    }

    /// A communicator of the same ranks, whose messages and collectives meet none of this one's. Collective.
    pub fn dup(&self) -> Operation<Comm> {
        let mut made = Box::new(Made(self.handle()));
        let target = &raw mut made.0;
        // MPI fills the handle in at any time until the end: the box is in the table until then.
        let payload = Box::new(Stable(Box::into_raw(made)));
        start(
            self.job(),
            Kind::Completes,
            self.all(),
            payload,
            0,
            finish_dup,
            |_, request| {
                // SAFETY: `target` is in the box above.
                unsafe {
                    check(sys::MPI_Comm_idup(self.handle(), target, request))?;
                    Ok(sys::RSMPI_DATATYPE_NULL)
                }
            },
        )
    }

    /// The communicator of all ranks that give the same `colour`, in the order of their `key`s. `None` for no colour.
    /// Collective.
    ///
    /// MPI knows only a blocking form of it. So all ranks meet in a barrier first, which does not block; then each is in
    /// MPI for as long as the last one needs to be polled.
    ///
    /// # Errors
    /// MPI's.
    pub async fn split(&self, colour: Option<u32>, key: usize) -> Result<Option<Comm>> {
        // SAFETY: constants of the library.
        let (none, undefined) = unsafe { (sys::RSMPI_COMM_NULL, sys::RSMPI_UNDEFINED) };
        let colour = match colour {
            Some(colour) => crate::data::count(colour as usize)?,
            None => undefined,
        };
        let key = crate::data::count(key)?;
        self.barrier().await?;
        let made = self.job().call(&self.all(), |_| {
            let mut made = none;
            // SAFETY: a valid communicator and an out-parameter.
            check(unsafe { sys::MPI_Comm_split(self.handle(), colour, key, &mut made) })?;
            if made == none {
                return Ok(None);
            }
            Comm::adopt(self.job(), made, true).map(Some)
        })?;
        Ok(made)
    }
}

struct Made(sys::MPI_Comm);

/// The box that MPI writes a handle to. A raw pointer, because MPI's own pointer into it must stay valid.
struct Stable(*mut Made);

// SAFETY: the owner of a box.
unsafe impl Send for Stable {}

impl Drop for Stable {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw` above, and the operation has ended.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

fn finish_dup(job: &Arc<Job>, completion: Completion) -> Result<Comm> {
    completion.outcome?;
    let stable: Box<Stable> = completion.payload.downcast().expect("the payload of a dup");
    // SAFETY: MPI has filled it in, and is done with it.
    let handle = unsafe { (*stable.0).0 };
    job.call(&Peers::None, |_| Comm::adopt(job, handle, true))
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.owned {
            let handle = self.handle;
            self.job.with(|table| {
                table.free_comms.push(handle);
                table.kick();
            });
        }
    }
}

impl fmt::Debug for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}", self.rank(), self.size())
    }
}
