//! The calls that are about the calling thread itself.

use alloc::boxed::Box;

use os_abi::{Error, number};

use super::later::Begin;
use super::{After, Form, now};
use crate::process::{self, Program, Seed, Thread};
use crate::{archive, executor, storage, users};

type Arguments = [usize; 6];

/// Parks the thread until the completion ring has something, or until `unpark`.
pub(super) fn park(thread: Box<Thread>, _: Arguments) -> After {
    let process = thread.process.clone();
    match process.park(thread) {
        Ok(Some(thread)) => Some((thread, Ok(0))),
        // The thread is parked, or its process has ended.
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
    // The register of the answer is one of the restored registers.
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

/// Replaces the program: by one of the archive at once, by a file of the disk when it is read.
pub(super) fn exec(thread: Box<Thread>, arguments: Arguments) -> After {
    let (name, argument) = match now::program_of(&thread, arguments) {
        Ok(both) => both,
        Err(error) => return Some((thread, Err(error))),
    };
    let (process, own) = (thread.process.clone(), thread.own);
    if let Some(bytes) = archive::find(&name) {
        let program = Program {
            name: &name,
            bytes,
            argument: &argument,
        };
        return match process::exec(&process, &program, own, thread.level) {
            Ok(first) => {
                drop(thread);
                users::push_back(first);
                None
            }
            Err(error) => Some((thread, Err(error))),
        };
    }
    super::start(thread, Form::Synchronous, number::exec, |_| {
        Begin::Waits(async move {
            let (bytes, _taken) = storage::load(name.as_bytes(), process.share()).await?;
            let program = Program {
                name: &name,
                bytes: &bytes,
                argument: &argument,
            };
            let first = process::exec(&process, &program, own, executor::level())?;
            users::push_back(first);
            // Nothing gets the answer: the thread that called is gone.
            Ok(0)
        })
    })
}
