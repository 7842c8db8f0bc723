//! Asynchronous system calls: futures of what the synchronous form returns.
//!
//! ```text
//!  read!(fd, buffer, cid)
//!    │ an operation of the table owns the buffer; the call returns at once
//!    ▼
//!  kernel coroutine with our level … ─► completion ring: token, cid, result
//!                                         │ user interrupt, or found by the loop
//!    ┌────────────────────────────────────┘
//!    ▼ `drain`: result into the operation, wake(cid)
//!  poll: the result and the buffer
//! ```
//!
//! The table ([`operations`]) owns the buffer until the completion is there, so a future that is
//! dropped early leaves nothing that the kernel could write to after it is freed. It
//! cancels the call as well, whose completion then comes soon.
//!
//! Starting a call that need not wait costs one system call and no coroutine of the
//! kernel; see `docs/kernel.md` for the rest.

mod completions;
#[allow(unsafe_code)]
mod operations;

use alloc::vec::Vec;
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::AtomicU32;
use core::task::{Context, Poll};

use os_abi::shared::NO_LEVEL;
use os_abi::{Error, number};

use crate::coroutine::Cid;
use crate::{sys, vdso};
pub(crate) use completions::{
    drain_if_any, enable_interrupts, end_calls_of_parent, wait_until_ready,
};
pub use completions::{has_completions, interrupts, undisturbed};
use operations::InFlight;

/// A call in flight: a future of its result and its buffer. Dropped early it is
/// cancelled.
pub struct Call(State);

enum State {
    /// `None`: it was over at once.
    InFlight(InFlight, Option<Known>),
    /// It was not made, or its result is to be fetched.
    Over(Result<isize, Error>, Option<Vec<u8>>),
}

/// What is known of a call in flight.
struct Known {
    /// The kernel's number of it.
    number: usize,
    /// Its level, or [`NO_LEVEL`]: that of what made it.
    level: u64,
}

fn call(
    number: usize,
    arguments: impl FnOnce(&mut Option<Vec<u8>>) -> [usize; 5],
    mut buffer: Option<Vec<u8>>,
    cid: Cid,
) -> Call {
    let Some(taken) = operations::take() else {
        return Call(State::Over(Err(Error::TooMany), buffer));
    };
    // Moving the vector does not move its bytes.
    let [a, b, c, d, e] = arguments(&mut buffer);
    let operation = taken.begin(buffer, cid);
    let number = number | number::ASYNCHRONOUS;
    let arguments = [a, b, c, d, e, operation.token()];
    let number = match sys::raw_pair(number, arguments, cid as usize) {
        (Err(error), _) => return Call(State::Over(Err(error), operation.undo())),
        (Ok(number::AT_ONCE), result) => {
            operation.is_over(result);
            None
        }
        (Ok(number), _) => Some(Known {
            number: (number - number::IN_FLIGHT) as usize,
            level: vdso::upshift_waits(),
        }),
    };
    Call(State::InFlight(operation, number))
}

impl Call {
    /// Asks the kernel to end the call early. The future is ready soon, with
    /// [`Error::Cancelled`] unless there is a result already; then nothing was read or
    /// taken.
    pub fn cancel(&self) {
        if let State::InFlight(operation, Some(known)) = &self.0 {
            // It may be over.
            let _ = sys::cancel(known.number, operation.token());
        }
    }
}

impl Future for Call {
    type Output = (Result<isize, Error>, Option<Vec<u8>>);

    /// The coroutine whose id was given to the call is woken when it can go on,
    /// unless it need not wait at all. The call takes the level of what polls it; a
    /// coroutine that is given another level meanwhile is polled for that.
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        if let State::InFlight(operation, known) = &mut self.0
            && !operation.is_done()
        {
            if let Some(known) = known {
                known.follow(operation.token());
            }
            return Poll::Pending;
        }
        let fetched = State::Over(Err(Error::NoCall), None);
        Poll::Ready(match core::mem::replace(&mut self.0, fetched) {
            State::Over(result, buffer) => (result, buffer),
            State::InFlight(operation, _) => {
                let (result, buffer) = operation.finish();
                (Error::from_code(result).map_or(Ok(result), Err), buffer)
            }
        })
    }
}

impl Known {
    /// Gives the call the level of the coroutine that runs.
    fn follow(&mut self, token: usize) {
        let level = vdso::upshift_waits();
        if level == self.level || level == NO_LEVEL {
            return;
        }
        // It may be over.
        let _ = sys::reprio_call(self.number, token, level as usize);
        self.level = level;
    }
}

impl Drop for Call {
    /// The buffer stays with its operation until the completion is there.
    fn drop(&mut self) {
        if let State::InFlight(operation, _) = &self.0
            && operation.abandon()
        {
            self.cancel();
        }
    }
}

/// A `read` in flight.
pub struct Read(Call);

impl Read {
    /// See [`Call::cancel`]; the buffer comes with the error.
    pub fn cancel(&self) {
        self.0.cancel();
    }
}

impl Future for Read {
    type Output = (Result<usize, Error>, Vec<u8>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let call = Pin::new(&mut self.0);
        call.poll(cx).map(|(result, buffer)| {
            let buffer = buffer.unwrap_or_default();
            (result.map(|count| count as usize), buffer)
        })
    }
}

/// Reads into the whole length of a buffer; gives it back with the result. The
/// coroutine `cid` is woken.
pub fn read(file: usize, buffer: Vec<u8>, cid: Cid) -> Read {
    Read(transfer(number::read, file, buffer, cid))
}

/// Writes a buffer; gives it back with the result. The coroutine `cid` is woken.
pub fn write(file: usize, buffer: Vec<u8>, cid: Cid) -> Read {
    Read(transfer(number::write, file, buffer, cid))
}

fn transfer(number: usize, file: usize, buffer: Vec<u8>, cid: Cid) -> Call {
    let arguments = |buffer: &mut Option<Vec<u8>>| {
        let bytes = buffer.as_deref_mut().unwrap_or_default();
        [file, bytes.as_mut_ptr() as usize, bytes.len(), 0, 0]
    };
    call(number, arguments, Some(buffer), cid)
}

/// Waits until the clock shows `deadline`. The coroutine `cid` is woken.
pub fn sleep_until(deadline: u64, cid: Cid) -> Call {
    call(
        number::sleep_until,
        |_| [deadline as usize, 0, 0, 0, 0],
        None,
        cid,
    )
}

/// Waits at an address; see [`number::futex_wait`]. The coroutine `cid` is woken.
///
/// The word has to outlive the call.
pub fn futex_wait(word: &'static AtomicU32, value: u32, deadline: u64, cid: Cid) -> Call {
    let address = core::ptr::from_ref(word) as usize;
    call(
        number::futex_wait,
        |_| [address, value as usize, deadline as usize, 0, 0],
        None,
        cid,
    )
}

/// Waits for a thread. The coroutine `cid` is woken.
pub fn thread_join(thread: usize, cid: Cid) -> Call {
    call(number::thread_join, |_| [thread, 0, 0, 0, 0], None, cid)
}

/// Waits for a child. The coroutine `cid` is woken.
pub fn wait(process: usize, cid: Cid) -> Call {
    call(number::wait, |_| [process, 0, 0, 0, 0], None, cid)
}

pub(crate) fn accept(socket: usize, cid: Cid) -> Call {
    call(number::accept, |_| [socket, 0, 0, 0, 0], None, cid)
}

pub(crate) fn connect(socket: usize, address: [u8; 4], port: u16, cid: Cid) -> Call {
    let address = u32::from_be_bytes(address) as usize;
    let port = usize::from(port);
    call(
        number::connect,
        |_| [socket, address, port, 0, 0],
        None,
        cid,
    )
}

pub(crate) fn send_to(socket: usize, bytes: Vec<u8>, to: ([u8; 4], u16), cid: Cid) -> Read {
    let (address, port) = (u32::from_be_bytes(to.0) as usize, usize::from(to.1));
    let arguments = |buffer: &mut Option<Vec<u8>>| {
        let bytes = buffer.as_deref_mut().unwrap_or_default();
        [
            socket,
            bytes.as_mut_ptr() as usize,
            bytes.len(),
            address,
            port,
        ]
    };
    Read(call(number::send_to, arguments, Some(bytes), cid))
}

pub(crate) fn receive_from(socket: usize, buffer: Vec<u8>, cid: Cid) -> Read {
    Read(transfer(number::receive_from, socket, buffer, cid))
}

fn named(number: usize, name: &str, flags: usize, cid: Cid) -> Call {
    let (start, len) = (name.as_ptr() as usize, name.len());
    call(number, |_| [start, len, flags, 0, 0], None, cid)
}

pub(crate) fn open(name: &str, flags: usize, cid: Cid) -> Call {
    named(number::open, name, flags, cid)
}

pub(crate) fn unlink(name: &str, cid: Cid) -> Call {
    named(number::unlink, name, 0, cid)
}

pub(crate) fn fsync(file: usize, cid: Cid) -> Call {
    call(number::fsync, |_| [file, 0, 0, 0, 0], None, cid)
}

pub(crate) fn list(from: usize, buffer: Vec<u8>, cid: Cid) -> Read {
    Read(transfer(number::list, from, buffer, cid))
}
