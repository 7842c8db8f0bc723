//! Processes: an address space, files, and threads that run in it.
//!
//! ```text
//!            spawn, fork          take            system call `later`
//!  (archive) ──────► Thread queued ────► on a hart ─────────────────► parked
//!                     ▲  ▲                │   │                         │
//!                     │  └── preempted ───┘   │ exit, fault, killed     │ the call's
//!                     └───────────────────────┼────────── coroutine ends ┘
//!                                             ▼
//!                                           ended ── wait ──► (gone)
//! ```
//!
//! A [`Thread`] has one owner, which alone may access it: the queue of ready threads, the hart that
//! runs it, or its process while it is parked (`threads.rs`). A thread is moved, never shared, so
//! it cannot run on two harts at once.
//!
//! [`Process::end`] may be called at any time, on any hart. It removes the process's space, its
//! files and its parked threads, and cancels its calls in flight. The coroutines of these calls are
//! dropped and write to no memory, because an unfinished call finds no space. A thread that runs on
//! another hart is dropped when that hart next checks it, after an IPI.
//!
//! The part of a process that other processes access, its [`Identity`], outlives the program:
//! `exec` ends the process without a status and passes the identity to another process. The limits
//! of a process and its descendants are its [`Share`].

mod calling;
mod calls;
mod files;
mod fork;
mod identity;
mod lending;
mod load;
mod reap;
mod ring;
pub(crate) mod share;
mod status;
mod table;
mod thread;
mod threads;

pub(crate) use files::{File, MAX_PASSED};
pub(crate) use fork::{Program, ThreadImage, exec, fork};
pub(crate) use identity::CallGuard;
pub(crate) use lending::lock;
pub(crate) use share::Share;
pub(crate) use status::status;
#[cfg(feature = "selftest")]
pub(crate) use table::spawn_and_end;
pub(crate) use table::{Spawn, count, kill, spawn, wait, wait_for_end};
pub(crate) use thread::Thread;

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ops::Range;
use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize};

use os_abi::thread::{LINE_WORDS, MAX_THREADS, NUMBER};
use os_abi::{Error, layout};
use upshift_core::{Level, SpawnError};

use crate::arch::lock::IrqLock;
use crate::arch::trap::UserContext;
use crate::memory::PAGE;
use crate::memory::space::AddressSpace;
use crate::run_queue::{self, PendingLevel, QueueSlot};
use crate::waiters::wait_until;
use crate::{executor, switching};
use calls::Calls;
use files::Files;
use identity::Identity;
use lending::WaitList;
use ring::Ring;
use threads::Threads;

/// Significant bits of the status of a process.
const STATUS: isize = 0xff;
/// Size of a thread's line of words in bytes (`threads.rs`).
const LINE_BYTES: usize = 8 * LINE_WORDS;

/// Makes the remaining memory available to programs.
pub(crate) fn init() -> Result<(), SpawnError> {
    run_queue::init();
    share::init();
    reap::init()
}

/// A process, from the start of its program to its end.
pub(crate) struct Process {
    identity: Arc<Identity>,
    name: Arc<str>,
    /// Most urgent level that the threads may have.
    pub(crate) ceiling: Level,
    ended: AtomicBool,
    space: IrqLock<Option<Arc<AddressSpace>>>,
    files: IrqLock<Files>,
    threads: IrqLock<Threads>,
    /// Most urgent level that is lent to each thread, by line (`lending.rs`).
    lent: [AtomicU8; MAX_THREADS],
    /// Number of holds that keep the threads from running in user mode.
    held: AtomicUsize,
    calls: IrqLock<Calls>,
    ring: IrqLock<Ring>,
    /// Set while a user interrupt is pending.
    interrupt: AtomicBool,
    /// Level to which the next thread that becomes ready is raised (`run_queue.rs`).
    pub(crate) pending_level: PendingLevel,
    /// End of the memory that the program has mapped.
    heap_end: AtomicUsize,
    #[cfg(feature = "kernel-threads")]
    pub(crate) stacks: Arc<crate::arch::kernel_thread::Stacks>,
}

impl Process {
    fn new(
        identity: Arc<Identity>,
        name: Arc<str>,
        ceiling: Level,
        space: Arc<AddressSpace>,
        files: Files,
        heap_end: usize,
    ) -> Arc<Process> {
        #[cfg(feature = "kernel-threads")]
        let stacks_of = identity.share.clone();
        Arc::new(Process {
            identity,
            name,
            ceiling,
            ended: AtomicBool::new(false),
            space: IrqLock::new(Some(space)),
            files: IrqLock::new(files),
            threads: IrqLock::new(Threads::new()),
            lent: [const { AtomicU8::new(Level::LEAST_URGENT.get()) }; MAX_THREADS],
            held: AtomicUsize::new(0),
            calls: IrqLock::new(Calls::new()),
            ring: IrqLock::new(Ring::new()),
            interrupt: AtomicBool::new(false),
            pending_level: PendingLevel::new(),
            heap_end: AtomicUsize::new(heap_end),
            #[cfg(feature = "kernel-threads")]
            stacks: crate::arch::kernel_thread::Stacks::new(stacks_of),
        })
    }

    pub(crate) fn share(&self) -> &Arc<Share> {
        &self.identity.share
    }

    pub(crate) fn number(&self) -> usize {
        self.identity.number
    }

    /// Adds a thread with a level within the ceiling, and with the given number if there is one.
    /// Returns the thread's number and the thread, which the caller makes ready.
    ///
    /// # Errors
    /// [`Error::TooMany`] threads, of the process or of the machine; [`Error::OutOfMemory`].
    pub(crate) fn add_thread(
        self: &Arc<Process>,
        number: Option<usize>,
        mut context: UserContext,
        level: Level,
    ) -> Result<(usize, Box<Thread>), Error> {
        let queue_slot = QueueSlot::reserve(self.share())?;
        let (line, number) = {
            let mut threads = self.threads.lock();
            let (line, number) = threads.add(number)?;
            threads.set_queue_slot(line, queue_slot.index());
            self.update_loan(&mut threads, line);
            (line, number)
        };
        // Clear the words that an earlier thread may have left in the line.
        if let Ok(space) = self.space() {
            space.clear_line(line);
            space.set_line(line, NUMBER, number as u64);
        }
        context.set_thread_pointer(layout::THREADS + line * LINE_BYTES);
        let level = level.max(self.ceiling);
        let thread = Thread::new(self.clone(), (line, queue_slot), context, level);
        Ok((number, Box::new(thread)))
    }

    /// Returns the level, if a thread of the process may have it.
    ///
    /// # Errors
    /// [`Error::TooUrgent`] above the ceiling; [`Error::BadArgument`] below the levels of work.
    pub(crate) fn check_level(&self, level: Level) -> Result<Level, Error> {
        if level < self.ceiling {
            return Err(Error::TooUrgent);
        }
        if level > executor::LEAST_URGENT_WORK {
            return Err(Error::BadArgument);
        }
        Ok(level)
    }

    /// Returns whether the process has ended. Its threads must then no longer run.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended.load(SeqCst)
    }

    pub(crate) fn space(&self) -> Result<Arc<AddressSpace>, Error> {
        self.space.lock().clone().ok_or(Error::NoProcess)
    }

    pub(crate) fn file(&self, descriptor: usize) -> Result<File, Error> {
        self.files.lock().get(descriptor)
    }

    /// Assigns descriptors to files, to all or none.
    ///
    /// # Errors
    /// [`Error::TooMany`].
    pub(crate) fn add_files<const N: usize>(&self, files: [File; N]) -> Result<[usize; N], Error> {
        let mut table = self.files.lock();
        let added = table.add(self.share(), files);
        // If the process ends later, `Process::end` finds these files; if it has ended, they are
        // dropped here.
        drop(table);
        if self.is_ended() {
            self.drop_files();
        }
        added
    }

    pub(crate) fn close(&self, descriptor: usize) -> Result<(), Error> {
        let file = self.files.lock().remove(descriptor)?;
        drop(file);
        Ok(())
    }

    fn drop_files(&self) {
        let files = core::mem::replace(&mut *self.files.lock(), Files::new());
        drop(files);
    }

    /// Calls `f` with the threads, or drops the thread if the process has ended.
    fn with_thread<R>(
        &self,
        thread: Box<Thread>,
        f: impl FnOnce(&mut Threads, Box<Thread>) -> R,
    ) -> Option<R> {
        let mut threads = self.threads.lock();
        // If the process ends later, `Process::end` finds the thread that `f` stores.
        if self.is_ended() {
            drop(threads);
            drop(thread);
            return None;
        }
        Some(f(&mut threads, thread))
    }

    /// Ends the thread with a result; the process ends with its last thread.
    pub(crate) fn end_thread(&self, thread: Box<Thread>, result: isize) {
        let (line, level) = (thread.line, thread.level);
        // The drop frees the queue slot first.
        drop(thread);
        // The result of `thread_join` is never an error.
        let result = result & isize::MAX;
        let exit = self.threads.lock().end(line, result);
        exit.waiters.wake();
        if exit.is_last {
            self.end(result, level);
        }
    }

    /// Waits until a thread has ended, and lends it the level of the caller meanwhile. The number
    /// of the thread is invalid afterwards.
    ///
    /// # Errors
    /// [`Error::NoThread`].
    pub(crate) async fn join(&self, number: usize) -> Result<isize, Error> {
        let _loan = self.lend_to(number);
        wait_until(&self.threads, |threads| threads.join(number)).await
    }

    /// Reserves a range of `len` bytes, above a hole of `hole` bytes. Returns `None` if the
    /// addresses do not suffice.
    pub(crate) fn reserve_addresses(&self, hole: usize, len: usize) -> Option<Range<usize>> {
        let limit = layout::STACK_TOP - layout::STACK_SIZE - PAGE;
        let after = |start: usize| start.checked_add(hole)?.checked_add(len);
        let mut end = 0;
        self.heap_end
            .fetch_update(SeqCst, SeqCst, |start| {
                end = after(start).filter(|end| *end <= limit)?;
                Some(end)
            })
            .ok()?;
        Some(end - len..end)
    }

    /// Releases the end of a reserved range, if it is still the last range.
    pub(crate) fn release_addresses(&self, range: Range<usize>) {
        // Otherwise the addresses stay unused.
        let _ = self
            .heap_end
            .compare_exchange(range.end, range.start, SeqCst, SeqCst);
    }

    /// Ends the process with a status, unless it has ended before. `level` is the level of the
    /// caller. May be called on any hart, but not by an interrupt handler.
    pub(crate) fn end(&self, status: isize, level: Level) {
        if self.ended.swap(true, SeqCst) {
            return;
        }
        self.clear(level);
        table::release_children(self.number());
        if self.identity.owns_share {
            self.share().end(level);
        }
        // The result of `wait` is never an error.
        self.identity.set_status(status & STATUS);
        if self.identity.parent.load(SeqCst) == 0 {
            table::remove(self.number());
        }
    }

    /// Removes everything from a process that has ended.
    ///
    /// The coroutines of its calls end at a level of at least `level`, so a caller that ends a
    /// process does not wait for less urgent coroutines.
    fn clear(&self, level: Level) {
        let calls = core::mem::replace(&mut *self.calls.lock(), Calls::new());
        // The list is cleared, so that a dropped call does not search it.
        self.threads.lock().wait_list = WaitList::new();
        let domain = executor::domain();
        for call in calls.coroutines() {
            // The coroutine may have finished meanwhile.
            if domain.level(call).is_ok_and(|current| current > level) {
                let _ = domain.reprio(call, level);
            }
            let _ = domain.cancel(call);
        }
        loop {
            let waiting = self.threads.lock().take_waiting_thread();
            match waiting {
                Some(thread) => drop(thread),
                None => break,
            }
        }
        loop {
            let queue_slot = self.threads.lock().take_queue_slot();
            match queue_slot {
                Some(queue_slot) => drop(run_queue::remove(self, queue_slot)),
                None => break,
            }
        }
        switching::interrupt_programs();
        let space = self.space.lock().take();
        drop(space);
        self.drop_files();
    }
}
