//! System calls: from the table to the kernel's functions.
//!
//! `now` calls are answered before the thread goes on. A `later` call becomes a
//! kernel coroutine with the level of the caller; the thread is parked, and the
//! coroutine's end lets it go on. The dispatch is generated from the table in
//! `os_abi`; a call that is in the table and not here does not compile.

mod later;
mod now;

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::future::Future;

use os_abi::{Error, number, system_calls};
use upshift_core::{Kind, Priority, SpawnOptions};

use crate::executor;
use crate::process::{Process, Thread};

/// The result of a call, as a word.
type Answer = Result<isize, Error>;

fn word(answer: Answer) -> isize {
    answer.unwrap_or_else(Error::code)
}

/// Does what the thread asks for. `None`: it is parked, or has ended.
pub(crate) fn dispatch(thread: Box<Thread>) -> Option<Box<Thread>> {
    let arguments = core::array::from_fn(|n| thread.context.argument(n));
    let call = thread.context.argument(7);
    route(thread, call, arguments).map(|(mut thread, answer)| {
        thread.context.set_argument(0, word(answer) as usize);
        thread
    })
}

macro_rules! routes {
    ($($(#[$doc:meta])* $number:literal $kind:ident $name:ident($($argument:ident),*);)*) => {
        fn route(
            mut thread: Box<Thread>,
            call: usize,
            arguments: [usize; 6],
        ) -> Option<(Box<Thread>, Answer)> {
            match call {
                $(number::$name => routes!(@$kind $name thread arguments),)*
                _ => Some((thread, Err(Error::NoSuchCall))),
            }
        }
    };
    (@now $name:ident $thread:ident $arguments:ident) => {{
        let answer = now::$name(&mut $thread, $arguments);
        Some(($thread, answer))
    }};
    (@later $name:ident $thread:ident $arguments:ident) => {{
        let process = $thread.process.clone();
        start($thread, later::$name(process, $arguments))
    }};
}

system_calls!(routes);

/// Starts the coroutine of a call, with the level of the caller, and parks the
/// thread. If it cannot be started the thread goes on with the error.
fn start(
    thread: Box<Thread>,
    call: impl Future<Output = Answer> + Send + 'static,
) -> Option<(Box<Thread>, Answer)> {
    let process = thread.process.clone();
    let options = SpawnOptions {
        priority: Priority::At(process.level()),
        kind: Kind::Completion,
        // It must find the thread parked.
        start: false,
    };
    let finish = finish(process.clone(), call);
    let id = match executor::spawn(finish, options) {
        Ok(handle) => handle.id(),
        Err(_) => return Some((thread, Err(Error::OutOfMemory))),
    };
    if let Err(error) = process.begin_call(id) {
        // It was never polled; this drops it.
        let _ = executor::domain().cancel(id);
        return Some((thread, Err(error)));
    }
    process.park(thread);
    // Dead if the process has ended meanwhile, from another hart.
    let _ = executor::domain().wake(id);
    None
}

async fn finish(process: Arc<Process>, call: impl Future<Output = Answer>) {
    let answer = call.await;
    if let Some(id) = executor::domain().current_id() {
        process.end_call(id);
    }
    process.resume(word(answer));
}
