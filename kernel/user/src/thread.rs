//! Threads of a program: the kernel schedules them, and each has a stack of its own.
//!
//! Coroutines are cheaper; threads are for code that waits synchronously, and for additional vCPUs
//! ([`crate::cpu`]). A thread begins with the level of its creator. Starting and joining a thread
//! are two system calls. The thread's stack, above an unmapped page, is reused for later threads;
//! the size of a stack is 64 KiB, or [as set](set_stack_pages) by the program.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicUsize};

use os_abi::Error;
use os_abi::layout::PAGE;

use crate::lock::SpinLock;
use crate::sys;
use os_pages::line_index;

/// Default number of pages of a stack.
const STACK_PAGES: usize = 16;

/// Number of pages of the stacks of new threads.
static PAGES: AtomicUsize = AtomicUsize::new(STACK_PAGES);

/// Sets the number of pages of the stacks of new threads, at least one.
pub fn set_stack_pages(pages: usize) {
    PAGES.store(pages.max(1), Relaxed);
}

#[derive(Clone, Copy)]
struct Stack {
    start: usize,
    pages: usize,
}

/// Returns the index of the calling thread in the process, 0 to 63, unique among the threads that
/// have not ended.
#[must_use]
pub fn index() -> usize {
    line_index()
}

/// State that a thread and its handle share.
struct Packet<T> {
    result: SpinLock<Option<T>>,
    /// Set when the thread no longer uses its closure and result.
    ended: Arc<AtomicBool>,
}

/// Number and stack of a thread, until it is joined.
struct ThreadRecord {
    number: usize,
    stack: Stack,
    ended: Arc<AtomicBool>,
}

/// Stacks that no thread uses.
static STACKS: SpinLock<Vec<Stack>> = SpinLock::new(Vec::new());
/// Threads whose handles were dropped.
static DETACHED: SpinLock<Vec<ThreadRecord>> = SpinLock::new(Vec::new());

/// Closure that a thread starts with.
struct Start(Box<dyn FnOnce() + Send>);

extern "C" fn start(argument: *mut Start) -> ! {
    // SAFETY: `spawn` has passed this box to the thread and no longer uses it.
    let start = unsafe { Box::from_raw(argument) };
    (start.0)();
    loop {
        // The call does not return.
        let _ = sys::thread_exit(0);
    }
}

fn take_stack() -> Result<Stack, Error> {
    let pages = PAGES.load(Relaxed);
    let mut stacks = STACKS.lock();
    let free = stacks.iter().rposition(|stack| stack.pages == pages);
    if let Some(free) = free {
        return Ok(stacks.swap_remove(free));
    }
    drop(stacks);
    let start = sys::map_stack(pages)? as usize;
    Ok(Stack { start, pages })
}

impl ThreadRecord {
    /// Waits for the end of the thread, and frees its stack.
    fn join(self) -> Result<(), Error> {
        sys::thread_join(self.number)?;
        STACKS.lock().push(self.stack);
        Ok(())
    }
}

/// Joins threads that have ended and were detached.
fn join_detached() {
    loop {
        let ended = {
            let mut detached = DETACHED.lock();
            let index = detached
                .iter()
                .position(|record| record.ended.load(Acquire));
            index.map(|index| detached.swap_remove(index))
        };
        match ended {
            Some(record) => {
                let _ = record.join();
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
    join_detached();
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
            // When the thread is joined, it no longer uses the packet.
            drop(packet);
            ended.store(true, Release);
        }
    };
    let stack = take_stack()?;
    let argument = Box::into_raw(Box::new(Start(Box::new(begin))));
    let top = stack.start + stack.pages * PAGE;
    match sys::thread_create(start as *const () as usize, top, argument as usize) {
        Ok(number) => Ok(JoinHandle {
            packet,
            record: Some(ThreadRecord {
                number: number as usize,
                stack,
                ended,
            }),
        }),
        Err(error) => {
            STACKS.lock().push(stack);
            // SAFETY: the pointer comes from `Box::into_raw` above, and no thread has started with
            // it.
            drop(unsafe { Box::from_raw(argument) });
            Err(error)
        }
    }
}

/// Handle to the result of a thread. Dropping the handle detaches the thread.
pub struct JoinHandle<T> {
    packet: Arc<Packet<T>>,
    record: Option<ThreadRecord>,
}

impl<T> JoinHandle<T> {
    /// Returns the number of the thread.
    #[must_use]
    pub fn number(&self) -> usize {
        self.record.as_ref().map_or(0, |record| record.number)
    }

    /// Waits for the end of the thread; returns its result.
    ///
    /// # Errors
    /// [`Error::NoThread`] if other code has joined the thread by its number.
    pub fn join(mut self) -> Result<T, Error> {
        let record = self.record.take().ok_or(Error::NoThread)?;
        record.join()?;
        let result = self.packet.result.lock().take();
        result.ok_or(Error::NoThread)
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        if let Some(record) = self.record.take() {
            DETACHED.lock().push(record);
        }
    }
}
