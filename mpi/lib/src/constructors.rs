//! Creates communicators from an existing communicator. `dup` copies it, and `split` divides it.

use std::ffi::c_int;
use std::sync::Arc;

use mpi_sys as sys;

use crate::comm::Comm;
use crate::error::{Error, Result, check};
use crate::job::Job;
use crate::operation::{Operation, start};
use crate::peers::Peers;
use crate::table::{Completion, Kind};

impl Comm {
    /// Creates a communicator of the same ranks with its own messages and collectives. All ranks
    /// must call this method.
    pub fn dup(&self) -> Operation<Comm> {
        let mut handle_box = Box::new(NewHandle(self.handle()));
        let target = &raw mut handle_box.0;
        // MPI may write the handle at any time until the operation ends, so the table owns the box
        // until then.
        let payload = Box::new(PinnedHandle(Box::into_raw(handle_box)));
        start(
            self.job(),
            Kind::Completes,
            self.all_peers(),
            payload,
            0,
            finish_dup,
            |_, request| {
                // SAFETY: `target` points into the box of `payload`, which outlives the operation.
                unsafe {
                    check(sys::MPI_Comm_idup(self.handle(), target, request))?;
                    Ok(sys::RSMPI_DATATYPE_NULL)
                }
            },
        )
    }

    /// Creates a communicator of all ranks that pass the same `colour`, in the order of their
    /// `key`s. All ranks must call this method; a rank that passes `None` gets no communicator.
    ///
    /// MPI has no non-blocking form of `MPI_Comm_split`. Therefore all ranks first meet in a
    /// barrier that does not block. Then each rank blocks in MPI until the call of the last rank is
    /// polled.
    ///
    /// # Errors
    /// [`Error::Colour`] or [`Error::Key`] if the value exceeds 2147483647; errors of MPI. A rank
    /// with such an error does not take part, so the other ranks wait for it in vain.
    pub async fn split(&self, colour: Option<u32>, key: usize) -> Result<Option<Comm>> {
        // SAFETY: the C library defines both values as constants.
        let (none, undefined) = unsafe { (sys::RSMPI_COMM_NULL, sys::RSMPI_UNDEFINED) };
        let colour = match colour {
            Some(colour) => c_int::try_from(colour).map_err(|_| Error::Colour(colour))?,
            None => undefined,
        };
        let key = c_int::try_from(key).map_err(|_| Error::Key(key))?;
        self.barrier().await?;
        let comm = self.job().call(&self.all_peers(), |_| {
            let mut handle = none;
            // SAFETY: the handle is that of a live communicator, and MPI writes only to `handle`, a
            // local.
            check(unsafe { sys::MPI_Comm_split(self.handle(), colour, key, &mut handle) })?;
            if handle == none {
                return Ok(None);
            }
            Comm::adopt(self.job(), handle, true).map(Some)
        })?;
        Ok(comm)
    }
}

/// The handle of a new communicator.
struct NewHandle(sys::MPI_Comm);

/// A box to which MPI writes a handle. It is held by a raw pointer, because moving a `Box` would
/// invalidate the pointer that MPI has.
struct PinnedHandle(*mut NewHandle);

// SAFETY: the value owns the box, and the handle in it may be used by any thread.
unsafe impl Send for PinnedHandle {}

impl Drop for PinnedHandle {
    fn drop(&mut self) {
        // SAFETY: the pointer comes from `Box::into_raw` in `dup`, and MPI no longer uses it, since
        // the operation has ended.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

fn finish_dup(job: &Arc<Job>, completion: Completion) -> Result<Comm> {
    completion.outcome?;
    let pinned: Box<PinnedHandle> = completion.payload.downcast().expect("the payload of a dup");
    // SAFETY: the box is alive, and MPI has written the handle and no longer uses the pointer,
    // since the operation has completed.
    let handle = unsafe { (*pinned.0).0 };
    job.call(&Peers::None, |_| Comm::adopt(job, handle, true))
}
