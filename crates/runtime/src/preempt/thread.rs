//! A worker thread of a preemptible vCPU, and its permit to use what the threads of the vCPU share.
//!
//! A thread whose poll has been suspended waits in the handler of a signal, or, if that has not reached it yet, where it asks for its
//! permit. One that was *blocked* (asleep in the middle of its poll) is left asleep, and waits for its permit when it comes back.

use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::ptr::null;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Mutex, OnceLock, PoisonError};

use upshift_core::Aside;
use upshift_core::preempt::Ran;
use upshift_elevate::dispatch::Permit;
use upshift_ring::Owner;

use super::vcpu::{FIRST, HOME, NONE, Preemptible};
use crate::clock;
use crate::futex::{futex_wait, futex_wait_for, futex_wake};
use crate::host::Linux;
use crate::interrupt;
use crate::permit;

thread_local! {
    static THREAD: Cell<Here> = const { Cell::new(Here { vcpu: null(), number: 0 }) };
}

/// The place of a thread.
#[derive(Clone, Copy)]
struct Here {
    vcpu: *const Preemptible,
    number: usize,
}

/// What a thread is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Go {
    /// The vCPU is yours: serve it.
    Serve,
    /// The vCPU leaves: end.
    End,
}

const WAIT: u32 = 0;
const SERVE: u32 = 1;
const END: u32 = 2;

/// See the module. On cache lines of its own.
#[repr(align(128))]
pub(crate) struct Thread {
    pub(super) permit: Permit,
    /// A futex: WAIT, SERVE or END.
    go: AtomicU32,
    /// Its number in the kernel.
    id: AtomicU32,
    /// Ticks at which its poll began; 0: none is under way.
    pub(super) began: AtomicU64,
    /// Ticks at which its poll went on after a suspension; 0: it was not suspended.
    pub(super) resumed: AtomicU64,
    /// Ticks that its poll had run when it was suspended last.
    pub(super) ran: AtomicU64,
    /// When (ns) its poll was to go on, until it does; 0: it has.
    pub(super) woken: AtomicU64,
    /// How long (ns) it may run, whatever waits, since it went on.
    pub(super) turn: AtomicU64,
    /// The coroutine whose poll is suspended here, packed; 0: none.
    pub(super) coroutine: AtomicU64,
    /// When its poll was suspended, ns.
    pub(super) since: AtomicU64,
    /// Its coroutine, while its poll is blocked.
    pub(super) aside: Mutex<Option<Aside<Linux>>>,
    /// Its poll is blocked: it is not to be kept from where it sleeps.
    pub(super) blocked: AtomicBool,
    /// It waits in the ring, where only a signal reaches it.
    attending: AtomicBool,
    /// It is to enter its ring.
    owes_enter: AtomicBool,
    /// The signal is on its way, and its handler has not begun.
    signalled: AtomicBool,
    /// What the kernel says of it.
    status: OnceLock<File>,
    /// What the ring knows it by.
    pub(super) owner: OnceLock<Owner>,
}

impl Thread {
    pub(super) fn new() -> Thread {
        Thread {
            permit: Permit::new(),
            go: AtomicU32::new(WAIT),
            id: AtomicU32::new(0),
            began: AtomicU64::new(0),
            resumed: AtomicU64::new(0),
            ran: AtomicU64::new(0),
            woken: AtomicU64::new(0),
            turn: AtomicU64::new(0),
            coroutine: AtomicU64::new(0),
            since: AtomicU64::new(0),
            aside: Mutex::new(None),
            blocked: AtomicBool::new(false),
            attending: AtomicBool::new(false),
            owes_enter: AtomicBool::new(false),
            signalled: AtomicBool::new(false),
            status: OnceLock::new(),
            owner: OnceLock::new(),
        }
    }

    /// Tells the thread what to do.
    pub(super) fn tell(&self, go: Go) {
        let word = match go {
            Go::Serve => SERVE,
            Go::End => END,
        };
        self.go.store(word, SeqCst);
        self.nudge(&self.go);
    }

    /// What it has been told, if anything.
    pub(super) fn told(&self) -> Option<Go> {
        match self.go.load(Acquire) {
            SERVE => {
                self.go.store(WAIT, Relaxed);
                Some(Go::Serve)
            }
            END => Some(Go::End),
            _ => None,
        }
    }

    /// Has it been told something?
    pub(super) fn has_been_told(&self) -> bool {
        self.go.load(Acquire) != WAIT
    }

    /// Waits until told what to do.
    pub(super) fn wait(&self) -> Go {
        loop {
            match self.told() {
                Some(go) => return go,
                None => futex_wait(&self.go, WAIT),
            }
        }
    }

    /// Waits until told what to do, or, if it is `patient`, a millisecond.
    pub(super) fn wait_a_while(&self, patient: bool) {
        if patient {
            futex_wait_for(&self.go, WAIT, 1_000_000);
        } else {
            futex_wait(&self.go, WAIT);
        }
    }

    /// It sleeps on this word, or in the ring.
    fn nudge(&self, word: &AtomicU32) {
        if self.attending.load(SeqCst) {
            self.interrupt();
        } else {
            futex_wake(word);
        }
    }

    /// Its permit is its own again: if it waits for that, it waits no longer.
    pub(super) fn wake_up(&self) {
        self.permit.nudge();
        if self.attending.load(SeqCst) {
            self.interrupt();
        }
    }

    /// Sends it the signal, unless one is on its way that will find what has been asked for: the kernel would queue each.
    pub(super) fn interrupt(&self) {
        if !self.signalled.swap(true, SeqCst) {
            interrupt::send(self.id.load(Relaxed));
        }
    }

    /// Has it enter its ring, in the middle of its poll or of its sleep.
    pub(super) fn ask_to_enter(&self) {
        if !self.owes_enter.swap(true, SeqCst) {
            self.interrupt();
        }
    }

    /// How long its poll has run. For the thread itself, or the watcher.
    pub(super) fn has_run(&self, ticks: u64) -> Ran {
        let nanos = |ticks| clock::nanos(clock::from_ticks(ticks));
        let (began, resumed) = (self.began.load(Relaxed), self.resumed.load(Relaxed));
        let since = if resumed == 0 { began } else { resumed };
        let stretch = nanos(ticks.saturating_sub(since));
        Ran {
            in_all: nanos(self.ran.load(Relaxed)) + stretch,
            stretch,
        }
    }

    /// Ticks that its poll has run. For the watcher, when it has revoked the permit.
    pub(super) fn has_run_ticks(&self) -> u64 {
        let (began, resumed) = (self.began.load(Relaxed), self.resumed.load(Relaxed));
        let since = if resumed == 0 { began } else { resumed };
        self.ran.load(Relaxed) + clock::ticks().saturating_sub(since)
    }

    /// A poll that was suspended is over.
    #[cold]
    pub(super) fn forget_suspension(&self) {
        self.resumed.store(0, Relaxed);
        self.ran.store(0, Relaxed);
        self.woken.store(0, Relaxed);
        self.turn.store(0, Relaxed);
    }

    /// Its poll was to go on at this time, ns, and the thread has not said that it does.
    pub(super) fn is_to_wake(&self) -> Option<u64> {
        Some(self.woken.load(Relaxed)).filter(|woken| *woken != 0)
    }

    /// The calling thread goes on with its poll.
    fn goes_on(&self, vcpu: &Preemptible) {
        let woken = self.woken.swap(0, Relaxed);
        if woken != 0 {
            self.resumed.store(clock::ticks(), Relaxed);
            vcpu.resuming.add(clock::now().saturating_sub(woken));
        }
    }

    /// The CPU time that it has used, ns. A system call; `None` if the thread has ended.
    pub(super) fn cpu_time(&self) -> Option<u64> {
        // The kernel's name for the clock of a thread: clock_getcpuclockid(3), with the bits of a thread's, in scheduler time.
        cpu_time(!(self.id.load(Relaxed) as libc::clockid_t) << 3 | 6)
    }

    /// Does it sleep, otherwise than for its permit? A system call; false if the kernel does not say.
    ///
    /// A signal that was on its way may have it wait for its permit as soon as that is revoked: what is asked after the kernel sees that.
    pub(super) fn is_asleep(&self) -> bool {
        self.is_off_the_cpu() && !self.awaits_permit()
    }

    /// Does it wait for its permit, asleep or about to be?
    pub(super) fn awaits_permit(&self) -> bool {
        self.permit.is_awaited() || self.attending.load(SeqCst)
    }

    /// Does it sleep in the kernel?
    fn is_off_the_cpu(&self) -> bool {
        let mut line = [0; 128];
        let Some(Ok(length)) = self.status.get().map(|file| file.read_at(&mut line, 0)) else {
            return false;
        };
        // `number (name) state …`; the name may hold anything.
        let line = &line[..length];
        let Some(end) = line.iter().rposition(|&byte| byte == b')') else {
            return false;
        };
        matches!(line.get(end + 2), Some(b'S' | b'D'))
    }

    pub(super) fn aside(&self) -> std::sync::MutexGuard<'_, Option<Aside<Linux>>> {
        self.aside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a CPU-time clock shows, ns; `None`: there is no such thread.
fn cpu_time(clock: libc::clockid_t) -> Option<u64> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a pointer to a local of the type asked for; a clock that is not there is an error.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    (result == 0).then(|| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// The CPU time that the calling thread has used, ns.
pub(super) fn own_cpu_time() -> u64 {
    cpu_time(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0)
}

/// While it lives, the calling thread is thread `number` of a preemptible vCPU.
pub(super) struct Seated<'a> {
    before: (Here, permit::Before),
    thread: &'a Thread,
}

impl<'a> Seated<'a> {
    /// Its permit is in use from here on, but in polls.
    pub(super) fn begin(vcpu: &'a Preemptible, number: usize) -> std::io::Result<Seated<'a>> {
        interrupt::claim()?;
        let thread = &vcpu.threads[number];
        // SAFETY: cannot fail.
        let id = unsafe { libc::gettid() } as u32;
        if thread.status.get().is_none()
            && let Ok(file) = File::open(format!("/proc/self/task/{id}/stat"))
        {
            let _ = thread.status.set(file);
        }
        // A loop within a poll of another runtime: that one's permit stays in use.
        permit::enter();
        let here = THREAD.replace(Here { vcpu, number });
        // A signal that came before was not answered, and one that was sent before the number was known went nowhere: the next is sent.
        thread.id.store(id, SeqCst);
        thread.signalled.store(false, SeqCst);
        // SAFETY: the drop puts the one before back; the thread is `vcpu`'s, which is borrowed until then.
        let permit = unsafe {
            permit::hold(
                &thread.permit,
                permit::Calls {
                    tell: Preemptible::tell_watcher,
                    wait: wait_here,
                },
            )
        };
        permit::enter();
        Ok(Seated {
            before: (here, permit),
            thread,
        })
    }
}

impl Drop for Seated<'_> {
    fn drop(&mut self) {
        permit::leave();
        THREAD.set(self.before.0);
        // A signal for the place of before has found this one.
        with_current(|vcpu, number| vcpu.threads[number].signalled.store(false, SeqCst));
        // SAFETY: it was held before.
        unsafe { permit::put_back(self.before.1) };
        permit::leave();
        self.thread.began.store(0, Relaxed);
    }
}

/// Calls `f` with the vCPU that the calling thread belongs to, and its number there.
pub(super) fn with_current(f: impl FnOnce(&Preemptible, usize)) {
    let here = THREAD.get();
    // SAFETY: set while the thread serves, which has the vCPU.
    if let Some(vcpu) = unsafe { here.vcpu.as_ref() } {
        f(vcpu, here.number);
    }
}

/// May what the calling thread is polling go on on another one?
pub(crate) fn may_move() -> bool {
    let mut may = false;
    with_current(|vcpu, number| may = !vcpu.has_home() || number != HOME);
    may
}

/// The calling thread asks for its permit, which has been taken away.
fn wait_here(permit: &Permit) {
    let mut waited = false;
    with_current(|vcpu, number| {
        waited = true;
        vcpu.start_next();
        vcpu.comes_back(number);
        if number == FIRST {
            vcpu.attend_blocked(|| !permit.is_revoked());
        } else {
            permit.wait_until(|| false);
        }
        vcpu.threads[number].goes_on(vcpu);
    });
    if !waited {
        permit.wait_until(|| false);
    }
}

/// The calling thread has been interrupted. Async-signal-safe.
pub(crate) fn answer_here() {
    with_current(|vcpu, number| {
        let thread = &vcpu.threads[number];
        thread.signalled.store(false, SeqCst);
        if number == FIRST {
            vcpu.service.answer();
            if thread.owes_enter.swap(false, SeqCst) {
                vcpu.watch().enter();
            }
            if thread.attending.load(Relaxed) {
                // It looks again when this returns.
                return;
            }
        }
        // What is in the middle of a use is not suspended: the watcher takes a revocation back that meets one.
        let is_stopped = !thread.permit.in_use() && thread.permit.is_revoked();
        if vcpu.loose.load(Relaxed) && !thread.permit.is_revoked() {
            // It may depend on those that run loose. All may be in a real-time policy, in which none makes room by itself.
            std::thread::yield_now();
        }
        if !is_stopped || thread.blocked.load(SeqCst) {
            // It may have been stopped, and gone on, before the signal came.
            if !thread.permit.is_revoked() {
                thread.goes_on(vcpu);
            }
            if number == FIRST && !thread.permit.in_use() {
                // Others may have served meanwhile, and have asked for this in vain.
                vcpu.watch().hand_over();
            }
            return;
        }
        if number == FIRST {
            // The next thread finds what has arrived, and need not ask for it.
            if vcpu.next_up.load(SeqCst) != NONE {
                // Nor need the watcher hear of it. One that runs already, because this signal came late, listens for its own poll.
                vcpu.watch().mask();
            }
            vcpu.watch().fetch();
        }
        let is_loose = || {
            // A signal that was on its way had this handler come before the next thread was known.
            vcpu.start_next();
            vcpu.loose.load(SeqCst)
        };
        if number == FIRST {
            // The signal is blocked while its handler runs.
            vcpu.attend(|| is_loose() || !thread.permit.is_revoked());
        } else {
            thread.permit.wait_until(is_loose);
        }
        if !thread.permit.is_revoked() {
            thread.goes_on(vcpu);
        }
    });
}

impl Preemptible {
    /// The ring's thread waits in the ring, so that completions go on, and makes the calls that others ask for, until `over`
    /// says so. With the signal blocked. Async-signal-safe.
    pub(super) fn attend(&self, over: impl Fn() -> bool) {
        let thread = &self.threads[FIRST];
        let mask = interrupt::mask_without_own();
        thread.attending.store(true, SeqCst);
        while !over() {
            self.service.answer();
            // Everything that ends the wait is looked at again.
            let _ = self.watch().wait(mask);
            self.wake_idle();
        }
        thread.attending.store(false, Release);
        // What was asked while it left, or withdrawn because it came too late: its poll may be long.
        self.service.answer();
        self.watch().hand_over();
    }

    /// The same, where the signal is not blocked.
    pub(super) fn attend_blocked(&self, over: impl Fn() -> bool) {
        let Ok(before) = interrupt::block_own() else {
            return;
        };
        self.attend(over);
        interrupt::restore(&before);
    }
}
