//! Sends signals even if the user's queue of pending signals is full. Each thread has a POSIX
//! timer, for whose signal the kernel has reserved a place.
//!
//! A thread writes the slot of its own timer. All threads read the slot, even in signal handlers.
//! Before a thread that ends gives up its slot, it waits until no thread is setting its timer,
//! because the kernel reuses the ids of timers.

use std::cell::OnceCell;
use std::io;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize};

pub(crate) const SLOTS: usize = 4096;

struct Slot {
    /// Id of the thread in the kernel; 0 if the slot is free, or about to be.
    thread: AtomicU32,
    taken: AtomicU32,
    timer: AtomicI32,
    users: AtomicU32,
}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        thread: AtomicU32::new(0),
        taken: AtomicU32::new(0),
        timer: AtomicI32::new(0),
        users: AtomicU32::new(0),
    }
}; SLOTS];

/// Number of slots at the start of the table, up to the last one that was ever taken.
static USED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static OWN: OnceCell<OwnedSlot> = const { OnceCell::new() };
}

struct OwnedSlot(&'static Slot);

/// Creates the timer of the calling thread, which keeps it until the thread ends.
pub(super) fn provide(signal: libc::c_int) -> io::Result<()> {
    let provided = OWN.try_with(|own| {
        if own.get().is_none() {
            let _ = own.set(OwnedSlot::new(signal)?);
        }
        Ok(())
    });
    provided.unwrap_or_else(|_| Err(io::Error::other("the thread is about to end")))
}

/// Async-signal-safe.
pub(super) fn send(thread: u32) {
    let used = USED.load(Acquire).min(SLOTS);
    let Some(place) = (TABLE[..used].iter()).find(|place| place.thread.load(Relaxed) == thread)
    else {
        return;
    };
    // Counted before the slot is checked again, so that either this thread sees that the slot is
    // given up, or the thread that gives it up sees the count.
    place.users.fetch_add(1, SeqCst);
    if place.thread.load(SeqCst) == thread {
        // One nanosecond, to go off as soon as possible; zero would stop the timer.
        let soon = libc::itimerspec {
            it_interval: libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: libc::timespec {
                tv_sec: 0,
                tv_nsec: 1,
            },
        };
        let before: *mut libc::itimerspec = null_mut();
        // SAFETY: the timer exists while the slot has users; `soon` is a local.
        unsafe {
            libc::syscall(
                libc::SYS_timer_settime,
                place.timer.load(Relaxed),
                0,
                &raw const soon,
                before,
            );
        }
    }
    place.users.fetch_sub(1, Release);
}

impl OwnedSlot {
    fn new(signal: libc::c_int) -> io::Result<OwnedSlot> {
        let free = |place: &&Slot| place.taken.compare_exchange(0, 1, Acquire, Relaxed).is_ok();
        let Some(place) = TABLE.iter().find(free) else {
            return Err(io::Error::new(
                io::ErrorKind::ResourceBusy,
                format!("there are already {SLOTS} threads that may be interrupted"),
            ));
        };
        // SAFETY: the call takes no pointers and cannot fail.
        let thread = unsafe { libc::gettid() };
        // SAFETY: all-zero is a valid value of this plain struct.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal;
        event.sigev_notify_thread_id = thread;
        let mut timer: libc::c_int = 0;
        // The system call returns the kernel's id of the timer; the C library's function does not.
        // SAFETY: `event` and `timer` are locals.
        let result = unsafe {
            libc::syscall(
                libc::SYS_timer_create,
                libc::CLOCK_MONOTONIC,
                &raw mut event,
                &raw mut timer,
            )
        };
        if result != 0 {
            let error = io::Error::last_os_error();
            place.taken.store(0, Release);
            return Err(io::Error::new(
                error.kind(),
                format!(
                    "no timer to interrupt a thread with: {error}; the limit of pending signals (ulimit -i) applies to it"
                ),
            ));
        }
        place.timer.store(timer, Relaxed);
        let number = TABLE.iter().position(|other| std::ptr::eq(other, place));
        USED.fetch_max(number.map_or(SLOTS, |number| number + 1), Relaxed);
        place.thread.store(thread as u32, SeqCst);
        Ok(OwnedSlot(place))
    }
}

impl Drop for OwnedSlot {
    fn drop(&mut self) {
        let place = self.0;
        place.thread.store(0, SeqCst);
        while place.users.load(SeqCst) != 0 {
            std::thread::yield_now();
        }
        // SAFETY: the timer is this thread's, and no thread sets it any more.
        unsafe { libc::syscall(libc::SYS_timer_delete, place.timer.load(Relaxed)) };
        place.taken.store(0, Release);
    }
}
