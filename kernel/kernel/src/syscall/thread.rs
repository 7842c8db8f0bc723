//! System calls that affect the calling thread itself.

use alloc::boxed::Box;

use os_abi::{Error, number};

use super::later::CallStart;
use super::{Form, SyscallReturn, now};
use crate::process::{self, Program, Thread, ThreadImage};
use crate::{archive, executor, run_queue, storage};

type Arguments = [usize; 6];

/// Parks the thread until a completion arrives, or until `unpark`.
pub(super) fn park(thread: Box<Thread>, _: Arguments) -> SyscallReturn {
    let process = thread.process.clone();
    match process.park(thread) {
        Ok(Some(thread)) => Some((thread, Ok(0))),
        // The thread is parked, or its process has ended.
        Ok(None) | Err(_) => None,
    }
}

pub(super) fn thread_exit(thread: Box<Thread>, [result, ..]: Arguments) -> SyscallReturn {
    let process = thread.process.clone();
    process.end_thread(thread, result as isize);
    None
}

/// Ends the handler of a user interrupt.
pub(super) fn return_from_interrupt(mut thread: Box<Thread>, _: Arguments) -> SyscallReturn {
    if !thread.return_from_interrupt() {
        return Some((thread, Err(Error::BadArgument)));
    }
    // Keep the restored value of the answer register.
    let same = thread.context.argument(0) as isize;
    Some((thread, Ok(same)))
}

pub(super) fn fork(thread: Box<Thread>, _: Arguments) -> SyscallReturn {
    let (process, image) = (thread.process.clone(), ThreadImage::new(&thread));
    super::start(thread, Form::Synchronous, number::fork, |_| {
        CallStart::Pending(process::fork(process, image))
    })
}

/// Acquires a lock whose waiters lend their level to its holder. Only a thread can hold such a
/// lock, so there is no asynchronous form.
pub(super) fn futex_lock(thread: Box<Thread>, [address, ..]: Arguments) -> SyscallReturn {
    let (process, line) = (thread.process.clone(), thread.line);
    super::start(thread, Form::Synchronous, number::futex_lock, |_| {
        CallStart::Pending(process::lock(process, line, address))
    })
}

/// Replaces the program: by a program of the archive at once, by a file of the disk when it has
/// been read.
pub(super) fn exec(thread: Box<Thread>, arguments: Arguments) -> SyscallReturn {
    let (name, argument) = match now::exec_arguments(&thread, arguments) {
        Ok(arguments) => arguments,
        Err(error) => return Some((thread, Err(error))),
    };
    let (process, own_level) = (thread.process.clone(), thread.own_level);
    if let Some(bytes) = archive::find(&name) {
        let program = Program {
            name: &name,
            bytes,
            argument: &argument,
        };
        return match process::exec(&process, &program, own_level, thread.level) {
            Ok(first) => {
                drop(thread);
                run_queue::push_back(first);
                None
            }
            Err(error) => Some((thread, Err(error))),
        };
    }
    super::start(thread, Form::Synchronous, number::exec, |_| {
        CallStart::Pending(async move {
            let (bytes, _charge) = storage::load(name.as_bytes(), process.share()).await?;
            let program = Program {
                name: &name,
                bytes: &bytes,
                argument: &argument,
            };
            let first = process::exec(&process, &program, own_level, executor::level())?;
            run_queue::push_back(first);
            // The answer has no recipient, because the calling thread has ended.
            Ok(0)
        })
    })
}
