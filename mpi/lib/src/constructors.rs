//! Communicators made from an existing one: a copy of it, and parts of it.

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
    /// Creates a communicator of the same ranks with its own messages and collectives. Collective.
    pub fn dup(&self) -> Operation<Comm> {
        let mut made = Box::new(Made(self.handle()));
        let target = &raw mut made.0;
        // MPI may write the handle at any time until the end: the box is in the table until then.
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

    /// Creates a communicator of all ranks that give the same `colour`, in the order of their
    /// `key`s. `None` for no colour. Collective.
    ///
    /// MPI has only a blocking form of this. So all ranks meet in a barrier first, which does not
    /// block; then each blocks in MPI until the last rank is polled.
    ///
    /// # Errors
    /// [`Error::Colour`] and [`Error::Key`] beyond 2147483647; MPI's. A rank with such an error
    /// does not take part, and the other ranks wait for it.
    pub async fn split(&self, colour: Option<u32>, key: usize) -> Result<Option<Comm>> {
        // SAFETY: constants of the library.
        let (none, undefined) = unsafe { (sys::RSMPI_COMM_NULL, sys::RSMPI_UNDEFINED) };
        let colour = match colour {
            Some(colour) => c_int::try_from(colour).map_err(|_| Error::Colour(colour))?,
            None => undefined,
        };
        let key = c_int::try_from(key).map_err(|_| Error::Key(key))?;
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

/// The box that MPI writes a handle to. A raw pointer, because MPI's own pointer into it must stay
/// valid.
struct Stable(*mut Made);

// SAFETY: the value owns a box.
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
