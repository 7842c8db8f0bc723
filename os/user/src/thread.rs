//! Threads of a program: what the kernel schedules, each with a stack of its own.
//!
//! Coroutines are cheaper; threads are for code that waits synchronously, and for
//! further vCPUs ([`crate::cpu`]). A thread begins with the level of the one that has
//! started it. Starting and joining one are two system calls; its stack, 64 KiB
//! above an unmapped page, is used again by later ones.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Release};

use os_abi::Error;
use os_abi::layout::PAGE;

use crate::lock::SpinLock;
use crate::sys;
use os_pages::line_index;

/// Pages of a stack.
const STACK_PAGES: usize = 16;

/// The index of the calling thread among those of the process, 0 to 63. No other thread
/// has it meanwhile.
#[must_use]
pub fn index() -> usize {
    line_index()
}

/// What a thread and its handle share.
struct Packet<T> {
    result: SpinLock<Option<T>>,
    /// It is about to end.
    ended: Arc<AtomicBool>,
}

/// A thread that is there, or was: its number and stack.
struct Body {
    number: usize,
    stack: usize,
    ended: Arc<AtomicBool>,
}

/// Stacks that nobody uses.
static STACKS: SpinLock<Vec<usize>> = SpinLock::new(Vec::new());
/// Threads whose handles were dropped.
static LEFT: SpinLock<Vec<Body>> = SpinLock::new(Vec::new());

/// What a thread starts with.
struct Start(Box<dyn FnOnce() + Send>);

extern "C" fn start(argument: *mut Start) -> ! {
    // SAFETY: the box that `spawn` gave away.
    let start = unsafe { Box::from_raw(argument) };
    (start.0)();
    loop {
        // It does not come back.
        let _ = sys::thread_exit(0);
    }
}

fn take_stack() -> Result<usize, Error> {
    let free = STACKS.lock().pop();
    match free {
        Some(stack) => Ok(stack),
        None => Ok(sys::map_stack(STACK_PAGES)? as usize),
    }
}

impl Body {
    /// Waits for the end and lets others use the stack.
    fn join(self) -> Result<(), Error> {
        sys::thread_join(self.number)?;
        STACKS.lock().push(self.stack);
        Ok(())
    }
}

/// Joins what has ended and was let go.
fn clear_left() {
    loop {
        let ended = {
            let mut left = LEFT.lock();
            let at = left.iter().position(|body| body.ended.load(Acquire));
            at.map(|at| left.swap_remove(at))
        };
        match ended {
            Some(body) => {
                let _ = body.join();
            }
            None => return,
        }
    }
}

/// Starts a thread.
///
/// # Errors
/// [`Error::TooMany`] threads, [`Error::OutOfMemory`].
pub fn spawn<F, T>(f: F) -> Result<JoinHandle<T>, Error>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    clear_left();
    let ended = Arc::new(AtomicBool::new(false));
    let packet = Arc::new(Packet {
        result: SpinLock::new(None),
        ended: ended.clone(),
    });
    let begin = {
        let packet = packet.clone();
        move || {
            let result = f();
            *packet.result.lock() = Some(result);
            let ended = packet.ended.clone();
            // Nothing of it is in use when it is joined.
            drop(packet);
            ended.store(true, Release);
        }
    };
    let stack = take_stack()?;
    let argument = Box::into_raw(Box::new(Start(Box::new(begin))));
    let top = stack + STACK_PAGES * PAGE;
    match sys::thread_create(start as *const () as usize, top, argument as usize) {
        Ok(number) => Ok(JoinHandle {
            packet,
            body: Some(Body {
                number: number as usize,
                stack,
                ended,
            }),
        }),
        Err(error) => {
            STACKS.lock().push(stack);
            // SAFETY: the box of a few lines ago; no thread has it.
            drop(unsafe { Box::from_raw(argument) });
            Err(error)
        }
    }
}

/// The result of a thread. Dropping it lets the thread go.
pub struct JoinHandle<T> {
    packet: Arc<Packet<T>>,
    body: Option<Body>,
}

impl<T> JoinHandle<T> {
    /// The number of the thread.
    #[must_use]
    pub fn number(&self) -> usize {
        self.body.as_ref().map_or(0, |body| body.number)
    }

    /// Waits for the end of the thread; returns its result.
    ///
    /// # Errors
    /// [`Error::NoThread`]: it was joined behind this handle's back.
    pub fn join(mut self) -> Result<T, Error> {
        let body = self.body.take().ok_or(Error::NoThread)?;
        body.join()?;
        let result = self.packet.result.lock().take();
        result.ok_or(Error::NoThread)
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        if let Some(body) = self.body.take() {
            LEFT.lock().push(body);
        }
    }
}
