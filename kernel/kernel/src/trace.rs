//! Records when, and on which hart, a coroutine or thread enters a state.
//!
//! Tracing is off unless the command line contains `trace=N`. Then each hart keeps its last `N`
//! records in a ring that is allocated while booting, and [`print`] writes them to the console when
//! the machine is about to end. `os-runner trace` draws a timeline from them.
//!
//! The states are those of the papers on SharedScheduler: created, ready, running, blocked,
//! suspended, ended; suspension is by an interrupt or by an exception. Changes of kernel coroutines
//! come from the scheduler (`Host::changed`), those of threads from `switching.rs` and
//! `run_queue.rs`, those of user coroutines from the page that the vDSO writes to.
//!
//! While tracing is off, a change costs a load. While it is on, a record takes the lock of its
//! hart's ring, which other harts take only for changes of user coroutines; no memory is allocated.
//! A record may be made anywhere, including in interrupt handlers.

use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicUsize};

use os_abi::trace as user;
use upshift_core::{CoroutineId, Level, State};

use crate::arch::hart_index;
use crate::arch::lock::IrqLock;
use crate::memory::OutOfMemory;
use crate::memory::shared::TracePage;
use crate::memory::space::AddressSpace;
use crate::process::Thread;
use crate::{MAX_HARTS, clock, hart, println};

/// Number of records per hart if the command line contains only `trace`.
pub(crate) const DEFAULT_RECORDS: usize = 4096;
/// Maximum number of records per hart: 512 KiB.
const MAX_RECORDS: usize = 16_384;

/// A state, by its letter in the output.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(crate) enum TraceState {
    Created = b'C',
    Ready = b'r',
    Running = b'R',
    Blocked = b'B',
    /// Suspended by an interrupt in the middle of a poll.
    Interrupted = b'I',
    /// Suspended by an exception of its own, for example a system call.
    Excepted = b'X',
    Ended = b'E',
    /// Purpose of a kernel coroutine; not a state.
    Named = b'N',
}

impl From<State> for TraceState {
    fn from(state: State) -> TraceState {
        match state {
            State::Created => TraceState::Created,
            State::Ready => TraceState::Ready,
            State::Running => TraceState::Running,
            State::Blocked => TraceState::Blocked,
            State::Suspended => TraceState::Interrupted,
            State::Exited => TraceState::Ended,
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    /// Runs the user threads of a hart.
    Switching,
    /// Supervises the first program.
    Supervisor,
    /// Ends the remaining processes of ended shares.
    Reaper,
    /// Executes a system call with this number for this process.
    Call { process: usize, number: usize },
}

#[derive(Clone, Copy)]
#[repr(u8)]
enum Kind {
    KernelCoroutine = b'k',
    Thread = b't',
    UserCoroutine = b'u',
}

#[derive(Clone, Copy)]
struct Record {
    time: u64,
    /// Id of the coroutine; 0 for a thread.
    id: u64,
    process: u32,
    /// The thread of the process, or the purpose of a kernel coroutine.
    detail: u16,
    kind: Kind,
    state: TraceState,
    level: u8,
}

/// The last records of a hart.
struct Ring {
    records: Vec<Record>,
    /// Number of all records, including overwritten ones.
    count: usize,
}

/// True while tracing is on.
static ON: AtomicBool = AtomicBool::new(false);

/// Number of state changes that did not fit into the pages of programs.
static LOST: AtomicUsize = AtomicUsize::new(0);

static RINGS: [IrqLock<Ring>; MAX_HARTS] = [const {
    IrqLock::new(Ring {
        records: Vec::new(),
        count: 0,
    })
}; MAX_HARTS];

/// Switches tracing on, with `records` records for each of `harts` harts, at most [`MAX_RECORDS`].
/// Called while booting.
pub(crate) fn init(records: usize, harts: usize) -> Result<(), OutOfMemory> {
    for ring in &RINGS[..harts] {
        let mut ring = ring.lock();
        let records = records.clamp(1, MAX_RECORDS);
        let reserved = ring.records.try_reserve_exact(records);
        reserved.map_err(|_| OutOfMemory)?;
    }
    ON.store(true, Relaxed);
    Ok(())
}

/// Returns whether tracing is on. Costs a load.
#[inline]
pub(crate) fn is_on() -> bool {
    ON.load(Relaxed)
}

#[inline]
pub(crate) fn coroutine(id: CoroutineId, level: Level, state: TraceState) {
    record(Kind::KernelCoroutine, state, id.to_u64(), (0, 0), level);
}

#[inline]
pub(crate) fn name(id: CoroutineId, purpose: Purpose) {
    if is_on() {
        let (process, detail) = match purpose {
            Purpose::Switching => (0, 0),
            Purpose::Supervisor => (0, 1),
            Purpose::Reaper => (0, 2),
            Purpose::Call { process, number } => (process, number),
        };
        let owner = (process, detail);
        let (kind, state) = (Kind::KernelCoroutine, TraceState::Named);
        record(kind, state, id.to_u64(), owner, Level::MOST_URGENT);
    }
}

#[inline]
pub(crate) fn thread(thread: &Thread, state: TraceState) {
    if is_on() {
        let owner = (thread.process.number(), thread.line);
        record(Kind::Thread, state, 0, owner, thread.level);
    }
}

/// Records the end of a thread, for any reason.
impl Drop for Thread {
    fn drop(&mut self) {
        thread(self, TraceState::Ended);
    }
}

/// Records that a thread is about to enter user mode on the calling hart.
#[inline]
pub(crate) fn enter_user(thread: &Thread, space: &AddressSpace) {
    if is_on() {
        if let Some(TracePage { page, .. }) = space.trace() {
            page.store(user::HARTS + thread.line, hart_index() as u64);
        }
        self::thread(thread, TraceState::Running);
    }
}

/// Records the state that a trap from user mode has put a thread into.
#[inline]
pub(crate) fn leave_user(thread: &Thread, space: &AddressSpace, state: TraceState) {
    if is_on() {
        collect(thread, space);
        self::thread(thread, state);
    }
}

/// Takes the events of user coroutines from the page of their process. The page's contents are not
/// trusted, so a time in the future or a nonexistent hart is replaced by the current time or hart.
#[cold]
fn collect(thread: &Thread, space: &AddressSpace) {
    let Some(TracePage { page, read }) = space.trace() else {
        return;
    };
    let mut read = read.lock();
    for _ in 0..user::ENTRIES {
        let entry = user::FIRST + *read as usize % user::ENTRIES * user::ENTRY_WORDS;
        let Some(change) = user::unpack(page.load(entry + 2)) else {
            break;
        };
        let record = Record {
            time: page.load(entry).min(clock::now()),
            id: page.load(entry + 1),
            process: thread.process.number() as u32,
            detail: u16::from(change.thread),
            kind: Kind::UserCoroutine,
            state: State::from_number(change.state).into(),
            level: change.level,
        };
        page.store(entry + 2, 0);
        *read += 1;
        let hart = usize::from(change.hart);
        let has_hart = hart < hart::online().len();
        let ring = if has_hart { hart } else { hart_index() };
        RINGS[ring].lock().add(record);
    }
    let lost = page.load(user::LOST).min(u64::from(u32::MAX));
    LOST.fetch_add(lost as usize, Relaxed);
    page.store(user::LOST, 0);
}

/// Records a state of the interrupted kernel coroutine: the interrupt was taken, or the coroutine
/// resumes.
pub(crate) fn interrupted(state: TraceState) {
    if !is_on() {
        return;
    }
    let vcpu = crate::executor::domain().vcpus().nth(hart_index());
    if let Some(vcpu) = vcpu
        && let (Some(id), Some(level)) = (vcpu.current_id(), vcpu.running_level())
    {
        coroutine(id, level, state);
    }
}

#[cold]
fn record(kind: Kind, state: TraceState, id: u64, (process, detail): (usize, usize), level: Level) {
    let mut ring = RINGS[hart_index()].lock();
    let record = Record {
        time: clock::now(),
        id,
        process: process as u32,
        detail: detail as u16,
        kind,
        state,
        level: level.get(),
    };
    ring.add(record);
}

impl Ring {
    fn add(&mut self, record: Record) {
        let capacity = self.records.capacity();
        if capacity == 0 {
            return;
        }
        if self.records.len() < capacity {
            self.records.push(record)
        } else {
            self.records[self.count % capacity] = record
        }
        self.count += 1;
    }
}

pub(crate) fn stop() {
    ON.store(false, Relaxed);
}

/// Writes all records to the console, those of a hart roughly in the order of their times, and
/// stops recording. Prints nothing if there are no records. Called before the machine ends.
///
/// ```text
/// trace: begin TICKS_PER_SECOND HARTS
/// trace: HART TIME KIND STATE LEVEL PROCESS DETAIL ID
/// trace: end LOST
/// ```
pub(crate) fn print() {
    stop();
    if RINGS[0].lock().records.is_empty() {
        return;
    }
    let harts = hart::online().len();
    println!("trace: begin {} {harts}", clock::ticks_per_second());
    let mut lost = LOST.load(Relaxed);
    for (index, ring) in RINGS[..harts].iter().enumerate() {
        let ring = ring.lock();
        let len = ring.records.len();
        lost = lost.saturating_add(ring.count - len);
        // The ring is full, so the next record to be overwritten is the oldest.
        let first = if ring.count > len { ring.count } else { 0 };
        for n in 0..len {
            let record = ring.records[(first + n) % len];
            println!(
                "trace: {index} {} {} {} {} {} {} {:x}",
                record.time,
                record.kind as u8 as char,
                record.state as u8 as char,
                record.level,
                record.process,
                record.detail,
                record.id,
            );
        }
    }
    println!("trace: end {lost}");
}
