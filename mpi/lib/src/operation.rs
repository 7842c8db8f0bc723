//! Implements the future of an operation. The operation itself is in the table of requests
//! (`table.rs`), and may outlive its future.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use mpi_sys as sys;
use upshift::yield_if_needed;

use crate::error::{Error, Result, check};
use crate::job::{Job, waiter_level};
use crate::peers::Peers;
use crate::table::{Completion, Key, Kind, Outcome, Payload, Start, lost};

/// Computes the result of an operation from its completion. A function pointer suffices, because
/// the payload is its only state.
pub(crate) type Finish<T> = fn(&Arc<Job>, Completion) -> Result<T>;

/// A running request. Awaiting it returns its result and its buffer.
///
/// The request runs from the call that created it, whether it is awaited or not.
///
/// # Cancellation safety
/// Dropping a receive cancels it, and loses a message that it has already received. Any other
/// operation completes in the background, since other ranks depend on it.
#[must_use = "an operation that is dropped is cancelled if it receives; await it"]
pub struct Operation<T> {
    job: Arc<Job>,
    state: State,
    finish: Finish<T>,
}

enum State {
    Running(Key),
    Failed(Option<Error>),
    Over,
}

impl<T> Operation<T> {
    pub(crate) fn running(job: &Arc<Job>, key: Key, finish: Finish<T>) -> Operation<T> {
        Operation {
            job: job.clone(),
            state: State::Running(key),
            finish,
        }
    }

    pub(crate) fn new(job: &Arc<Job>, key: Result<Key>, finish: Finish<T>) -> Operation<T> {
        match key {
            Ok(key) => Operation::running(job, key, finish),
            Err(error) => Operation {
                job: job.clone(),
                state: State::Failed(Some(error)),
                finish,
            },
        }
    }

    /// Cancels a receive. If a message arrived earlier, returns the message, so no message is lost.
    /// Any other operation runs to its end.
    ///
    /// # Errors
    /// The errors of the operation.
    pub async fn cancel(mut self) -> Result<Option<T>> {
        if let State::Running(key) = self.state {
            self.job.with(|table| table.cancel(key));
        }
        let completion = std::future::poll_fn(|cx| self.poll_completion(cx)).await?;
        match completion.outcome {
            Ok(Outcome {
                is_cancelled: true, ..
            }) => Ok(None),
            _ => (self.finish)(&self.job, completion).map(Some),
        }
    }

    fn poll_completion(&mut self, cx: &mut Context<'_>) -> Poll<Result<Completion>> {
        let key = match &mut self.state {
            State::Running(key) => *key,
            State::Failed(error) => return Poll::Ready(Err(error.take().unwrap_or_else(lost))),
            State::Over => return Poll::Ready(Err(lost())),
        };
        let level = waiter_level();
        if let Some(completion) = self.job.with(|table| table.take(key, cx.waker(), level)) {
            self.state = State::Over;
            return Poll::Ready(Ok(completion));
        }
        // Checked after the waker is registered, so that no failure is missed, since a failure of
        // the job calls all registered wakers.
        match self.job.death() {
            Some(death) => Poll::Ready(Err(Error::Died(death.clone()))),
            None if self.job.has_ended() => Poll::Ready(Err(Error::Ended)),
            None => Poll::Pending,
        }
    }
}

impl<T> Future for Operation<T> {
    type Output = Result<T>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        // Yields if needed, since otherwise a loop whose operations are always complete at once
        // would keep the vCPU.
        if pin!(yield_if_needed()).poll(cx).is_pending() {
            return Poll::Pending;
        }
        match self.poll_completion(cx) {
            Poll::Ready(Ok(completion)) => Poll::Ready((self.finish)(&self.job, completion)),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }
}

// No field is pinned, since a `T` is only returned, never stored.
impl<T> Unpin for Operation<T> {}

impl<T> Drop for Operation<T> {
    fn drop(&mut self) {
        if let State::Running(key) = self.state {
            self.job.abandon(key);
        }
    }
}

impl<T> fmt::Debug for Operation<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Running(_) => "running",
            State::Failed(_) => "failed",
            State::Over => "over",
        };
        f.debug_tuple("Operation").field(&state).finish()
    }
}

/// Starts an operation. `begin` calls MPI with pointers into `payload`, which the table owns from
/// then on.
pub(crate) fn start<T>(
    job: &Arc<Job>,
    kind: Kind,
    peers: Peers,
    payload: Payload,
    bytes: usize,
    finish: Finish<T>,
    begin: impl FnOnce(&mut crate::table::Table, *mut sys::MPI_Request) -> Result<sys::MPI_Datatype>,
) -> Operation<T> {
    let level = waiter_level();
    let peers_to_wake = peers.clone();
    let key = job.call(&peers_to_wake, |table| {
        // SAFETY: the library defines this value as a constant.
        let mut request = unsafe { sys::RSMPI_REQUEST_NULL };
        let datatype = begin(table, &mut request)?;
        if kind == Kind::Completes
            && let Some(completion) = test_once(&mut request, datatype)?
        {
            return Ok(table.insert_done(
                Completion {
                    outcome: Ok(completion),
                    payload,
                    request: None,
                },
                level,
            ));
        }
        let start = Start {
            kind,
            request,
            datatype,
            is_persistent: false,
            payload,
            bytes,
            peers,
        };
        Ok(table.insert(start, level))
    });
    Operation::new(job, key, finish)
}

/// Tests a new request, because a short message is often complete when its send returns, and then
/// the progress coroutine need not ask for it.
fn test_once(
    request: &mut sys::MPI_Request,
    datatype: sys::MPI_Datatype,
) -> Result<Option<Outcome>> {
    let mut flag = 0;
    // SAFETY: the request is active, and the out-parameters are locals.
    let status = unsafe {
        let mut status: sys::MPI_Status = std::mem::zeroed();
        check(sys::MPI_Test(request, &mut flag, &mut status))?;
        status
    };
    Ok((flag != 0).then(|| crate::table::outcome(&status, datatype)))
}
