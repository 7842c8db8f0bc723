//! Processes: an address space, files, a level, and a thread that runs in it.
//!
//! ```text
//!            spawn                take              system call `later`
//!  (archive) ─────► Thread queued ────► on a hart ─────────────────► parked
//!                     ▲  ▲                │   │                         │
//!                     │  └── preempted ───┘   │ exit, fault, killed     │ the call's
//!                     └───────────────────────┼───────── coroutine ends ┘
//!                                             ▼
//!                                           ended ── wait ──► (gone)
//! ```
//!
//! A [`Thread`] is owned by whoever may touch it: the queue of ready threads, the
//! hart that runs it, or its process while it is parked. It is moved, never
//! shared, so it cannot run twice.
//!
//! [`Process::end`] can come at any moment, from any hart. It takes everything
//! out of the process: its space, its files, its parked thread, and it cancels
//! the calls in flight; their coroutines are dropped and write nowhere, because a
//! call that has not finished finds no space any more. A thread that runs
//! elsewhere is dropped when its hart looks at it next, and it is sent an IPI.

mod files;
mod load;
mod ring;
mod table;
mod thread;

pub(crate) use files::{File, MAX_FILES};
pub(crate) use table::{MAX_PROCESSES, Spawn, ended, kill, living, spawn, wait};
pub(crate) use thread::Thread;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize};

use os_abi::Error;
use os_abi::shared::{ACTIVE, ENTRY_WORDS, LOCAL_BITMAP};
use upshift_core::{CoroutineId, Level};

use crate::arch::lock::IrqLock;
use crate::memory::space::{AddressSpace, SharedPage};
use crate::waiters::{Awaited, Waiters};
use crate::{executor, switching, users};
use files::Files;
use ring::{Notify, Ring};

/// Frames a process may have: 16 MiB.
const MAX_FRAMES: usize = 4096;
/// Calls a process may have in flight.
pub(crate) const MAX_CALLS: usize = 256;

/// How a process stands towards those who wait for it.
pub(crate) struct Life {
    /// The status, once it has ended.
    status: Option<isize>,
    /// Calls whose coroutines exist. It is waited for until they are gone, and
    /// with them the files they use.
    calls: usize,
    waiters: Waiters,
}

impl Awaited for Life {
    fn waiters(&mut self) -> &mut Waiters {
        &mut self.waiters
    }
}

impl Life {
    /// The status, once nothing is left of the process.
    fn over(&self) -> Option<isize> {
        self.status.filter(|_| self.calls == 0)
    }
}

/// A call in flight; dropped last of all that the call has.
pub(crate) struct Flight(Arc<Process>);

impl Flight {
    /// A call of the process begins.
    pub(crate) fn new(process: Arc<Process>) -> Flight {
        process.life.lock().calls += 1;
        Flight(process)
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let mut life = self.0.life.lock();
        life.calls -= 1;
        if life.over().is_none() {
            return;
        }
        let waiters = life.waiters.take();
        drop(life);
        waiters.wake();
    }
}

/// One process.
pub(crate) struct Process {
    /// Its number: place in the table plus a generation.
    pub(crate) number: usize,
    /// Who may wait for it; 0: nobody.
    parent: AtomicUsize,
    /// The most urgent level it may have.
    pub(crate) ceiling: Level,
    level: AtomicU8,
    ended: AtomicBool,
    life: IrqLock<Life>,
    space: IrqLock<Option<Arc<AddressSpace>>>,
    files: IrqLock<Files>,
    parked: IrqLock<Option<Box<Thread>>>,
    /// The coroutines of calls in flight.
    calls: IrqLock<Vec<CoroutineId>>,
    /// Results of asynchronous calls.
    ring: IrqLock<Ring>,
    /// A user interrupt is pending.
    interrupt: AtomicBool,
    /// The end of the memory it has asked for.
    pub(crate) heap_end: AtomicUsize,
}

impl Process {
    /// Its level.
    pub(crate) fn level(&self) -> Level {
        Level::new(self.level.load(Relaxed)).unwrap_or(Level::LEAST_URGENT)
    }

    /// Gives it another level.
    ///
    /// # Errors
    /// [`Error::TooUrgent`], above its ceiling; [`Error::BadArgument`], below what
    /// work may have.
    pub(crate) fn set_level(&self, level: Level) -> Result<(), Error> {
        if level < self.ceiling {
            return Err(Error::TooUrgent);
        }
        if level > executor::LEAST_URGENT_WORK {
            return Err(Error::BadArgument);
        }
        self.level.store(level.get(), Relaxed);
        Ok(())
    }

    /// Takes the level that the local bitmap of the program says, within its
    /// ceiling; without a ready coroutine, or without a scheduler, the level stays.
    /// True: it has changed.
    pub(crate) fn follow_bitmap(&self, page: &SharedPage) -> bool {
        let bits = page.load(LOCAL_BITMAP);
        if page.load(ACTIVE) == 0 || bits == 0 {
            return false;
        }
        self.become_level(bits.trailing_zeros() as u8)
    }

    fn become_level(&self, level: u8) -> bool {
        let least = executor::LEAST_URGENT_WORK.get();
        let level = level.clamp(self.ceiling.get(), least);
        self.level.swap(level, Relaxed) != level
    }

    /// Has it ended? Its thread must not run any more.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended.load(SeqCst)
    }

    /// Its memory.
    ///
    /// # Errors
    /// [`Error::NoProcess`]: it has ended.
    pub(crate) fn space(&self) -> Result<Arc<AddressSpace>, Error> {
        self.space.lock().clone().ok_or(Error::NoProcess)
    }

    /// A file of it.
    ///
    /// # Errors
    /// [`Error::BadFile`].
    pub(crate) fn file(&self, descriptor: usize) -> Result<File, Error> {
        self.files.lock().get(descriptor)
    }

    /// Gives files descriptors, all or none.
    ///
    /// # Errors
    /// [`Error::TooMany`].
    pub(crate) fn add_files<const N: usize>(&self, files: [File; N]) -> Result<[usize; N], Error> {
        let mut table = self.files.lock();
        let added = table.add(files);
        // An end that comes later finds them; one that came before does not.
        drop(table);
        if self.is_ended() {
            self.drop_files();
        }
        added
    }

    /// Closes a file.
    ///
    /// # Errors
    /// [`Error::BadFile`].
    pub(crate) fn close(&self, descriptor: usize) -> Result<(), Error> {
        let file = self.files.lock().remove(descriptor)?;
        drop(file);
        Ok(())
    }

    fn drop_files(&self) {
        let files = core::mem::replace(&mut *self.files.lock(), Files::new());
        drop(files);
    }

    /// Parks its thread until [`Process::resume`], or for ever if it has ended.
    pub(crate) fn park(&self, thread: Box<Thread>) {
        let mut parked = self.parked.lock();
        if self.is_ended() {
            drop(parked);
            drop(thread);
            return;
        }
        *parked = Some(thread);
    }

    /// Lets the parked thread go on with the result of its call.
    pub(crate) fn resume(&self, result: isize) {
        let thread = self.parked.lock().take();
        if let Some(mut thread) = thread {
            thread.context.set_argument(0, result as usize);
            users::push_back(thread);
        }
    }

    /// Notes the coroutine of a call, so that it ends with the process.
    ///
    /// # Errors
    /// [`Error::TooMany`] calls in flight, [`Error::OutOfMemory`],
    /// [`Error::NoProcess`]: it has ended.
    pub(crate) fn begin_call(&self, call: CoroutineId) -> Result<(), Error> {
        let mut calls = self.calls.lock();
        if self.is_ended() {
            return Err(Error::NoProcess);
        }
        if calls.len() >= MAX_CALLS {
            return Err(Error::TooMany);
        }
        calls.try_reserve(1).map_err(|_| Error::OutOfMemory)?;
        calls.push(call);
        Ok(())
    }

    /// The call is over. O(calls in flight).
    pub(crate) fn end_call(&self, call: CoroutineId) {
        let mut calls = self.calls.lock();
        if let Some(at) = calls.iter().position(|known| *known == call) {
            calls.swap_remove(at);
        }
    }

    /// Reserves a place for the result of an asynchronous call.
    ///
    /// # Errors
    /// [`Error::TooMany`], [`Error::NoProcess`]: it has ended.
    pub(crate) fn reserve_completion(&self) -> Result<(), Error> {
        let space = self.space()?;
        self.ring.lock().reserve(space.shared())
    }

    /// The asynchronous call was not made.
    pub(crate) fn release_completion(&self) {
        self.ring.lock().release();
    }

    /// Hands the result of an asynchronous call to the program, which becomes at
    /// least as urgent as the call was.
    pub(crate) fn complete(&self, entry: [u64; ENTRY_WORDS], level: Level) {
        let Ok(space) = self.space() else {
            return;
        };
        let notify = self.ring.lock().complete(space.shared(), entry);
        match notify {
            Notify::Nothing => {}
            Notify::Resume => {
                // It had nothing to do before.
                self.become_level(level.get());
                self.resume(0);
            }
            Notify::Interrupt => {
                self.interrupt.store(true, SeqCst);
                users::notify(self, level);
            }
        }
    }

    /// Parks the thread until there is a completion. `Some`: there is one.
    ///
    /// # Errors
    /// [`Error::NoProcess`]: it has ended.
    pub(crate) fn wait_completion(
        &self,
        thread: Box<Thread>,
    ) -> Result<Option<Box<Thread>>, Error> {
        let space = self.space()?;
        // The lock is held until the thread is parked, so that a completion that
        // comes now finds it.
        let mut ring = self.ring.lock();
        if !ring.wait(space.shared()) {
            return Ok(Some(thread));
        }
        self.park(thread);
        Ok(None)
    }

    /// Is a user interrupt pending? It is not any more.
    fn take_interrupt(&self) -> bool {
        self.interrupt.load(Relaxed) && self.interrupt.swap(false, SeqCst)
    }

    /// Ends the process with a status, unless it has ended before. From any hart;
    /// not from an interrupt handler.
    pub(crate) fn end(&self, status: isize) {
        if self.ended.swap(true, SeqCst) {
            return;
        }
        let calls = core::mem::take(&mut *self.calls.lock());
        for call in calls {
            // It may have finished meanwhile.
            let _ = executor::domain().cancel(call);
        }
        let parked = self.parked.lock().take();
        drop(parked);
        users::remove(self.number);
        switching::interrupt_programs();
        let space = self.space.lock().take();
        drop(space);
        self.drop_files();
        table::release_children(self.number);
        let waiters = {
            let mut life = self.life.lock();
            life.status = Some(status);
            life.waiters.take()
        };
        waiters.wake();
        if self.parent.load(SeqCst) == 0 {
            table::forget(self.number);
        }
    }
}
