//! Defines the start of an operation, its completion, and the status that MPI reports.

use std::any::Any;
use std::ffi::c_int;

use mpi_sys as sys;

use crate::comm::Comm;
use crate::error::{Error, Result, check};
use crate::peers::Peers;

/// The buffer of an operation, and other values that are needed at its end.
pub(crate) type Payload = Box<dyn Any + Send>;

/// The fate of an operation whose future was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The operation, a send or a collective, runs to its end in the background.
    Completes,
    /// The operation is a receive, and is cancelled.
    Receive,
}

/// The end of an operation.
pub(crate) struct Completion {
    pub(crate) outcome: Result<Outcome>,
    pub(crate) payload: Payload,
    /// The request of a persistent operation, which is now inactive.
    pub(crate) request: Option<sys::MPI_Request>,
}

// SAFETY: any thread may keep an MPI handle, and the handle is passed to MPI only under the lock.
unsafe impl Send for Completion {}

/// The status of a receive; it has no meaning for other operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) source: c_int,
    pub(crate) tag: c_int,
    /// Number of items; `None` if the bytes are not a whole number of items.
    pub(crate) items: Option<usize>,
    pub(crate) is_cancelled: bool,
}

impl Outcome {
    pub(super) const NOTHING: Outcome = Outcome {
        source: 0,
        tag: 0,
        items: Some(0),
        is_cancelled: false,
    };
}

/// An operation that has started.
pub(crate) struct Start {
    pub(crate) kind: Kind,
    pub(crate) request: sys::MPI_Request,
    pub(crate) datatype: sys::MPI_Datatype,
    pub(crate) is_persistent: bool,
    pub(crate) payload: Payload,
    /// Lower bound of the number of bytes that the operation transfers.
    pub(crate) bytes: usize,
    pub(crate) peers: Peers,
}

/// The messages that a probe waits for.
pub(crate) struct Pattern {
    /// Kept so that the communicator is not freed before the message is received.
    pub(crate) comm: Comm,
    pub(crate) source: c_int,
    pub(crate) tag: c_int,
}

/// A message that a probe has matched, which must be received.
pub(crate) struct Matched {
    pub(crate) message: sys::MPI_Message,
    pub(crate) status: sys::MPI_Status,
}

// SAFETY: any thread may keep the MPI handle, as in `Completion`.
unsafe impl Send for Matched {}

/// Returns a matching message, if there is one.
///
/// This thread must have the right to call MPI.
pub(crate) fn improbe(pattern: &Pattern) -> Result<Option<Matched>> {
    // SAFETY: the out-parameters are locals, and the probe keeps the communicator alive.
    unsafe {
        let mut flag = 0;
        let mut message = sys::RSMPI_MESSAGE_NULL;
        let mut status: sys::MPI_Status = std::mem::zeroed();
        check(sys::MPI_Improbe(
            pattern.source,
            pattern.tag,
            pattern.comm.handle(),
            &mut flag,
            &mut message,
            &mut status,
        ))?;
        Ok((flag != 0).then_some(Matched { message, status }))
    }
}

/// Returns the completion of a probe with this result.
pub(crate) fn probe_completion(result: Result<Option<Matched>>, comm: Comm) -> Completion {
    let (outcome, matched) = match result {
        Ok(matched) => (Ok(Outcome::NOTHING), matched),
        Err(error) => (Err(error), None),
    };
    Completion {
        outcome,
        payload: Box::new((comm, matched)),
        request: None,
    }
}

/// Reads a status. This thread must have the right to call MPI.
pub(crate) fn outcome(status: &sys::MPI_Status, datatype: sys::MPI_Datatype) -> Outcome {
    let (mut items, mut is_cancelled) = (0, 0);
    // SAFETY: MPI has filled the status, the datatype lives as long as MPI, and the out-parameters
    // are locals.
    unsafe {
        sys::MPI_Get_count(status, datatype, &mut items);
        sys::MPI_Test_cancelled(status, &mut is_cancelled);
    }
    Outcome {
        source: status.MPI_SOURCE,
        tag: status.MPI_TAG,
        items: usize::try_from(items).ok(),
        is_cancelled: is_cancelled != 0,
    }
}

/// Returns the error of an operation that the end of the job interrupted.
pub(crate) fn lost() -> Error {
    Error::Ended
}
