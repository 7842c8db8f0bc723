//! A worker thread of a preemptible vCPU, with its *permit* to use the state that the vCPU's
//! threads share.
//!
//! A thread whose poll has been suspended waits for its permit in the signal handler, or, if the
//! signal has not arrived yet, at the point where it next requests the permit. A *blocked* thread
//! (asleep in the middle of its poll) is left asleep, and waits for its permit when it wakes up. A
//! *turn* is the time for which a resumed poll may run even if other work is waiting.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::FromRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::thread::JoinHandleExt;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use upshift_core::SetAside;
use upshift_core::preempt::{RunTime, TURN_LENGTH};
use upshift_elevate::dispatch::Permit;
use upshift_ring::Owner;

use super::age::{Age, Clocks};
use crate::futex::{futex_wait, futex_wait_for, futex_wake};
use crate::host::Linux;
use crate::preempt::interrupt::PendingSignal;
use crate::time::clock;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Serve,
    End,
}

/// Number of threads per vCPU whose `stat` file in `/proc` is kept open; these threads serve while
/// nothing is suspended. For further threads the file is opened on each check. That takes twice as
/// long, but many long polls then cannot exhaust the process's file descriptors.
const THREADS_WITH_OPEN_STATUS: usize = 3;

/// Values of `Thread::command`.
const WAIT: u32 = 0;
const SERVE: u32 = 1;
const END: u32 = 2;

/// A worker thread, aligned to avoid false sharing.
#[repr(align(128))]
pub(crate) struct Thread {
    pub(super) permit: Permit,
    /// A futex: WAIT, SERVE or END.
    command: AtomicU32,
    /// Thread id in the kernel.
    pub(super) id: AtomicU32,
    /// Tick at which the poll began; 0 if no poll is under way.
    pub(super) began: AtomicU64,
    /// Tick at which the poll resumed after a suspension; 0 if the poll was not suspended.
    pub(super) resumed: AtomicU64,
    /// Ticks for which the poll had run when it was last suspended.
    pub(super) run_ticks: AtomicU64,
    /// Time (ns) at which the thread was asked to resume its poll. The thread resets it to 0 when
    /// it resumes. See [`pending_resume`](Thread::pending_resume).
    pub(super) resume_requested: AtomicU64,
    /// Time (ns) for which the resumed poll may run even if other work is waiting.
    pub(super) turn: AtomicU64,
    /// The coroutine whose poll is suspended on this thread, packed; 0 if there is none.
    pub(super) coroutine: AtomicU64,
    pub(super) age: Age,
    /// Time at which the poll was suspended, ns.
    pub(super) stopped_at: AtomicU64,
    /// The coroutine of the blocked poll, which is in no queue.
    pub(super) set_aside: Mutex<Option<SetAside<Linux>>>,
    /// Set while the poll of the thread is blocked. The signal's handler then returns at once, so
    /// that the thread sleeps on.
    pub(super) blocked: AtomicBool,
    /// Set while the thread waits in the ring. A signal ends that wait, and so does
    /// [`wake`](upshift_ring::RingWatch::wake).
    pub(super) waits_in_ring: AtomicBool,
    /// Set while another thread requests that this thread enter the ring.
    pub(super) enter_requested: AtomicBool,
    pub(super) signal: PendingSignal,
    /// The open `stat` file of the thread in `/proc`.
    status: OnceLock<File>,
    pub(super) owner: OnceLock<Owner>,
}

impl Thread {
    pub(super) fn new() -> Thread {
        Thread {
            permit: Permit::new(),
            command: AtomicU32::new(WAIT),
            id: AtomicU32::new(0),
            began: AtomicU64::new(0),
            resumed: AtomicU64::new(0),
            run_ticks: AtomicU64::new(0),
            resume_requested: AtomicU64::new(0),
            turn: AtomicU64::new(0),
            coroutine: AtomicU64::new(0),
            age: Age::default(),
            stopped_at: AtomicU64::new(0),
            set_aside: Mutex::new(None),
            blocked: AtomicBool::new(false),
            waits_in_ring: AtomicBool::new(false),
            enter_requested: AtomicBool::new(false),
            signal: PendingSignal::default(),
            status: OnceLock::new(),
            owner: OnceLock::new(),
        }
    }

    /// Sends the thread a command, and ends the thread's wait for a command. If the thread waits in
    /// the ring instead, the caller must end that wait.
    pub(super) fn send(&self, command: Command) {
        let word = match command {
            Command::Serve => SERVE,
            Command::End => END,
        };
        self.command.store(word, SeqCst);
        futex_wake(&self.command);
    }

    pub(super) fn take_command(&self) -> Option<Command> {
        match self.command.load(Acquire) {
            SERVE => {
                self.command.store(WAIT, Relaxed);
                Some(Command::Serve)
            }
            END => Some(Command::End),
            _ => None,
        }
    }

    pub(super) fn has_command(&self) -> bool {
        self.command.load(Acquire) != WAIT
    }

    pub(super) fn wait_for_command(&self) -> Command {
        loop {
            match self.take_command() {
                Some(command) => return command,
                None => futex_wait(&self.command, WAIT),
            }
        }
    }

    /// Waits for a command, for at most a millisecond if `checks_periodically`. May return
    /// without a command.
    pub(super) fn wait_once(&self, checks_periodically: bool) {
        if checks_periodically {
            futex_wait_for(&self.command, WAIT, 1_000_000);
        } else {
            futex_wait(&self.command, WAIT);
        }
    }

    /// Wakes the thread if it waits for its permit.
    pub(super) fn wake_up(&self) {
        self.permit.nudge();
        if self.waits_in_ring.load(SeqCst) {
            self.interrupt();
        }
    }

    /// Sends the thread the signal, unless one is on its way whose handler will see the request.
    pub(super) fn interrupt(&self) {
        self.signal.send(self.id.load(Relaxed));
    }

    /// Requests that the thread enter the ring.
    pub(super) fn request_enter(&self) {
        self.enter_requested.store(true, SeqCst);
        self.interrupt();
    }

    /// Returns the tick since which the thread's poll has run without a suspension, and the ticks
    /// that the poll had run before.
    #[inline]
    fn stretch(&self) -> (u64, u64) {
        match self.resumed.load(Relaxed) {
            0 => (self.began.load(Relaxed), 0),
            resumed => (resumed, self.run_ticks.load(Relaxed)),
        }
    }

    /// Returns the time for which the thread's poll has run, and whether the thread may be asleep.
    /// Called by the watcher. The thread's clock is read, by a system call, only if the poll has
    /// lasted for `min_ticks`.
    pub(super) fn run_time(
        &self,
        min_ticks: u64,
        parked: impl FnOnce(u64) -> u64,
    ) -> (RunTime, bool) {
        let (since, previous_ticks) = self.stretch();
        let elapsed = previous_ticks + clock::ticks().saturating_sub(since);
        let (mut run_ticks, mut may_sleep) = (elapsed, false);
        if elapsed >= min_ticks {
            let clocks = self.clocks(parked);
            let began = self.began.load(Relaxed);
            let turn = clock::to_ticks(Duration::from_nanos(TURN_LENGTH));
            (run_ticks, may_sleep) =
                self.age
                    .estimate(clocks, (began, previous_ticks, since), turn);
            self.age.record(clocks, began, run_ticks);
        }
        let nanos = |ticks| clock::nanos(clock::from_ticks(ticks));
        let run_time = RunTime {
            total: nanos(run_ticks),
            stretch: nanos(run_ticks.saturating_sub(previous_ticks)),
            elapsed: nanos(elapsed),
        };
        (run_time, may_sleep)
    }

    /// Reads the clocks of this thread. Must be called on this thread when it begins to serve, so
    /// that its running time is known from then on.
    pub(super) fn sample_clocks(&self, parked: impl FnOnce(u64) -> u64) {
        let clocks = self.clocks(parked);
        let (began, run_ticks) = (self.began.load(Relaxed), self.run_ticks.load(Relaxed));
        self.age.record(clocks, began, run_ticks);
    }

    /// Reads the clocks of this thread. Costs one system call.
    fn clocks(&self, parked: impl FnOnce(u64) -> u64) -> Clocks {
        let now = clock::ticks();
        Clocks::new(now, self.cpu_time().unwrap_or(0), parked(now))
    }

    #[cold]
    /// Resets the state that a suspension has left, because the poll has ended.
    pub(super) fn forget_suspension(&self) {
        self.resumed.store(0, Relaxed);
        self.run_ticks.store(0, Relaxed);
        self.resume_requested.store(0, Relaxed);
        self.turn.store(0, Relaxed);
    }

    /// Returns the time (ns) at which the thread was asked to resume its poll, if it has not
    /// resumed yet. It has not resumed if it still waits for its permit. For [`TURN_LENGTH`] after
    /// the request, it has not resumed either unless it has recorded that. After that time, a
    /// thread that is not waiting is assumed to be running: if the signal was blocked or late, the
    /// thread never stopped, and so never records that it resumed.
    pub(super) fn pending_resume(&self, now: u64) -> Option<u64> {
        let requested = self.resume_requested.load(SeqCst);
        let is_pending = || now.saturating_sub(requested) < TURN_LENGTH || self.awaits_permit();
        Some(requested).filter(|requested| *requested != 0 && is_pending())
    }

    /// Returns the CPU time that the thread has used, ns, or `None` before the thread is started
    /// and after its end. Costs a system call.
    pub(super) fn cpu_time(&self) -> Option<u64> {
        // The kernel's id of a thread's CPU-time clock (see clock_getcpuclockid(3)), with the bits
        // for a thread and for scheduler time. Thread id 0 would stand for the calling thread.
        match self.id.load(Relaxed) {
            0 => None,
            id => cpu_time(!(id as libc::clockid_t) << 3 | 6),
        }
    }

    /// Returns whether the thread sleeps, but not because it waits for its permit. Returns false if
    /// the kernel does not say. Costs a system call.
    ///
    /// A signal already in flight can make the thread start waiting for its permit between the two
    /// checks, so the permit is checked last.
    pub(super) fn is_asleep(&self) -> bool {
        self.is_off_the_cpu() && !self.awaits_permit()
    }

    pub(super) fn awaits_permit(&self) -> bool {
        self.permit.is_awaited() || self.waits_in_ring.load(SeqCst)
    }

    /// Opens the `stat` file of this thread, which must be the calling thread. `number` is its
    /// number in its vCPU, and `id` its id in the kernel.
    pub(super) fn open_status(&self, number: usize, id: u32) {
        if number < THREADS_WITH_OPEN_STATUS
            && self.status.get().is_none()
            && let Ok(file) = status_of(id)
        {
            let _ = self.status.set(file);
        }
    }

    /// Returns whether the thread, if it is current, has yet to use its permit for the first time.
    /// Such a thread is not polling anything, whereas every other current thread either polls or
    /// uses its permit.
    pub(super) fn is_starting(&self) -> bool {
        self.began.load(Acquire) == 0 && !self.permit.in_use()
    }

    /// Returns whether the thread sleeps in the kernel. Returns false if the kernel does not say.
    pub(super) fn is_off_the_cpu(&self) -> bool {
        let mut line = [0; 128];
        let read = match self.status.get() {
            Some(file) => file.read_at(&mut line, 0),
            None => status_of(self.id.load(SeqCst)).and_then(|file| file.read_at(&mut line, 0)),
        };
        let Ok(length) = read else { return false };
        // The format is `number (name) state …`, and the name may contain `)`.
        let line = &line[..length];
        let Some(end) = line.iter().rposition(|&byte| byte == b')') else {
            return false;
        };
        matches!(line.get(end + 2), Some(b'S' | b'D'))
    }

    pub(super) fn set_aside(&self) -> std::sync::MutexGuard<'_, Option<SetAside<Linux>>> {
        self.set_aside
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens the `stat` file of a thread of this process. Allocates nothing, because a suspended poll
/// may hold the allocator's lock.
fn status_of(id: u32) -> io::Result<File> {
    let mut path = [0; 48];
    write!(&mut path[..47], "/proc/self/task/{id}/stat")?;
    // SAFETY: the path ends with a zero byte, because `write!` fills at most 47 of the 48 bytes.
    let file = unsafe { libc::open(path.as_ptr().cast(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened, so nothing else owns it.
    Ok(unsafe { File::from_raw_fd(file) })
}

/// Returns the kernel's id of a thread, which is a part of the id of its CPU-time clock, or 0 if
/// the thread has ended.
pub(super) fn id_of<T>(thread: &JoinHandle<T>) -> u32 {
    let mut clock = 0;
    // SAFETY: the thread has not been joined, so its handle is valid; `clock` is a local.
    let result = unsafe { libc::pthread_getcpuclockid(thread.as_pthread_t(), &raw mut clock) };
    if result == 0 { !(clock >> 3) as u32 } else { 0 }
}

/// Returns the time of a thread's CPU-time clock in ns, or `None` if there is no such thread.
fn cpu_time(clock: libc::clockid_t) -> Option<u64> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a local of the type that the call writes; an unknown clock is an error.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    (result == 0).then(|| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}
