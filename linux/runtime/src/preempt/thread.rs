//! A worker thread of a preemptible vCPU, and its permit for the state that the vCPU's threads
//! share.
//!
//! A thread whose poll has been suspended waits in the handler of a signal, or, before the signal
//! has reached it, where it asks for its permit. A *blocked* thread (asleep in the middle of its
//! poll) is left asleep, and waits for its permit when it wakes up.

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
use crate::preempt::interrupt::Sent;
use crate::time::clock;

/// A command to a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// Serve the vCPU.
    Serve,
    /// End: the vCPU ends.
    End,
}

/// Number of threads of a vCPU whose kernel status stays open: they serve while nothing is
/// suspended. The status of further threads is opened for each look, which takes twice as long, so
/// that the threads of long polls do not use up the process's descriptors.
const HOLD_OPEN: usize = 3;

const WAIT: u32 = 0;
const SERVE: u32 = 1;
const END: u32 = 2;

/// A worker thread; see the module. On cache lines of its own.
#[repr(align(128))]
pub(crate) struct Thread {
    pub(super) permit: Permit,
    /// A futex: WAIT, SERVE or END.
    command: AtomicU32,
    /// Id of the thread in the kernel.
    pub(super) id: AtomicU32,
    /// Ticks at which its poll began; 0: none is under way.
    pub(super) began: AtomicU64,
    /// Ticks at which its poll resumed after a suspension; 0: it was not suspended.
    pub(super) resumed: AtomicU64,
    /// Ticks that its poll had run when it was suspended last.
    pub(super) ran: AtomicU64,
    /// Time (ns) at which its poll was to resume; 0 once the thread has recorded that it does. See
    /// [`pending_resume`](Thread::pending_resume).
    pub(super) resume_requested: AtomicU64,
    /// Time (ns) that its poll may run after it resumed, also if other work waits.
    pub(super) turn: AtomicU64,
    /// The coroutine whose poll is suspended here, packed; 0: none.
    pub(super) coroutine: AtomicU64,
    /// The last reading of its clocks and of the age of its poll.
    pub(super) age: Age,
    /// Time at which its poll was suspended, ns.
    pub(super) since: AtomicU64,
    /// Its coroutine, while its poll is blocked.
    pub(super) aside: Mutex<Option<SetAside<Linux>>>,
    /// Set while its poll is blocked: the signal's handler returns, so that the thread sleeps on.
    pub(super) blocked: AtomicBool,
    /// Set while the thread waits in the ring. A signal ends that wait, and so does
    /// [`wake`](upshift_ring::RingWatch::wake).
    pub(super) waits_in_ring: AtomicBool,
    /// Set when the thread is to enter its ring.
    pub(super) enter_requested: AtomicBool,
    /// The last signal to this thread.
    pub(super) sent: Sent,
    /// Its status in the kernel, held open by the threads before [`HOLD_OPEN`].
    status: OnceLock<File>,
    /// Token of the thread as an owner of the ring.
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
            ran: AtomicU64::new(0),
            resume_requested: AtomicU64::new(0),
            turn: AtomicU64::new(0),
            coroutine: AtomicU64::new(0),
            age: Age::default(),
            since: AtomicU64::new(0),
            aside: Mutex::new(None),
            blocked: AtomicBool::new(false),
            waits_in_ring: AtomicBool::new(false),
            enter_requested: AtomicBool::new(false),
            sent: Sent::default(),
            status: OnceLock::new(),
            owner: OnceLock::new(),
        }
    }

    /// Sends the thread a command and ends its wait for it. The caller ends a wait in the ring.
    pub(super) fn send(&self, command: Command) {
        let word = match command {
            Command::Serve => SERVE,
            Command::End => END,
        };
        self.command.store(word, SeqCst);
        futex_wake(&self.command);
    }

    /// Takes the command that the thread has been sent, if any.
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

    /// Returns whether the thread has been sent a command.
    pub(super) fn has_command(&self) -> bool {
        self.command.load(Acquire) != WAIT
    }

    /// Waits for a command.
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

    /// Ends the wait of the thread for its permit, which has been granted.
    pub(super) fn wake_up(&self) {
        self.permit.nudge();
        if self.waits_in_ring.load(SeqCst) {
            self.interrupt();
        }
    }

    /// Sends the thread the signal, unless one is on its way whose handler will see the request.
    pub(super) fn interrupt(&self) {
        self.sent.send(self.id.load(Relaxed));
    }

    /// Makes the thread enter its ring, in the middle of its poll or of its sleep.
    pub(super) fn request_enter(&self) {
        self.enter_requested.store(true, SeqCst);
        self.interrupt();
    }

    /// Returns the tick since which its poll has run without a suspension, and the ticks that the
    /// poll had run before.
    #[inline]
    fn stretch(&self) -> (u64, u64) {
        match self.resumed.load(Relaxed) {
            0 => (self.began.load(Relaxed), 0),
            resumed => (resumed, self.ran.load(Relaxed)),
        }
    }

    /// Returns the time that its poll has run, for the watcher, and whether it may sleep. The
    /// thread's clock is read, by a system call, only if the poll has lasted for `least` ticks.
    pub(super) fn run_time(&self, least: u64, parked: impl FnOnce(u64) -> u64) -> (RunTime, bool) {
        let (since, before) = self.stretch();
        let elapsed = before + clock::ticks().saturating_sub(since);
        let (mut ran, mut may_sleep) = (elapsed, false);
        if elapsed >= least {
            let clocks = self.clocks(parked);
            let began = self.began.load(Relaxed);
            let turn = clock::to_ticks(Duration::from_nanos(TURN_LENGTH));
            (ran, may_sleep) = self.age.estimate(clocks, (began, before, since), turn);
            self.age.record(clocks, began, ran);
        }
        let nanos = |ticks| clock::nanos(clock::from_ticks(ticks));
        let ran = RunTime {
            total: nanos(ran),
            stretch: nanos(ran.saturating_sub(before)),
            elapsed: nanos(elapsed),
        };
        (ran, may_sleep)
    }

    /// Reads the clocks of this thread, which is the calling one and begins to serve: from here on
    /// its running time is known.
    pub(super) fn sample_clocks(&self, parked: impl FnOnce(u64) -> u64) {
        let clocks = self.clocks(parked);
        let (began, ran) = (self.began.load(Relaxed), self.ran.load(Relaxed));
        self.age.record(clocks, began, ran);
    }

    /// Reads the clocks of the thread, and the total sleep of its vCPU. One system call.
    fn clocks(&self, parked: impl FnOnce(u64) -> u64) -> Clocks {
        let now = clock::ticks();
        Clocks::new(now, self.cpu_time().unwrap_or(0), parked(now))
    }

    /// Ends the record of a suspension, after the end of the poll.
    #[cold]
    pub(super) fn forget_suspension(&self) {
        self.resumed.store(0, Relaxed);
        self.ran.store(0, Relaxed);
        self.resume_requested.store(0, Relaxed);
        self.turn.store(0, Relaxed);
    }

    /// Returns the time (ns) at which its poll was to resume, if that has yet to happen: the thread
    /// waits for its permit, or was woken less than a turn before `now` and has not recorded that
    /// it resumes. A thread that does neither runs although it has not recorded that: if the signal
    /// is blocked or late, the thread has never waited.
    pub(super) fn pending_resume(&self, now: u64) -> Option<u64> {
        let requested = self.resume_requested.load(SeqCst);
        let has_yet_to = || now.saturating_sub(requested) < TURN_LENGTH || self.awaits_permit();
        Some(requested).filter(|requested| *requested != 0 && has_yet_to())
    }

    /// Returns the CPU time that the thread has used, ns. A system call. `None` before the thread
    /// is started, and after its end.
    pub(super) fn cpu_time(&self) -> Option<u64> {
        // The kernel's id of a thread's CPU-time clock: see clock_getcpuclockid(3), with the bits
        // for a thread and for scheduler time. Id 0 would stand for the calling thread.
        match self.id.load(Relaxed) {
            0 => None,
            id => cpu_time(!(id as libc::clockid_t) << 3 | 6),
        }
    }

    /// Returns whether the thread sleeps, but not for its permit. A system call; false if the
    /// kernel does not say.
    ///
    /// A signal that was on its way may make the thread wait for its permit as soon as that is
    /// revoked. So that wait is looked for after the kernel's answer.
    pub(super) fn is_asleep(&self) -> bool {
        self.is_off_the_cpu() && !self.awaits_permit()
    }

    /// Returns whether the thread waits for its permit, asleep or about to be.
    pub(super) fn awaits_permit(&self) -> bool {
        self.permit.is_awaited() || self.waits_in_ring.load(SeqCst)
    }

    /// Opens the status of this thread, which is the calling one. It is number `number` of its
    /// vCPU, and `id` in the kernel.
    pub(super) fn open_status(&self, number: usize, id: u32) {
        if number < HOLD_OPEN
            && self.status.get().is_none()
            && let Ok(file) = status_of(id)
        {
            let _ = self.status.set(file);
        }
    }

    /// Returns whether the thread, if it is current, has yet to use its permit for the first time.
    /// It polls nothing then, and any other current thread that polls nothing uses its permit.
    pub(super) fn is_starting(&self) -> bool {
        self.began.load(Acquire) == 0 && !self.permit.in_use()
    }

    /// Returns whether the thread sleeps in the kernel.
    pub(super) fn is_off_the_cpu(&self) -> bool {
        let mut line = [0; 128];
        let read = match self.status.get() {
            Some(file) => file.read_at(&mut line, 0),
            None => status_of(self.id.load(SeqCst)).and_then(|file| file.read_at(&mut line, 0)),
        };
        let Ok(length) = read else { return false };
        // `number (name) state …`; the name may hold anything.
        let line = &line[..length];
        let Some(end) = line.iter().rposition(|&byte| byte == b')') else {
            return false;
        };
        matches!(line.get(end + 2), Some(b'S' | b'D'))
    }

    pub(super) fn aside(&self) -> std::sync::MutexGuard<'_, Option<SetAside<Linux>>> {
        self.aside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens the kernel's status of a thread of this process. Allocates nothing: a suspended poll may
/// hold the allocator.
fn status_of(id: u32) -> io::Result<File> {
    let mut path = [0; 48];
    write!(&mut path[..47], "/proc/self/task/{id}/stat")?;
    // SAFETY: the path ends with a zero.
    let file = unsafe { libc::open(path.as_ptr().cast(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened, for this owner.
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

/// Reads a CPU-time clock, ns. `None` if there is no such thread.
fn cpu_time(clock: libc::clockid_t) -> Option<u64> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a local of the type that the call writes; an unknown clock is an error.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    (result == 0).then(|| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}
