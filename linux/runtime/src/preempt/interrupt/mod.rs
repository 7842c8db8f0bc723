//! Interrupts threads of the runtime by a signal. The signal's handler makes system calls on the
//! io_uring of the interrupted thread, and waits while the thread's poll is suspended.
//!
//! Only the thread that created a ring may enter it. While that thread is suspended (`preempt`) or
//! in a long poll (`stand_in`), other threads process the ring's queues, and have that thread make
//! the system calls.
//!
//! The sender relies on the delivery, but `tgkill` may fail. A real-time signal takes a place in a
//! queue, and all processes of a user share a limited number of places (RLIMIT_SIGPENDING). So each
//! interruptible thread has a timer (`spare.rs`), for whose signal the kernel reserves a place when
//! the timer is created. Because the timer is slower, it is used only if `tgkill` fails.
//!
//! The handler runs on a stack of its own (`stack.rs`). While the handler runs or waits, its thread
//! accepts only the signals of faults and of the C library. Signals sent to the process go to other
//! threads of the program.

mod spare;
mod stack;

use std::io;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};

use upshift_core::preempt::MAX_SUSPENSION;

use crate::preempt;
use crate::stand_in::arrivals;
use crate::time::clock;
pub(crate) use spare::SLOTS as MAX_THREADS;
pub(crate) use stack::OnStack;

extern "C" fn handler(_: libc::c_int) {
    // SAFETY: the function returns a valid pointer to the calling thread's `errno`.
    let errno = unsafe { *libc::__errno_location() };
    preempt::answer_here();
    arrivals::answer_here();
    // SAFETY: the pointer is to the calling thread's `errno`, as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Prepares the calling thread to be interrupted while it has an [`OnStack`].
///
/// # Errors
/// If all real-time signals have handlers, if the user's limit of queued signals is reached, or if
/// memory is short.
pub(crate) fn claim() -> io::Result<()> {
    let signal = install()?;
    spare::provide(signal)?;
    stack::provide()
}

/// Checks that this process may send signals to its threads, because a sandbox may forbid it.
pub(crate) fn may_send() -> io::Result<()> {
    // SAFETY: the call takes no pointers, and signal 0 is not sent.
    let result = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), 0) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The signal on its way to a thread: the time (ns) at which it was last sent, or 0 once its
/// handler has begun. Until then no other signal is sent, because the kernel would queue each.
///
/// The handler may begin late, twice, or never, because a thread may block the signal, and a
/// program may replace the handler. So no state depends on the handler, and the signal may be sent
/// again after [`RESEND_AFTER`].
#[derive(Debug, Default)]
pub(crate) struct PendingSignal(AtomicU64);

/// Time after which an unanswered signal is sent again, ns.
const RESEND_AFTER: u64 = MAX_SUSPENSION;

impl PendingSignal {
    /// Interrupts a thread, unless a signal is on its way whose handler will see the request.
    /// Async-signal-safe.
    pub(crate) fn send(&self, thread: u32) {
        let now = clock::now().max(1);
        let sent_at = self.0.load(SeqCst);
        let is_due = sent_at == 0 || now.saturating_sub(sent_at) >= RESEND_AFTER;
        let exchange = || self.0.compare_exchange(sent_at, now, SeqCst, SeqCst);
        if !is_due || exchange().is_err() {
            return;
        }
        if sent_at == 0 {
            send(thread);
        } else {
            check_handler();
            // At most one signal of the timer is queued, however often the timer goes off.
            spare::send(thread);
        }
    }

    /// Records that the handler has begun on the thread, or that the thread needs no signal.
    pub(crate) fn mark_answered(&self) {
        self.0.store(0, SeqCst);
    }

    pub(crate) fn is_open(&self) -> bool {
        self.0.load(SeqCst) != 0
    }
}

/// Set once the program has been found to have replaced the handler.
static IS_REPLACED: AtomicBool = AtomicBool::new(false);

/// Returns whether the program has been found to have replaced the handler. Costs one load.
pub(crate) fn is_replaced() -> bool {
    IS_REPLACED.load(Relaxed)
}

/// Checks that the signal still has the runtime's handler. Reports once, on standard error, if it
/// has not. Async-signal-safe.
fn check_handler() {
    const MESSAGE: &str = "upshift: the program has replaced the handler of the runtime's signal, the last free real-time one: \
        polls are not interrupted any more; leave that signal alone, or build the runtime after setting the handler\n";
    let Ok(signal) = install() else { return };
    let is_ours = current_action(signal).is_some_and(|action| action.sa_sigaction == own_handler());
    if !is_ours && !IS_REPLACED.swap(true, SeqCst) {
        // `write` takes no lock that a poll may hold.
        // SAFETY: the pointer and the length are those of a constant.
        unsafe { libc::write(2, MESSAGE.as_ptr().cast(), MESSAGE.len()) };
    }
}

fn own_handler() -> libc::sighandler_t {
    handler as *const () as usize
}

fn current_action(signal: libc::c_int) -> Option<libc::sigaction> {
    // SAFETY: all-zero is a valid value of this plain struct, and the call writes only to it.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let is_known = libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0;
        is_known.then_some(action)
    }
}

/// Interrupts a thread of this process that has [claimed](claim) the signal. Does nothing if the
/// thread has ended. Async-signal-safe.
fn send(thread: u32) {
    let Ok(signal) = install() else { return };
    // SAFETY: the call takes no pointers. It fails with ESRCH if the thread has ended.
    let sent = unsafe {
        libc::syscall(
            libc::SYS_tgkill,
            libc::getpid(),
            thread as libc::pid_t,
            signal,
        )
    };
    if sent != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN) {
        spare::send(thread);
    }
}

/// Returns the runtime's signal: the last real-time signal that nothing else used. The first call
/// sets its handler, with which interrupted system calls are restarted.
fn install() -> io::Result<libc::c_int> {
    static SIGNAL: OnceLock<Option<libc::c_int>> = OnceLock::new();
    SIGNAL
        .get_or_init(|| {
            (libc::SIGRTMIN() + 1..libc::SIGRTMAX())
                .rev()
                .find(|signal| try_install(*signal))
        })
        .ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::ResourceBusy,
                "all real-time signals have handlers; leave one free",
            )
        })
}

/// Sets the handler of a signal, unless the signal already has one. Returns whether it was set.
fn try_install(signal: libc::c_int) -> bool {
    if current_action(signal).is_none_or(|action| action.sa_sigaction != libc::SIG_DFL) {
        return false;
    }
    // SAFETY: all-zero is a valid value of this plain struct.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = own_handler();
    action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
    // SAFETY: all pointers are to locals, or null where the call allows it, and the handler is
    // async-signal-safe.
    unsafe {
        // The C library omits its own signals from the set.
        libc::sigfillset(&raw mut action.sa_mask);
        for fault in FAULTS {
            libc::sigdelset(&raw mut action.sa_mask, fault);
        }
        libc::sigaction(signal, &raw const action, null_mut()) == 0
    }
}

/// Signals that the kernel sends a thread for the thread's own faults. If one of them were blocked
/// when it occurs, the kernel would end the process.
const FAULTS: [libc::c_int; 6] = [
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGSEGV,
    libc::SIGSYS,
    libc::SIGTRAP,
];

/// The signal mask that a thread had before [`block_own`].
pub(crate) struct SavedMask(libc::sigset_t);

/// Blocks the signal on the calling thread, except where it waits with [`mask_without_own`].
///
/// # Errors
/// If no signal is free.
pub(crate) fn block_own() -> io::Result<SavedMask> {
    let signal = install()?;
    // SAFETY: all-zero is a valid value of the sets, and the calls write only to these locals.
    let previous = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        let mut previous: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut previous);
        previous
    };
    Ok(SavedMask(previous))
}

/// Restores the mask that [`block_own`] has changed.
pub(crate) fn restore(mask: &SavedMask) {
    // SAFETY: `mask` holds a set that the kernel has written.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask.0, null_mut()) };
}

/// Returns the calling thread's signal mask, as a kernel bit set, without the signal that
/// interrupts the thread. Async-signal-safe.
pub(crate) fn mask_without_own() -> u64 {
    let mut mask = 0u64;
    // SAFETY: the kernel writes a set of the given size, which is that of `mask`.
    unsafe {
        let unchanged: *const u64 = std::ptr::null();
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_BLOCK,
            unchanged,
            &raw mut mask,
            size_of::<u64>(),
        );
    }
    match install() {
        Ok(signal) => mask & !(1 << (signal - 1)),
        Err(_) => mask,
    }
}

/// Unblocks the signal on the calling thread, because the program may have started the thread with
/// all signals blocked.
fn unblock_own() {
    let Ok(signal) = install() else { return };
    // SAFETY: all-zero is a valid value of the set, which is a local. The calls cannot fail.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, null_mut());
    }
}
