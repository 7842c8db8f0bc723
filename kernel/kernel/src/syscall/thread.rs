//! The calls that are about the calling thread itself.

use alloc::boxed::Box;

use os_abi::{Error, number};

use super::later::Begin;
use super::{After, Form, now};
use crate::process::{self, Seed, Thread};
use crate::users;

type Arguments = [usize; 6];

/// Parks the thread until the completion ring has something, or until `unpark`.
pub(super) fn park(thread: Box<Thread>, _: Arguments) -> After {
    let process = thread.process.clone();
    match process.park(thread) {
        Ok(Some(thread)) => Some((thread, Ok(0))),
        // It is parked, or its process has ended.
        Ok(None) | Err(_) => None,
    }
}

/// Ends the thread.
pub(super) fn thread_exit(thread: Box<Thread>, [result, ..]: Arguments) -> After {
    let process = thread.process.clone();
    process.end_thread(thread, result as isize);
    None
}

/// Ends the handler of a user interrupt.
pub(super) fn return_from_interrupt(mut thread: Box<Thread>, _: Arguments) -> After {
    if !thread.return_from_interrupt() {
        return Some((thread, Err(Error::BadArgument)));
    }
    // The register of the answer is one of those that were restored.
    let same = thread.context.argument(0) as isize;
    Some((thread, Ok(same)))
}

/// Copies the process.
pub(super) fn fork(thread: Box<Thread>, _: Arguments) -> After {
    let (process, seed) = (thread.process.clone(), Seed::new(&thread));
    super::start(thread, Form::Synchronous, number::fork, |_| {
        Begin::Waits(process::fork(process, seed))
    })
}

/// Takes a lock that lends. Only a thread can have one, so there is no asynchronous form.
pub(super) fn futex_lock(thread: Box<Thread>, [address, ..]: Arguments) -> After {
    let (process, line) = (thread.process.clone(), thread.line);
    super::start(thread, Form::Synchronous, number::futex_lock, |_| {
        Begin::Waits(process::lock(process, line, address))
    })
}

/// Replaces the program.
pub(super) fn exec(thread: Box<Thread>, arguments: Arguments) -> After {
    let first = now::program(&thread, arguments)
        .and_then(|(name, argument)| process::exec(&thread, &name, &argument));
    match first {
        Ok(first) => {
            drop(thread);
            users::push_back(first);
            None
        }
        Err(error) => Some((thread, Err(error))),
    }
}
