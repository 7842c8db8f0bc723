//! Dispatches system calls to the kernel's functions, according to the table in `os_abi`.
//!
//! A `now` call is answered before the thread continues. A `later` call becomes a kernel coroutine
//! with the level of the caller. A synchronous call parks the thread until the call ends. An
//! asynchronous call reserves an entry in the completion ring, the thread continues at once, and
//! the end of the call fills the entry. A call that need not wait is answered at once in both
//! forms, without a coroutine, unless kernel coroutines that are at least as urgent are ready. A
//! `thread` call takes the calling thread, and may park or end it. The dispatch is generated from
//! the table; a call that is in the table but not implemented does not compile.

mod in_flight;
mod later;
mod now;
mod sockets;
mod spawn;
mod storage;
mod thread;

use alloc::boxed::Box;
use core::future::Future;

use os_abi::{Error, number, system_calls};
use upshift_core::{Kind, Level, Priority, SpawnOptions};

use crate::process::{Process, Thread};
use crate::trace::{self, Purpose};
use crate::{chaos, executor, run_queue};
use in_flight::Recipient;
use later::CallStart;

type Answer = Result<isize, Error>;
/// The calling thread and its answer; `None` if the thread is parked, or has ended.
type SyscallReturn = Option<(Box<Thread>, Answer)>;

fn word(answer: Answer) -> isize {
    answer.unwrap_or_else(Error::code)
}

#[derive(Clone, Copy)]
enum Form {
    Synchronous,
    /// The thread continues; the completion contains these words.
    Asynchronous {
        token: u64,
        coroutine: u64,
    },
}

/// Executes the thread's call. Returns `None` if the thread is parked, or has ended.
pub(crate) fn dispatch(thread: Box<Thread>) -> Option<Box<Thread>> {
    let arguments = core::array::from_fn(|n| thread.context.argument(n));
    let word_7 = thread.context.argument(7);
    let form = match word_7 & number::ASYNCHRONOUS {
        0 => Form::Synchronous,
        _ => Form::Asynchronous {
            token: thread.context.argument(5) as u64,
            coroutine: thread.context.argument(6) as u64,
        },
    };
    let call = word_7 & !number::ASYNCHRONOUS;
    route(thread, call, form, arguments).map(|(mut thread, answer)| {
        thread.context.set_argument(0, word(answer) as usize);
        thread
    })
}

macro_rules! routes {
    ($($(#[$doc:meta])* $number:literal $kind:ident $name:ident($($argument:ident),*);)*) => {
        fn route(mut thread: Box<Thread>, call: usize, form: Form, arguments: [usize; 6]) -> SyscallReturn {
            match (call, form) {
                $(routes!(@pattern $kind $name form) => {
                    routes!(@$kind $name thread form arguments)
                })*
                _ => Some((thread, Err(Error::NoSuchCall))),
            }
        }
    };
    // Only `later` calls have an asynchronous form.
    (@pattern later $name:ident $form:ident) => { (number::$name, _) };
    (@pattern $kind:ident $name:ident $form:ident) => { (number::$name, Form::Synchronous) };
    (@now $name:ident $thread:ident $form:ident $arguments:ident) => {{
        let answer = now::$name(&mut $thread, $arguments);
        Some(($thread, answer))
    }};
    (@thread $name:ident $thread:ident $form:ident $arguments:ident) => {
        thread::$name($thread, $arguments)
    };
    (@later $name:ident $thread:ident $form:ident $arguments:ident) => {{
        let process = $thread.process.clone();
        start($thread, $form, number::$name, |inline| {
            later::$name(process, $arguments, inline)
        })
    }};
}

system_calls!(routes);

/// Returns whether a call of this level may run inline, before the ready kernel coroutines. It may
/// not if one of these coroutines is at least as urgent, because that coroutine may wait for the
/// same event, and has waited for longer.
fn may_run_inline(level: Level) -> bool {
    let first = level.more_urgent_bits() | level.bit();
    executor::domain().bitmap() & first == 0
        && !run_queue::is_overtaken(level, false)
        && !chaos::one_in(2)
}

/// Answers a call, or starts its coroutine with the level of the caller. If the coroutine cannot be
/// started, the thread continues with the error.
fn start<F>(
    mut thread: Box<Thread>,
    form: Form,
    number: usize,
    begin_call: impl FnOnce(bool) -> CallStart<F>,
) -> SyscallReturn
where
    F: Future<Output = Answer> + Send + 'static,
{
    let process = thread.process.clone();
    let (line, level) = (thread.line, thread.level);
    let call = match (begin_call(may_run_inline(level)), form) {
        (CallStart::Pending(call), _) => call,
        (CallStart::Done(answer), Form::Synchronous) => return Some((thread, answer)),
        (CallStart::Done(answer), Form::Asynchronous { .. }) => {
            thread.context.set_argument(1, word(answer) as usize);
            return Some((thread, Ok(number::COMPLETED)));
        }
    };
    #[cfg(feature = "kernel-threads")]
    let call = match crate::arch::kernel_thread::OnThread::new(call, process.stacks.clone()) {
        Ok(call) => call,
        Err(error) => return Some((thread, Err(error))),
    };
    let token = match form {
        Form::Synchronous => None,
        Form::Asynchronous { token, .. } => Some(token),
    };
    let call_number = match process.add_call(token) {
        Ok(call_number) => call_number,
        Err(error) => return Some((thread, Err(error))),
    };
    let reserved = match form {
        Form::Synchronous => Ok(()),
        Form::Asynchronous { .. } => process.reserve_completion(),
    };
    let spawned = reserved.and_then(|()| {
        let recipient = match form {
            Form::Synchronous => Recipient::Thread { line },
            Form::Asynchronous { token, coroutine } => Recipient::Ring {
                entry: [token, coroutine],
            },
        };
        let call = in_flight::new(call, call_number, process.clone(), recipient);
        let spawned = spawn_call(&process, level, (number, call_number), call);
        spawned.inspect_err(|_| {
            if let Form::Asynchronous { .. } = form {
                process.release_completion();
            }
        })
    });
    match (spawned, form) {
        (Err(error), _) => {
            process.end_call(call_number);
            Some((thread, Err(error)))
        }
        (Ok(call), Form::Synchronous) => {
            process.wait_in_call(thread, call.0);
            call.start();
            None
        }
        (Ok(call), Form::Asynchronous { .. }) => {
            call.start();
            Some((thread, Ok(number::IN_FLIGHT + call_number as isize)))
        }
    }
}

/// The coroutine of a call, registered with its process but not woken.
#[must_use]
struct UnstartedCall(upshift_core::CoroutineId);

impl UnstartedCall {
    fn start(self) {
        // The coroutine is dead if another hart has ended the process meanwhile.
        let _ = executor::domain().wake(self.0);
    }
}

fn spawn_call(
    process: &Process,
    level: Level,
    (number, call_number): (usize, usize),
    call: impl Future<Output = ()> + Send + 'static,
) -> Result<UnstartedCall, Error> {
    if chaos::is_out_of_memory(32) {
        return Err(Error::OutOfMemory);
    }
    let options = SpawnOptions {
        priority: Priority::At(level),
        kind: Kind::Completion,
        start: false,
    };
    let handle = executor::spawn(call, options).map_err(|_| Error::OutOfMemory)?;
    let id = handle.id();
    handle.detach();
    let purpose = Purpose::Call {
        process: process.number(),
        number,
    };
    trace::name(id, purpose);
    if let Err(error) = process.begin_call(call_number, id) {
        // The coroutine was never polled; the cancellation drops it.
        let _ = executor::domain().cancel(id);
        return Err(error);
    }
    Ok(UnstartedCall(id))
}
