//! What an operation starts with, how it ended, and what MPI says of that.

use std::any::Any;
use std::ffi::c_int;

use mpi_sys as sys;

use crate::comm::Comm;
use crate::error::{Error, Result, check};
use crate::peers::Peers;

/// The buffer of an operation, and what else it needs at its end.
pub(crate) type Payload = Box<dyn Any + Send>;

/// What is to be done when its future has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Runs to its end in the background: sends and collectives.
    Completes,
    /// Is cancelled.
    Receive,
}

/// How an operation ended.
pub(crate) struct Completion {
    pub(crate) outcome: Result<Outcome>,
    pub(crate) payload: Payload,
    /// The request of a persistent operation, inactive now.
    pub(crate) request: Option<sys::MPI_Request>,
}

// SAFETY: MPI's handles are names, which any thread may hold; they are used under the lock only.
unsafe impl Send for Completion {}

/// What MPI says of a receive; of other operations it means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) source: c_int,
    pub(crate) tag: c_int,
    /// Items; `None`: not a whole number of them.
    pub(crate) items: Option<usize>,
    pub(crate) cancelled: bool,
}

impl Outcome {
    pub(super) const NOTHING: Outcome = Outcome {
        source: 0,
        tag: 0,
        items: Some(0),
        cancelled: false,
    };
}

/// What an operation starts with.
pub(crate) struct Start {
    pub(crate) kind: Kind,
    pub(crate) request: sys::MPI_Request,
    pub(crate) datatype: sys::MPI_Datatype,
    pub(crate) persistent: bool,
    pub(crate) payload: Payload,
    /// How many bytes it moves at least.
    pub(crate) bytes: usize,
    pub(crate) peers: Peers,
}

/// A probe.
pub(crate) struct Pattern {
    /// Held, so that it is not freed before the message is received.
    pub(crate) comm: Comm,
    pub(crate) source: c_int,
    pub(crate) tag: c_int,
}

/// A message that a probe has matched: it must be received.
pub(crate) struct Matched {
    pub(crate) message: sys::MPI_Message,
    pub(crate) status: sys::MPI_Status,
}

// SAFETY: as for `Completion`.
unsafe impl Send for Matched {}

/// A message that fits, if there is one.
///
/// The caller is allowed to call MPI.
pub(crate) fn improbe(pattern: &Pattern) -> Result<Option<Matched>> {
    // SAFETY: out-parameters, and a communicator that lives: the probe holds it.
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

/// The end of a probe.
pub(crate) fn of_probe(done: Result<Option<Matched>>, comm: Comm) -> Completion {
    let (outcome, matched) = match done {
        Ok(matched) => (Ok(Outcome::NOTHING), matched),
        Err(error) => (Err(error), None),
    };
    Completion {
        outcome,
        payload: Box::new((comm, matched)),
        request: None,
    }
}

/// Reads a status. The caller is allowed to call MPI.
pub(crate) fn outcome(status: &sys::MPI_Status, datatype: sys::MPI_Datatype) -> Outcome {
    let (mut items, mut cancelled) = (0, 0);
    // SAFETY: a status that MPI has filled, a type that lives, out-parameters.
    unsafe {
        sys::MPI_Get_count(status, datatype, &mut items);
        sys::MPI_Test_cancelled(status, &mut cancelled);
    }
    Outcome {
        source: status.MPI_SOURCE,
        tag: status.MPI_TAG,
        items: usize::try_from(items).ok(),
        cancelled: cancelled != 0,
    }
}

/// The error of an operation whose end was cut off.
pub(crate) fn lost() -> Error {
    Error::Ended
}
