//! Implements `fork` and `exec`.
//!
//! *Fork* copies the memory and the descriptors of a process; the child has only a copy of the
//! calling thread. Calls in flight, and completions that were not read, stay with the parent.
//!
//! So that the copy is consistent, the other threads are *held* meanwhile, which means that none
//! runs in user mode and none is inside a critical section (`os_abi::thread`). So no operation on
//! the scheduler's data or on the heap is incomplete. A thread inside a critical section continues
//! until it has left the section; if it does not leave in time, `fork` fails. Any other unfinished
//! work of a thread, such as a poll, is never finished in the child.
//!
//! *Exec* creates another process with the same [`Identity`](super::Identity) and the files of the
//! old process. The old process then ends without an exit status.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::Ordering::SeqCst;

use os_abi::shared::{DRAINING, RING_HEAD, RING_TAIL};
use os_abi::thread::CRITICAL;
use os_abi::{Error, ProcessInfo, layout};
use upshift_core::Level;

use super::files::Files;
use super::table::{self, Reserved};
use super::{Identity, Process, Share, Thread, load};
use crate::arch::trap::{Interrupted, UserContext};
use crate::memory::pagetable::Mapping;
use crate::memory::space::AddressSpace;
use crate::memory::user::UserSlice;
use crate::sleep::sleep_until;
use crate::{clock, executor, memory, run_queue, switching};

/// Time limit for the other threads to leave their critical sections.
const QUIESCE_MICROS: u64 = 500_000;
/// Interval at which the other threads are checked.
const POLL_MICROS: u64 = 50;
/// Number of pages that are copied between two yields.
const PAGES_AT_ONCE: usize = 16;

/// Copy of a thread, from which `fork` creates the thread of the child.
pub(crate) struct ThreadImage {
    line: usize,
    number: usize,
    level: Level,
    context: UserContext,
    interrupted: Option<Box<Interrupted>>,
}

impl ThreadImage {
    /// Copies a thread; the result of the call in the copy is 0.
    pub(crate) fn new(thread: &Thread) -> ThreadImage {
        let mut context = thread.context.clone();
        context.set_argument(0, 0);
        ThreadImage {
            line: thread.line,
            number: thread.process.threads.lock().number(thread.line),
            level: thread.own_level,
            context,
            interrupted: thread.interrupted.clone(),
        }
    }
}

/// Keeps the other threads of a process from running in user mode, until it is dropped.
struct Hold(Arc<Process>);

impl Hold {
    fn new(process: Arc<Process>) -> Hold {
        process.held.fetch_add(1, SeqCst);
        switching::interrupt_programs();
        Hold(process)
    }

    /// Waits until no thread changes the memory of the process.
    async fn quiesce(&self, space: &AddressSpace) -> Result<(), Error> {
        let limit = clock::now() + clock::from_micros(QUIESCE_MICROS);
        while run_queue::runs(&self.0) || self.0.is_any_critical(space) {
            if clock::now() > limit {
                return Err(Error::Busy);
            }
            switching::interrupt_programs();
            sleep_until(clock::now() + clock::from_micros(POLL_MICROS)).await;
        }
        Ok(())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, SeqCst);
        self.0.release_held();
    }
}

impl Process {
    /// Returns whether the threads of the process are kept from running in user mode.
    pub(crate) fn is_held(&self) -> bool {
        self.held.load(SeqCst) != 0
    }

    fn is_any_critical(&self, space: &AddressSpace) -> bool {
        let threads = self.threads.lock();
        let mut lines = threads.lines();
        lines.any(|line| space.line(line, CRITICAL) != 0)
    }

    /// Parks a thread until the process is no longer held.
    pub(crate) fn hold(&self, thread: Box<Thread>) {
        self.with_thread(thread, |threads, thread| threads.hold(thread));
        // The process may have been released before the thread was parked.
        self.release_held();
    }

    fn release_held(&self) {
        loop {
            let held = {
                let mut threads = self.threads.lock();
                if self.is_held() {
                    return;
                }
                threads.take_held()
            };
            match held {
                Some(thread) => run_queue::push_back(thread),
                None => return,
            }
        }
    }
}

/// Creates a child that is a copy of the process, with one thread; returns its number.
///
/// # Errors
/// [`Error::TooMany`] processes or threads; [`Error::OutOfMemory`]; [`Error::Busy`] if other
/// threads of the process do not leave their critical sections.
pub(crate) async fn fork(parent: Arc<Process>, image: ThreadImage) -> Result<isize, Error> {
    if memory::is_short() {
        return Err(Error::OutOfMemory);
    }
    let reserved = Reserved::new(parent.share())?;
    let number = reserved.number();
    let from = parent.space()?;
    let (space, files, heap_end) = {
        let hold = Hold::new(parent.clone());
        hold.quiesce(&from).await?;
        let space = Arc::new(copy(&from, number, parent.share()).await?);
        let files = parent.files.lock().copy(parent.share())?;
        (space, files, parent.heap_end.load(SeqCst))
    };
    let identity = Identity::new(number, parent.number(), parent.share().clone(), false);
    let name = parent.name.clone();
    let child = Process::new(
        identity,
        name,
        parent.ceiling,
        space.clone(),
        files,
        heap_end,
    );
    let (_, mut thread) = child.add_thread(Some(image.number), image.context, image.level)?;
    // The calling thread, which has waited all the time, continues unchanged in the child.
    space.copy_line(&from, image.line);
    thread.interrupted = image.interrupted;
    reserved.fill(child);
    run_queue::push_back(thread);
    Ok(number as isize)
}

async fn copy(
    from: &AddressSpace,
    number: usize,
    share: &Arc<Share>,
) -> Result<AddressSpace, Error> {
    let out_of_memory = |_| Error::OutOfMemory;
    let space = AddressSpace::new(share).map_err(out_of_memory)?;
    let mut info = [0; size_of::<ProcessInfo>()];
    from.read(UserSlice::new(layout::INFO, info.len())?, &mut info)?;
    let offset = core::mem::offset_of!(ProcessInfo, process);
    info[offset..offset + 8].copy_from_slice(&(number as u64).to_le_bytes());
    space
        .map_page(layout::INFO, &info, Mapping::USER_CONSTANTS)
        .map_err(out_of_memory)?;
    let mut next = Some(0);
    while let Some(page) = next {
        next = space
            .copy_pages(from, page, PAGES_AT_ONCE)
            .map_err(out_of_memory)?;
        executor::yield_now().await;
    }
    space.copy_shared(from);
    // The child's ring is empty.
    for word in [RING_HEAD, RING_TAIL, DRAINING] {
        space.shared().store(word, 0);
    }
    Ok(space)
}

pub(crate) struct Program<'a> {
    pub(crate) name: &'a str,
    pub(crate) bytes: &'a [u8],
    pub(crate) argument: &'a [u8],
}

/// Replaces the program of a process by another. Returns the thread that runs the new program, at
/// level `own_level`; the caller makes it ready and drops the calling thread. `level` is the level
/// of the caller. No thread of the old program runs afterwards.
///
/// # Errors
/// [`Error::BadProgram`], [`Error::OutOfMemory`], [`Error::TooMany`] threads: the process is
/// unchanged. [`Error::NoProcess`]: the process has ended.
pub(crate) fn exec(
    old: &Arc<Process>,
    program: &Program<'_>,
    own_level: Level,
    level: Level,
) -> Result<Box<Thread>, Error> {
    let number = old.number() as u64;
    let Program {
        name,
        bytes,
        argument,
    } = *program;
    let (space, context) = load::load(bytes, number, own_level, argument, old.share())?;
    let (identity, name) = (old.identity.clone(), name.into());
    let new = Process::new(
        identity,
        name,
        old.ceiling,
        space,
        Files::new(),
        layout::HEAP,
    );
    let (_, first) = new.add_thread(None, context, own_level)?;
    if !table::replace(old, &new) {
        new.ended.store(true, SeqCst);
        new.clear(level);
        return Err(Error::NoProcess);
    }
    // From now on `Process::end` of `new` ends the process.
    *new.files.lock() = core::mem::replace(&mut *old.files.lock(), Files::new());
    if new.is_ended() {
        new.drop_files();
    }
    old.clear(level);
    Ok(first)
}
