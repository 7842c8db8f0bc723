//! The table of processes, by number. Starts processes, waits for children, and ends them.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::SeqCst;

use os_abi::number::KILLED;
use os_abi::{Error, layout};
use upshift_core::Level;

use super::files::{File, Files};
use super::share::{Charge, Resource};
use super::{Identity, Process, Share, load};
use crate::arch::lock::IrqLock;
use crate::arch::trap::UserContext;
use crate::waiters::wait_until;
use crate::{executor, run_queue};

/// Number of slots: the maximum number of processes.
pub(super) const MAX_PROCESSES: usize = 256;

enum SlotState {
    Free,
    Reserved,
    Occupied(Arc<Process>),
}

struct ProcessSlot {
    state: SlotState,
    /// Number of the process, or of the last process, in this slot.
    number: usize,
    /// Charge for the process to its share.
    charge: Option<Charge>,
}

static TABLE: IrqLock<[ProcessSlot; MAX_PROCESSES]> = IrqLock::new(
    [const {
        ProcessSlot {
            state: SlotState::Free,
            number: 0,
            charge: None,
        }
    }; MAX_PROCESSES],
);

pub(crate) fn find(number: usize) -> Option<Arc<Process>> {
    match &TABLE.lock()[number % MAX_PROCESSES].state {
        SlotState::Occupied(process) if process.number() == number => Some(process.clone()),
        _ => None,
    }
}

/// Returns the first process whose slot is not below `from`, and its slot.
pub(super) fn from_slot(from: usize) -> Option<(usize, Arc<Process>)> {
    let table = TABLE.lock();
    let mut slots = table.iter().enumerate().skip(from);
    slots.find_map(|(index, slot)| match &slot.state {
        SlotState::Occupied(process) => Some((index, process.clone())),
        _ => None,
    })
}

/// Returns the number of slots in use: for processes that run, that are being created, or that have
/// ended and not been waited for.
pub(crate) fn count() -> usize {
    let table = TABLE.lock();
    let is_in_use = |slot: &&ProcessSlot| !matches!(slot.state, SlotState::Free);
    table.iter().filter(is_in_use).count()
}

pub(crate) struct Spawn<'a> {
    pub(crate) name: &'a str,
    pub(crate) program: &'a [u8],
    pub(crate) argument: &'a [u8],
    /// Descriptors 0, 1, … of the process.
    pub(crate) files: Vec<File>,
    pub(crate) level: Level,
    /// Most urgent level that the process may have.
    pub(crate) ceiling: Level,
    /// Number of the process that may wait for this one, or 0 if there is none.
    pub(crate) parent: usize,
    /// Share that contains the process's share.
    pub(crate) share: Arc<Share>,
    /// Binary logarithm of the ratio of the two shares. With 0 the process has no share of its own,
    /// but is in `share` itself.
    pub(crate) halvings: u32,
}

/// Starts a program; returns its process.
///
/// # Errors
/// [`Error::BadProgram`], [`Error::TooMany`] processes or threads, in the machine or in the share,
/// [`Error::OutOfMemory`].
pub(crate) fn spawn(spawn: Spawn<'_>) -> Result<Arc<Process>, Error> {
    let share = spawn.share.child(spawn.halvings);
    let reserved = Reserved::new(&share)?;
    let level = spawn.level.max(spawn.ceiling);
    let (process, context) = create(reserved.number(), share, spawn)?;
    let (_, thread) = process.add_thread(None, context, level)?;
    reserved.fill(process.clone());
    run_queue::push_back(thread);
    Ok(process)
}

/// A reserved slot of the table, freed on drop.
pub(super) struct Reserved(usize);

impl Reserved {
    /// Takes a free slot and assigns its next number, which is not 0 and was never used before. The
    /// number modulo [`MAX_PROCESSES`] is the index of the slot.
    ///
    /// # Errors
    /// [`Error::TooMany`].
    pub(super) fn new(share: &Arc<Share>) -> Result<Reserved, Error> {
        let charge = share.charge(Resource::Processes, 1)?;
        let mut table = TABLE.lock();
        let is_free = |(_, slot): &(usize, &mut ProcessSlot)| matches!(slot.state, SlotState::Free);
        let free_slot = table.iter_mut().enumerate().find(is_free);
        let (index, slot) = free_slot.ok_or(Error::TooMany)?;
        slot.number = slot.number.max(index) + MAX_PROCESSES;
        slot.state = SlotState::Reserved;
        slot.charge = Some(charge);
        Ok(Reserved(slot.number))
    }

    pub(super) fn number(&self) -> usize {
        self.0
    }

    /// Inserts the process, whose thread has not started, into the slot.
    pub(super) fn fill(self, process: Arc<Process>) {
        self.insert(&process);
        check_inserted(&process);
    }

    fn insert(self, process: &Arc<Process>) {
        let number = self.0;
        core::mem::forget(self);
        process.identity.count_as_live();
        TABLE.lock()[number % MAX_PROCESSES].state = SlotState::Occupied(process.clone());
    }
}

/// Checks a process that has just entered the table: makes it an orphan if its parent has ended,
/// and ends it if its share has ended, that is, if the process that was created with this share has
/// ended.
fn check_inserted(process: &Process) {
    let identity = &process.identity;
    let parent = identity.parent.load(SeqCst);
    // If the parent ends later, `release_children` finds this process in the table.
    if parent != 0 && find(parent).is_none_or(|parent| parent.is_ended()) {
        orphan(identity);
    }
    // The reaper may have searched before the process entered the table: see `reap`.
    if process.share().has_ended() {
        process.end(KILLED, executor::level());
    }
}

/// Makes a process an orphan, for which no parent waits.
fn orphan(identity: &Identity) {
    identity.parent.store(0, SeqCst);
    // Either `Process::end` sees that there is no parent and removes the process, or the status is
    // already set here.
    if identity.exit_state.lock().status.is_some() {
        remove(identity.number);
    }
}

/// Simulates a process that ends (for example, killed by the reaper) after its parent has ended,
/// but before [`check_inserted`] makes it an orphan.
#[cfg(feature = "selftest")]
pub(crate) fn spawn_and_end(spawn: Spawn<'_>) -> Result<(), Error> {
    let share = spawn.share.child(spawn.halvings);
    let reserved = Reserved::new(&share)?;
    let (process, _) = create(reserved.number(), share, spawn)?;
    reserved.insert(&process);
    process.end(KILLED, executor::level());
    check_inserted(&process);
    Ok(())
}

impl Drop for Reserved {
    fn drop(&mut self) {
        remove(self.0);
    }
}

/// Replaces the process `old` in its slot by `new`, which runs another program under the same
/// number. `old` ends without an exit status, so no waiter is woken. Returns false if `old` has
/// already ended.
pub(super) fn replace(old: &Arc<Process>, new: &Arc<Process>) -> bool {
    let mut table = TABLE.lock();
    let state = &mut table[old.number() % MAX_PROCESSES].state;
    let is_old = matches!(state, SlotState::Occupied(process) if Arc::ptr_eq(process, old));
    if !is_old || old.ended.swap(true, SeqCst) {
        return false;
    }
    let replaced = core::mem::replace(state, SlotState::Occupied(new.clone()));
    drop(table);
    drop(replaced);
    true
}

/// Removes a process from the table. Its number is invalid afterwards.
pub(super) fn remove(number: usize) {
    let mut table = TABLE.lock();
    let slot = &mut table[number % MAX_PROCESSES];
    // Several callers may remove the same process, so the slot may already belong to another
    // process.
    if slot.number != number {
        return;
    }
    let removed = (
        core::mem::replace(&mut slot.state, SlotState::Free),
        slot.charge.take(),
    );
    // The lock is released first, because the drop frees memory.
    drop(table);
    drop(removed);
}

/// Makes the children of an ended process orphans.
pub(super) fn release_children(number: usize) {
    for index in 0..MAX_PROCESSES {
        let child = match &TABLE.lock()[index].state {
            SlotState::Occupied(child) if child.identity.parent.load(SeqCst) == number => {
                child.identity.clone()
            }
            _ => continue,
        };
        orphan(&child);
    }
}

/// Waits until a child has ended; returns its status. The number of the child is invalid
/// afterwards.
///
/// # Errors
/// [`Error::NoProcess`] if `number` is not a child of `parent`.
pub(crate) async fn wait(parent: usize, number: usize) -> Result<isize, Error> {
    let child = child(parent, number)?;
    let status = wait_for_end(&child).await;
    remove(number);
    Ok(status)
}

/// Waits until a process has ended and none of its system calls is still running. If the process
/// was created with a share, waits also until the share is empty. Returns the status.
pub(crate) async fn wait_for_end(process: &Process) -> isize {
    let identity = &process.identity;
    let status = wait_for_status(identity).await;
    if identity.owns_share {
        identity.share.wait_until_empty().await;
    }
    status
}

async fn wait_for_status(identity: &Identity) -> isize {
    wait_until(&identity.exit_state, |exit_state| exit_state.final_status()).await
}

/// Returns a process that has not ended although its share has ended.
pub(super) fn find_unreaped() -> Option<Arc<Process>> {
    let table = TABLE.lock();
    table.iter().find_map(|slot| match &slot.state {
        SlotState::Occupied(process) if !process.is_ended() && process.share().has_ended() => {
            Some(process.clone())
        }
        _ => None,
    })
}

/// Ends a child. `level` is the level of the caller.
///
/// # Errors
/// [`Error::NoProcess`] if `number` is not a child of `parent`.
pub(crate) fn kill(parent: usize, number: usize, level: Level) -> Result<(), Error> {
    loop {
        let process = child(parent, number)?;
        process.end(KILLED, level);
        let has_ended = process.identity.exit_state.lock().status.is_some();
        if has_ended {
            return Ok(());
        }
        // Another hart is ending the process, or has replaced its program.
        core::hint::spin_loop();
    }
}

fn child(parent: usize, number: usize) -> Result<Arc<Process>, Error> {
    let process = find(number).ok_or(Error::NoProcess)?;
    let is_child = process.identity.parent.load(SeqCst) == parent;
    if is_child {
        Ok(process)
    } else {
        Err(Error::NoProcess)
    }
}

fn create(
    number: usize,
    share: Arc<Share>,
    spawn: Spawn<'_>,
) -> Result<(Arc<Process>, UserContext), Error> {
    let level = spawn.level.max(spawn.ceiling);
    let (space, context) = load::load(spawn.program, number as u64, level, spawn.argument, &share)?;
    let mut files = Files::new();
    for file in spawn.files {
        files.add(&share, [file])?;
    }
    let owns_share = spawn.halvings != 0 || spawn.parent == 0;
    let identity = Identity::new(number, spawn.parent, share, owns_share);
    let name = spawn.name.into();
    let process = Process::new(identity, name, spawn.ceiling, space, files, layout::HEAP);
    Ok((process, context))
}
