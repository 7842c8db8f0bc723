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
//! The table owns the buffer until the completion is there, so a future that is
//! dropped early leaves nothing that the kernel could write to after it is freed. It
//! cancels the call as well, whose completion then comes soon.
//! [`drain`] runs in the loop of a thread that serves a vCPU, or in the handler of a
//! user interrupt, which may stop a thread anywhere: it allocates nothing and only
//! sets atomics. One thread at a time drains: whoever makes the word `DRAINING` a 1;
//! when it has made it a 0 again it looks once more, so the others need not wait.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::future::Future;
use core::pin::Pin;
use core::ptr::null_mut;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicIsize, AtomicPtr, AtomicU32, AtomicU64};
use core::task::{Context, Poll};

use os_abi::shared::{DRAINING, HANDLER, RING_ENTRIES, RING_HEAD, RING_TAIL, completion};
use os_abi::{Error, layout, number};

use crate::coroutine::Cid;
use crate::{lock, sys, vdso};

const FREE: u32 = 0;
/// Somebody fills it in.
const TAKEN: u32 = 5;
/// In flight, and somebody awaits it.
const PENDING: u32 = 1;
/// In flight, and nobody does.
const ABANDONED: u32 = 2;
/// The result is there.
const DONE: u32 = 3;
/// It is there, and nobody wants it.
const UNWANTED: u32 = 4;

struct Operation {
    state: AtomicU32,
    result: AtomicIsize,
    /// The coroutine that is woken.
    cid: AtomicU64,
    /// The program's, except while the operation is in flight: then the kernel
    /// may write to the bytes it holds.
    buffer: UnsafeCell<Option<Vec<u8>>>,
}

// SAFETY: `buffer` belongs to whoever has made the state `TAKEN`, then to the future,
// which one thread at a time polls; whoever drains does not touch it.
unsafe impl Sync for Operation {}

/// Operations that are made at once.
const BATCH: usize = 128;

/// As many operations as there is room for completions, in batches that are made when
/// they are needed and never freed.
static BATCHES: [AtomicPtr<[Operation; BATCH]>; RING_ENTRIES / BATCH] =
    [const { AtomicPtr::new(null_mut()) }; RING_ENTRIES / BATCH];

/// Where to look for a free operation next.
static HINT: AtomicU32 = AtomicU32::new(0);

/// The operation of a token, if there is one.
fn operation(token: usize) -> Option<&'static Operation> {
    let batch = BATCHES.get(token / BATCH)?.load(Acquire);
    // SAFETY: null, or a box that is never freed.
    let batch = unsafe { batch.as_ref() }?;
    Some(&batch[token % BATCH])
}

/// Makes another batch of operations; returns the first token of it.
fn grow() -> Option<usize> {
    let batch = Box::into_raw(Box::new(
        [const {
            Operation {
                state: AtomicU32::new(FREE),
                result: AtomicIsize::new(0),
                cid: AtomicU64::new(0),
                buffer: UnsafeCell::new(None),
            }
        }; BATCH],
    ));
    for (index, place) in BATCHES.iter().enumerate() {
        let made = place.compare_exchange(null_mut(), batch, AcqRel, Acquire);
        if made.is_ok() {
            return Some(index * BATCH);
        }
    }
    // SAFETY: just boxed, and nobody has seen it.
    drop(unsafe { Box::from_raw(batch) });
    None
}

fn word(index: usize) -> &'static AtomicU64 {
    // SAFETY: the kernel has mapped this page of words, which it accesses
    // atomically as well.
    unsafe { &*((layout::SHARED as *const AtomicU64).add(index)) }
}

/// Sets a word of the shared page.
pub(crate) fn set_word(index: usize, value: u64) {
    word(index).store(value, SeqCst);
}

/// Takes a free operation, from the one that was taken last on; makes more if there is
/// none.
fn take() -> Option<(usize, &'static Operation)> {
    let start = HINT.load(Relaxed) as usize;
    let made = BATCHES
        .iter()
        .take_while(|batch| !batch.load(Relaxed).is_null());
    let count = made.count() * BATCH;
    let free = (start..start + count)
        .map(|at| at % count)
        .find(|token| claim(*token));
    let token = match free {
        Some(token) => token,
        None => {
            let first = grow()?;
            (first..first + BATCH).find(|token| claim(*token))?
        }
    };
    HINT.store(token as u32 + 1, Relaxed);
    Some((token, operation(token)?))
}

/// Makes an operation that is free the caller's.
fn claim(token: usize) -> bool {
    operation(token).is_some_and(|Operation { state, .. }| {
        let seen = state.load(Acquire);
        (seen == FREE || seen == UNWANTED)
            && state.compare_exchange(seen, TAKEN, SeqCst, Relaxed).is_ok()
    })
}

/// A call in flight: a future of its result and its buffer. Dropped early it is
/// cancelled.
pub struct Call {
    operation: Result<InFlight, (Error, Option<Vec<u8>>)>,
    taken: bool,
}

struct InFlight {
    token: usize,
    operation: &'static Operation,
    /// The kernel's number of it; `None`: it was over at once.
    number: Option<usize>,
}

fn call(
    number: usize,
    arguments: impl FnOnce(&mut Option<Vec<u8>>) -> [usize; 3],
    mut buffer: Option<Vec<u8>>,
    cid: Cid,
) -> Call {
    let failed = |error, buffer| Call {
        operation: Err((error, buffer)),
        taken: false,
    };
    let Some((token, operation)) = take() else {
        return failed(Error::TooMany, buffer);
    };
    let [a, b, c] = arguments(&mut buffer);
    // SAFETY: the operation is `TAKEN`: the cell is ours. Moving the vector does not
    // move its bytes.
    let place = unsafe { &mut *operation.buffer.get() };
    *place = buffer;
    operation.cid.store(cid, Relaxed);
    operation.state.store(PENDING, Release);
    let number = number | number::ASYNCHRONOUS;
    let number = match sys::raw_pair(number, [a, b, c, 0, 0, token], cid as usize) {
        (Err(error), _) => {
            operation.state.store(FREE, Release);
            return failed(error, place.take());
        }
        (Ok(number::AT_ONCE), result) => {
            operation.result.store(result, Relaxed);
            operation.state.store(DONE, Release);
            None
        }
        (Ok(number), _) => Some((number - number::IN_FLIGHT) as usize),
    };
    Call {
        operation: Ok(InFlight {
            token,
            operation,
            number,
        }),
        taken: false,
    }
}

impl Call {
    /// Asks the kernel to end the call early. The future is ready soon, with
    /// [`Error::Cancelled`] unless there is a result already; then nothing was read or
    /// taken.
    pub fn cancel(&self) {
        if let Ok(InFlight {
            token,
            number: Some(number),
            ..
        }) = &self.operation
        {
            // It may be over.
            let _ = sys::cancel(*number, *token);
        }
    }
}

impl Future for Call {
    type Output = (Result<isize, Error>, Option<Vec<u8>>);

    /// The coroutine whose id was given to the call is woken when it can go on,
    /// unless it need not wait at all.
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let operation = match &mut self.operation {
            Ok(in_flight) => in_flight.operation,
            Err((error, buffer)) => {
                let result = Err(*error);
                return Poll::Ready((result, buffer.take()));
            }
        };
        if operation.state.load(Acquire) != DONE {
            return Poll::Pending;
        }
        // SAFETY: done: the kernel is through with the buffer.
        let buffer = unsafe { (*operation.buffer.get()).take() };
        let result = operation.result.load(Relaxed);
        operation.state.store(FREE, Release);
        self.taken = true;
        Poll::Ready((Error::from_code(result).map_or(Ok(result), Err), buffer))
    }
}

impl Drop for Call {
    /// The buffer stays with its operation until the completion is there.
    fn drop(&mut self) {
        let Ok(InFlight { operation, .. }) = &self.operation else {
            return;
        };
        if self.taken {
            return;
        }
        let state = &operation.state;
        // It may be completed by an interrupt right now.
        let abandoned = state.compare_exchange(PENDING, ABANDONED, SeqCst, SeqCst);
        match abandoned {
            Ok(_) => self.cancel(),
            Err(_) => state.store(UNWANTED, Release),
        }
    }
}

/// The words of the n-th completion of all, which is there.
fn completion_words(n: u64) -> [u64; 3] {
    let (page, first) = completion(n);
    let page = (layout::COMPLETIONS + page * layout::PAGE) as *const AtomicU64;
    // SAFETY: the kernel has mapped each page of the ring in which there was a
    // completion, and accesses its words atomically as well.
    [0, 1, 2].map(|n| unsafe { &*page.add(first + n) }.load(Relaxed))
}

/// As [`drain`], where one that comes at this moment may wait until the next look: then
/// it causes an interrupt. Two loads, if there is none.
#[inline]
pub(crate) fn drain_if_any() {
    if word(RING_HEAD).load(Relaxed) != word(RING_TAIL).load(Relaxed) {
        drain();
    }
}

/// Takes all completions, unless another thread does: results into their operations,
/// wakes.
#[cold]
fn drain() {
    // What came after the last look and before the word was taken down has caused no
    // interrupt.
    while has_completions() {
        lock::enter();
        let claimed = word(DRAINING)
            .compare_exchange(0, 1, SeqCst, SeqCst)
            .is_ok();
        if claimed {
            take_completions();
            set_word(DRAINING, 0);
        }
        lock::leave();
        if !claimed {
            return;
        }
    }
}

/// Is there a completion that nobody has taken out?
#[must_use]
pub fn has_completions() -> bool {
    word(RING_HEAD).load(SeqCst) != word(RING_TAIL).load(SeqCst)
}

/// Calls `f` while the kernel takes this program to be draining: no completion
/// interrupts it. What has come meanwhile is taken out afterwards. Keep it short.
pub fn undisturbed<R>(f: impl FnOnce() -> R) -> R {
    while word(DRAINING)
        .compare_exchange(0, 1, SeqCst, SeqCst)
        .is_err()
    {
        core::hint::spin_loop();
    }
    let result = f();
    set_word(DRAINING, 0);
    drain();
    result
}

/// Takes all completions. The caller has made `DRAINING` a 1.
fn take_completions() {
    let mut head = word(RING_HEAD).load(Relaxed);
    let tail = word(RING_TAIL).load(Acquire);
    while head != tail {
        let [token, cid, result] = completion_words(head);
        head += 1;
        word(RING_HEAD).store(head, Release);
        if let Some(operation) = operation(token as usize) {
            operation.result.store(result as isize, Relaxed);
            let done = |state| Some(if state == ABANDONED { UNWANTED } else { DONE });
            let _ = operation.state.fetch_update(SeqCst, SeqCst, done);
            vdso::upshift_wake(cid);
        }
    }
}

/// Waits until there is a completion or a wake, unless something is ready or the
/// thread is to `stop`.
///
/// No wake is lost: from `upshift_prepare_park` on each ends the wait that follows, and
/// the kernel does not let the thread wait while the ring has something that nobody
/// takes out. Whoever goes on for a completion has been given the word `DRAINING`.
pub(crate) fn wait_until_ready(stop: &impl Fn() -> bool) {
    if vdso::upshift_prepare_park() != 0 && !stop() {
        let has_word = sys::park() == Ok(1);
        vdso::upshift_unpark();
        if has_word {
            lock::enter();
            take_completions();
            set_word(DRAINING, 0);
            lock::leave();
            drain();
        }
    } else {
        vdso::upshift_unpark();
    }
}

/// In a child, after `fork`: the calls in flight were the parent's, and end with an
/// error here.
pub(crate) fn end_calls_of_parent() {
    for operation in (0..RING_ENTRIES).map_while(operation) {
        let state = operation.state.load(Acquire);
        if state == PENDING || state == ABANDONED {
            let error = Error::NotInherited.code();
            operation.result.store(error, Relaxed);
            let done = if state == PENDING { DONE } else { UNWANTED };
            operation.state.store(done, Release);
            vdso::upshift_wake(operation.cid.load(Relaxed));
        }
    }
}

/// Names the handler of user interrupts.
pub(crate) fn enable_interrupts() {
    set_word(HANDLER, on_interrupt as *const () as u64);
}

static INTERRUPTS: AtomicU64 = AtomicU64::new(0);

/// How often the kernel has interrupted this program for completions.
#[must_use]
pub fn interrupts() -> u64 {
    INTERRUPTS.load(Relaxed)
}

/// Where the kernel makes this program go on when a completion has come. All
/// registers are kept by the kernel.
extern "C" fn on_interrupt() -> ! {
    INTERRUPTS.fetch_add(1, Relaxed);
    vdso::upshift_interrupt(1);
    drain();
    vdso::upshift_interrupt(0);
    loop {
        // It does not come back.
        let _ = sys::return_from_interrupt();
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
        [file, bytes.as_mut_ptr() as usize, bytes.len()]
    };
    call(number, arguments, Some(buffer), cid)
}

/// Waits until the clock shows `deadline`. The coroutine `cid` is woken.
pub fn sleep_until(deadline: u64, cid: Cid) -> Call {
    call(
        number::sleep_until,
        |_| [deadline as usize, 0, 0],
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
        |_| [address, value as usize, deadline as usize],
        None,
        cid,
    )
}

/// Waits for a thread. The coroutine `cid` is woken.
pub fn thread_join(thread: usize, cid: Cid) -> Call {
    call(number::thread_join, |_| [thread, 0, 0], None, cid)
}

/// Waits for a child. The coroutine `cid` is woken.
pub fn wait(process: usize, cid: Cid) -> Call {
    call(number::wait, |_| [process, 0, 0], None, cid)
}
