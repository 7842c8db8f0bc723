//! Asynchronous system calls: futures that resolve to the result that the synchronous form of the
//! call would return. The module [`calls`](crate::calls) names them.
//!
//! ```text
//!  read!(fd, buffer, cid)
//!    │ an operation of the table owns the buffer; the call returns at once
//!    ▼
//!  kernel coroutine, as urgent as the caller … ─► completion ring: token, cid, result
//!                                         │ user interrupt, or found by the loop
//!    ┌────────────────────────────────────┘
//!    ▼ `drain`: result into the operation, wake(cid)
//!  poll: the result and the buffer
//! ```
//!
//! The table ([`operations`]) owns the buffer until the completion has arrived, so the kernel never
//! writes to freed memory when a future is dropped early. The drop also cancels the call, whose
//! completion then arrives soon.
//!
//! Starting a call that need not wait costs one system call and no coroutine of the kernel; see
//! `docs/kernel.md` for the other costs.

mod completions;
#[allow(unsafe_code)]
mod operations;

use alloc::vec::Vec;
use core::future::Future;
use core::marker::PhantomData;
use core::pin::Pin;
use core::task::{Context, Poll};

use os_abi::shared::NO_LEVEL;
use os_abi::{Error, number};

pub use crate::calls::{
    futex_wait_async as futex_wait, read_async as read, sleep_until_async as sleep_until,
    thread_join_async as thread_join, wait_async as wait, write_async as write,
};
use crate::coroutine::Cid;
use crate::sys::{self, Request};
use crate::vdso;
pub(crate) use completions::{
    drain_if_any, enable_interrupts, fail_inherited_calls, wait_until_ready,
};
pub use completions::{has_completions, interrupts, without_interrupts};
use operations::InFlight;

/// The result of a call, which the kernel returns as a word.
pub trait FromWord {
    /// Converts the word, which is not an error.
    fn from_word(word: isize) -> Self;
}

impl FromWord for isize {
    fn from_word(word: isize) -> isize {
        word
    }
}

impl FromWord for usize {
    fn from_word(word: isize) -> usize {
        word as usize
    }
}

impl FromWord for () {
    fn from_word(_: isize) {}
}

/// An asynchronous call: a future that resolves to the result of the call, with its buffer if it
/// has one. Dropping the future cancels the call.
#[must_use = "dropping the call cancels it"]
pub struct AsyncCall<T, B = ()> {
    state: State,
    output: PhantomData<fn() -> (T, B)>,
}

enum State {
    /// The operation holds the buffer and will receive the result, or has received it. The
    /// [`CallState`] is `None` if the call completed at once.
    InFlight(InFlight, Option<CallState>),
    /// The call was not made, or its result has been fetched.
    Ended(Result<isize, Error>, Option<Vec<u8>>),
}

/// The result and the buffer of a call that has ended.
type Answer = (Result<isize, Error>, Option<Vec<u8>>);

/// State of a call in flight.
struct CallState {
    /// The kernel's number of the call.
    number: usize,
    /// Level of the call, which is that of the coroutine that made it or polled it last;
    /// [`NO_LEVEL`] if no coroutine made it.
    level: u64,
}

/// Starts a call. Pointers of `request` into the buffer stay valid, because moving the buffer does
/// not move its bytes.
#[inline]
fn begin(request: Request, buffer: Option<Vec<u8>>, cid: Cid) -> State {
    let Some(claimed) = operations::take() else {
        return State::Ended(Err(Error::TooMany), buffer);
    };
    let operation = claimed.begin(buffer, cid);
    let number = request.number | number::ASYNCHRONOUS;
    let [a, b, c, d, e, _] = request.words;
    let arguments = [a, b, c, d, e, operation.token()];
    let call = match sys::raw_pair(number, arguments, cid as usize) {
        (Err(error), _) => return State::Ended(Err(error), operation.undo()),
        (Ok(number::COMPLETED), result) => {
            operation.set_result(result);
            None
        }
        (Ok(number), _) => Some(CallState {
            number: (number - number::IN_FLIGHT) as usize,
            // The level of the running coroutine.
            level: vdso::upshift_waits(),
        }),
    };
    State::InFlight(operation, call)
}

impl State {
    /// Returns the result and the buffer once the call has ended. Until then the call takes the
    /// level of its poller.
    #[inline]
    fn poll(&mut self) -> Poll<Answer> {
        if let State::InFlight(operation, call) = self
            && !operation.is_done()
        {
            if let Some(call) = call {
                call.follow(operation.token());
            }
            return Poll::Pending;
        }
        let fetched = State::Ended(Err(Error::NoCall), None);
        Poll::Ready(match core::mem::replace(self, fetched) {
            State::Ended(result, buffer) => (result, buffer),
            State::InFlight(operation, _) => {
                let (result, buffer) = operation.finish();
                (Error::from_code(result).map_or(Ok(result), Err), buffer)
            }
        })
    }
}

impl<T, B> AsyncCall<T, B> {
    fn new(state: State) -> AsyncCall<T, B> {
        AsyncCall {
            state,
            output: PhantomData,
        }
    }

    /// Requests that the kernel ends the call early. The future becomes ready soon, with
    /// [`Error::Cancelled`] unless the call has a result; a cancelled call has consumed nothing.
    pub fn cancel(&self) {
        if let State::InFlight(operation, Some(call)) = &self.state {
            // The kernel returns an error if the call has already ended.
            let _ = sys::cancel(call.number, operation.token());
        }
    }
}

impl<T: FromWord, B> AsyncCall<T, B> {
    /// Makes the call synchronously.
    #[inline(always)]
    pub(crate) fn wait(request: Request) -> Result<T, Error> {
        request.wait().map(T::from_word)
    }
}

impl<T> AsyncCall<T> {
    /// Starts the call, whose completion wakes the coroutine `cid`.
    pub(crate) fn start(request: Request, cid: Cid) -> AsyncCall<T> {
        AsyncCall::new(begin(request, None, cid))
    }
}

impl<T> AsyncCall<T, Vec<u8>> {
    /// Starts a call whose words point into `buffer`; the completion wakes the coroutine `cid`.
    pub(crate) fn start(request: Request, buffer: Vec<u8>, cid: Cid) -> AsyncCall<T, Vec<u8>> {
        AsyncCall::new(begin(request, Some(buffer), cid))
    }
}

impl<T: FromWord> Future for AsyncCall<T> {
    type Output = Result<T, Error>;

    /// Returns `Ready` once the completion has arrived. The completion wakes the coroutine whose id
    /// was passed to the call. The call takes the level of the coroutine that polls it, so this
    /// coroutine is polled again when its level changes.
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = self.state.poll();
        answer.map(|(result, _)| result.map(T::from_word))
    }
}

impl<T: FromWord> Future for AsyncCall<T, Vec<u8>> {
    type Output = (Result<T, Error>, Vec<u8>);

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = self.state.poll();
        answer.map(|(result, buffer)| (result.map(T::from_word), buffer.unwrap_or_default()))
    }
}

impl CallState {
    /// Gives the call the level of the running coroutine.
    fn follow(&mut self, token: usize) {
        let level = vdso::upshift_waits();
        if level == self.level || level == NO_LEVEL {
            return;
        }
        // The kernel returns an error if the call has already ended.
        let _ = sys::reprio_call(self.number, token, level as usize);
        self.level = level;
    }
}

impl<T, B> Drop for AsyncCall<T, B> {
    /// Leaves the buffer with its operation until the completion has arrived.
    fn drop(&mut self) {
        if let State::InFlight(operation, _) = &self.state
            && operation.abandon()
        {
            self.cancel();
        }
    }
}
