//! The table of processes: names, children, spawning, waiting, killing.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::SeqCst;

use os_abi::number::KILLED;
use os_abi::{Error, layout};
use upshift_core::Level;

use super::files::{File, Files};
use super::share::{Resource, Taken};
use super::{Identity, Process, Share, load};
use crate::arch::lock::IrqLock;
use crate::arch::trap::UserContext;
use crate::waiters::until;
use crate::{executor, users};

/// Maximum number of processes at one time.
pub(super) const MAX_PROCESSES: usize = 256;

enum Tenant {
    None,
    /// A process is being made.
    Reserved,
    Process(Arc<Process>),
}

struct ProcessSlot {
    tenant: Tenant,
    /// The last number of this place.
    number: usize,
    /// The place's amount taken of a share.
    taken: Option<Taken>,
}

static TABLE: IrqLock<[ProcessSlot; MAX_PROCESSES]> = IrqLock::new(
    [const {
        ProcessSlot {
            tenant: Tenant::None,
            number: 0,
            taken: None,
        }
    }; MAX_PROCESSES],
);

/// Returns the process of a number.
pub(crate) fn find(number: usize) -> Option<Arc<Process>> {
    match &TABLE.lock()[number % MAX_PROCESSES].tenant {
        Tenant::Process(process) if process.number() == number => Some(process.clone()),
        _ => None,
    }
}

/// Returns the first process whose place is not below `from`, and its place.
pub(super) fn from_place(from: usize) -> Option<(usize, Arc<Process>)> {
    let table = TABLE.lock();
    let mut places = table.iter().enumerate().skip(from);
    places.find_map(|(index, place)| match &place.tenant {
        Tenant::Process(process) => Some((index, process.clone())),
        _ => None,
    })
}

/// Returns the number of processes, ended ones that are waited for included.
pub(crate) fn living() -> usize {
    let table = TABLE.lock();
    let lives = |place: &&ProcessSlot| !matches!(place.tenant, Tenant::None);
    table.iter().filter(lives).count()
}

/// Parameters of a new process.
pub(crate) struct Spawn<'a> {
    /// The name of its program.
    pub(crate) name: &'a str,
    /// Program of the process.
    pub(crate) program: &'a [u8],
    /// Argument of the process.
    pub(crate) argument: &'a [u8],
    /// Descriptors 0, 1, … of the process.
    pub(crate) files: Vec<File>,
    /// First level of the process.
    pub(crate) level: Level,
    /// The most urgent it may have.
    pub(crate) ceiling: Level,
    /// The process that may wait for this one; 0: none.
    pub(crate) parent: usize,
    /// Share of which the process gets a part, and number of halvings; 0: the process is in the
    /// same share.
    pub(crate) share: Arc<Share>,
    pub(crate) halvings: u32,
}

/// Starts a program; returns the process.
///
/// # Errors
/// [`Error::BadProgram`], [`Error::TooMany`] processes or threads, in all or of the share,
/// [`Error::OutOfMemory`].
pub(crate) fn spawn(spawn: Spawn<'_>) -> Result<Arc<Process>, Error> {
    let share = spawn.share.part(spawn.halvings);
    let reserved = Reserved::new(&share)?;
    let level = spawn.level.max(spawn.ceiling);
    let (process, context) = make(reserved.number(), share, spawn)?;
    let (_, thread) = process.add_thread(None, context, level)?;
    reserved.become_process(process.clone());
    users::push_back(thread);
    Ok(process)
}

/// A place for a process, given back if none comes.
pub(super) struct Reserved(usize);

impl Reserved {
    /// Takes a free place and gives it its next number: never 0, never one that was
    /// used before.
    ///
    /// # Errors
    /// [`Error::TooMany`].
    pub(super) fn new(share: &Arc<Share>) -> Result<Reserved, Error> {
        let taken = share.take(Resource::Processes, 1)?;
        let mut table = TABLE.lock();
        let free = |(_, place): &(usize, &mut ProcessSlot)| matches!(place.tenant, Tenant::None);
        let found = table.iter_mut().enumerate().find(free);
        let (index, place) = found.ok_or(Error::TooMany)?;
        place.number = place.number.max(index) + MAX_PROCESSES;
        place.tenant = Tenant::Reserved;
        place.taken = Some(taken);
        Ok(Reserved(place.number))
    }

    /// Returns the number of the process to be.
    pub(super) fn number(&self) -> usize {
        self.0
    }

    /// Puts the process into the table. Its thread has not started.
    pub(super) fn become_process(self, process: Arc<Process>) {
        self.put(&process);
        look_around(&process);
    }

    fn put(self, process: &Arc<Process>) {
        let number = self.0;
        core::mem::forget(self);
        process.identity.counts();
        TABLE.lock()[number % MAX_PROCESSES].tenant = Tenant::Process(process.clone());
    }
}

/// Checks a process that has just entered the table: it has no parent if the parent has ended, and
/// ends if its share is over.
fn look_around(process: &Process) {
    let identity = &process.identity;
    let parent = identity.parent.load(SeqCst);
    // A parent that ends later finds it.
    if parent != 0 && find(parent).is_none_or(|parent| parent.is_ended()) {
        has_no_parent(identity);
    }
    // Nor does it stay if its share is over: see `reap`.
    if process.share().is_over() {
        process.end(KILLED, executor::level());
    }
}

/// Notes that a process is not waited for any more.
fn has_no_parent(identity: &Identity) {
    identity.parent.store(0, SeqCst);
    // Either it sees that when it ends, or we see its end.
    if identity.life.lock().status.is_some() {
        forget(identity.number);
    }
}

/// Simulates a process whose parent is gone, and which is ended, by the reaper for example, before
/// that is noticed.
#[cfg(feature = "selftest")]
pub(crate) fn spawn_and_end(spawn: Spawn<'_>) -> Result<(), Error> {
    let share = spawn.share.part(spawn.halvings);
    let reserved = Reserved::new(&share)?;
    let (process, _) = make(reserved.number(), share, spawn)?;
    reserved.put(&process);
    process.end(KILLED, executor::level());
    look_around(&process);
    Ok(())
}

impl Drop for Reserved {
    fn drop(&mut self) {
        forget(self.0);
    }
}

/// Puts another program into the place of one that ends without a status. Returns false if the
/// process has ended already.
pub(super) fn replace(old: &Arc<Process>, new: &Arc<Process>) -> bool {
    let mut table = TABLE.lock();
    let tenant = &mut table[old.number() % MAX_PROCESSES].tenant;
    let is_old = matches!(tenant, Tenant::Process(process) if Arc::ptr_eq(process, old));
    if !is_old || old.ended.swap(true, SeqCst) {
        return false;
    }
    let replaced = core::mem::replace(tenant, Tenant::Process(new.clone()));
    drop(table);
    drop(replaced);
    true
}

/// Takes a process out of the table: its number is dead from now on.
pub(super) fn forget(number: usize) {
    let mut table = TABLE.lock();
    let place = &mut table[number % MAX_PROCESSES];
    // Several callers may come here: the place may be another process's by now, if only reserved.
    if place.number != number {
        return;
    }
    let gone = (
        core::mem::replace(&mut place.tenant, Tenant::None),
        place.taken.take(),
    );
    // After the lock: with it memory is freed.
    drop(table);
    drop(gone);
}

/// Releases the children of a process that has ended: they are not waited for any more.
pub(super) fn release_children(number: usize) {
    for index in 0..MAX_PROCESSES {
        let child = match &TABLE.lock()[index].tenant {
            Tenant::Process(child) if child.identity.parent.load(SeqCst) == number => {
                child.identity.clone()
            }
            _ => continue,
        };
        has_no_parent(&child);
    }
}

/// Waits until a child has ended; its number is dead afterwards.
///
/// # Errors
/// [`Error::NoProcess`]: not a child of `parent`.
pub(crate) async fn wait(parent: usize, number: usize) -> Result<isize, Error> {
    let child = child(parent, number)?;
    let status = ended(&child).await;
    forget(number);
    Ok(status)
}

/// Waits until a process has ended and nothing is left of it, nor of its share.
pub(crate) async fn ended(process: &Process) -> isize {
    let identity = &process.identity;
    let status = over(identity).await;
    if identity.begins_share {
        identity.share.until_empty().await;
    }
    status
}

async fn over(identity: &Identity) -> isize {
    until(&identity.life, |life| life.over()).await
}

/// Some process that has not ended, in a share that is over.
pub(super) fn left_over() -> Option<Arc<Process>> {
    let table = TABLE.lock();
    table.iter().find_map(|place| match &place.tenant {
        Tenant::Process(process) if !process.is_ended() && process.share().is_over() => {
            Some(process.clone())
        }
        _ => None,
    })
}

/// Ends a child, for a caller of this level.
///
/// # Errors
/// [`Error::NoProcess`]: not a child of `parent`.
pub(crate) fn kill(parent: usize, number: usize, level: Level) -> Result<(), Error> {
    loop {
        let process = child(parent, number)?;
        process.end(KILLED, level);
        let has_ended = process.identity.life.lock().status.is_some();
        if has_ended {
            return Ok(());
        }
        // Another hart is ending the process, or has put another program into its place.
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

fn make(
    number: usize,
    share: Arc<Share>,
    spawn: Spawn<'_>,
) -> Result<(Arc<Process>, UserContext), Error> {
    let (own, level) = (number as u64, spawn.level.max(spawn.ceiling));
    let (space, context) = load::load(spawn.program, own, level, spawn.argument, &share)?;
    let mut files = Files::new();
    for file in spawn.files {
        files.add(&share, [file])?;
    }
    let begins_share = spawn.halvings != 0 || spawn.parent == 0;
    let identity = Identity::new(number, spawn.parent, share, begins_share);
    let name = spawn.name.into();
    let process = Process::new(identity, name, spawn.ceiling, space, files, layout::HEAP);
    Ok((process, context))
}
