//! Interrupting a thread of the runtime: a signal whose handler makes system calls on the ring of its thread, and nothing else.
//!
//! Only the thread that made a ring may enter it. Others that work on it, while that thread is suspended (`preempt`) or in a
//! long poll (`arrivals`), have it make the calls.
//!
//! A real-time signal takes a place in a queue, of which the processes of a user have so many together (RLIMIT_SIGPENDING): `tgkill` may
//! find none left, and the sender of a signal relies on it. So each thread that may be interrupted has a timer (`spare.rs`), which was given
//! its place when it was made. It is slower, and used only where `tgkill` fails.

mod spare;

use std::io;
use std::ptr::null_mut;
use std::sync::OnceLock;

use crate::arrivals;
use crate::preempt;
pub(crate) use spare::SLOTS as MOST_THREADS;

extern "C" fn handler(_: libc::c_int) {
    // SAFETY: the thread's own errno.
    let errno = unsafe { *libc::__errno_location() };
    preempt::answer_here();
    arrivals::answer_here();
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// The calling thread may be interrupted from now on.
///
/// # Errors
/// All real-time signals have handlers, or the user may queue no more of them.
pub(crate) fn claim() -> io::Result<()> {
    let signal = install()?;
    spare::provide(signal)?;
    unblock(signal)
}

/// May this process send signals to its threads? A sandbox may forbid it.
pub(crate) fn may_send() -> io::Result<()> {
    // SAFETY: no pointers; signal 0 is not sent.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), 0) };
    match sent {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Interrupts a thread of this process that has [claimed](claim); one that has ended is left alone. Async-signal-safe.
pub(crate) fn send(thread: u32) {
    let Ok(signal) = install() else { return };
    // SAFETY: no pointers; a thread that is gone answers ESRCH.
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

/// The signal, with its handler in place: the last real-time signal that nothing
/// uses. System calls of a poll that it interrupts are restarted.
fn install() -> io::Result<libc::c_int> {
    static SIGNAL: OnceLock<Option<libc::c_int>> = OnceLock::new();
    SIGNAL
        .get_or_init(|| {
            (libc::SIGRTMIN() + 1..libc::SIGRTMAX())
                .rev()
                .find(|signal| take(*signal))
        })
        .ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::ResourceBusy,
                "all real-time signals have handlers; leave one free",
            )
        })
}

fn take(signal: libc::c_int) -> bool {
    // SAFETY: all-zero is a valid value of this plain struct.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: pointers to locals.
    let known = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut before) } == 0;
    if !known || before.sa_sigaction != libc::SIG_DFL {
        return false;
    }
    // SAFETY: as above.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: pointers to locals; the handler is async-signal-safe.
    unsafe { libc::sigaction(signal, &raw const action, null_mut()) == 0 }
}

/// The calling thread's signals, as they were before.
pub(crate) struct Blocked(libc::sigset_t);

/// Keeps the calling thread from being interrupted, but where it waits with [`mask_without_own`].
///
/// # Errors
/// There is no signal.
pub(crate) fn block_own() -> io::Result<Blocked> {
    let signal = install()?;
    // SAFETY: plain data; pointers to locals.
    let before = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before);
        before
    };
    Ok(Blocked(before))
}

/// Ends what [`block_own`] began.
pub(crate) fn restore(before: &Blocked) {
    // SAFETY: a pointer to a set.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before.0, null_mut()) };
}

/// The signals that the calling thread blocks, without that by which it is interrupted, as the kernel has them. Async-signal-safe.
pub(crate) fn mask_without_own() -> u64 {
    let mut mask = 0u64;
    // SAFETY: the kernel's set has the size of the word.
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

fn unblock(signal: libc::c_int) -> io::Result<()> {
    // SAFETY: plain data; pointers to locals.
    let result = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, null_mut())
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(result))
    }
}
