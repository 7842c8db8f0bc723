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

/// Largest number of threads that can be interrupted at the same time.
pub(crate) const SLOTS: usize = 4096;

struct Slot {
    /// Id of the thread in the kernel; 0 if the slot is free, or about to be.
    thread: AtomicU32,
    is_taken: AtomicU32,
    timer: AtomicI32,
    /// Number of threads that are setting the timer.
    users: AtomicU32,
}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        thread: AtomicU32::new(0),
        is_taken: AtomicU32::new(0),
        timer: AtomicI32::new(0),
        users: AtomicU32::new(0),
    }
}; SLOTS];

/// Number of slots at the start of the table, up to the last one that was ever taken.
static USED_SLOTS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static OWN_SLOT: OnceCell<OwnedSlot> = const { OnceCell::new() };
}

struct OwnedSlot(&'static Slot);

/// Creates the timer of the calling thread, which keeps it until the thread ends.
pub(super) fn provide(signal: libc::c_int) -> io::Result<()> {
    let result = OWN_SLOT.try_with(|own| {
        if own.get().is_none() {
            let _ = own.set(OwnedSlot::new(signal)?);
        }
        Ok(())
    });
    result.unwrap_or_else(|_| Err(io::Error::other("the thread is about to end")))
}

/// Sends the signal of the timer of `thread`, if that thread has one. Async-signal-safe.
pub(super) fn send(thread: u32) {
    let used_slots = USED_SLOTS.load(Acquire).min(SLOTS);
    let Some(slot) = (TABLE[..used_slots].iter()).find(|slot| slot.thread.load(Relaxed) == thread)
    else {
        return;
    };
    // This thread is counted before the slot is checked again, so that either this thread sees that
    // the slot is given up, or the thread that gives it up sees the count.
    slot.users.fetch_add(1, SeqCst);
    if slot.thread.load(SeqCst) == thread {
        // One nanosecond, to go off as soon as possible; zero would stop the timer.
        let expiry = libc::itimerspec {
            it_interval: libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: libc::timespec {
                tv_sec: 0,
                tv_nsec: 1,
            },
        };
        let no_previous: *mut libc::itimerspec = null_mut();
        // SAFETY: the timer exists while the slot has users; `expiry` is a local.
        unsafe {
            libc::syscall(
                libc::SYS_timer_settime,
                slot.timer.load(Relaxed),
                0,
                &raw const expiry,
                no_previous,
            );
        }
    }
    slot.users.fetch_sub(1, Release);
}

impl OwnedSlot {
    fn new(signal: libc::c_int) -> io::Result<OwnedSlot> {
        let try_take = |slot: &&Slot| {
            let exchange = slot.is_taken.compare_exchange(0, 1, Acquire, Relaxed);
            exchange.is_ok()
        };
        let Some(slot) = TABLE.iter().find(try_take) else {
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
            slot.is_taken.store(0, Release);
            return Err(io::Error::new(
                error.kind(),
                format!(
                    "cannot create the timer that interrupts a thread: {error}; raise the limit of pending signals (ulimit -i)"
                ),
            ));
        }
        slot.timer.store(timer, Relaxed);
        let number = TABLE.iter().position(|other| std::ptr::eq(other, slot));
        USED_SLOTS.fetch_max(number.map_or(SLOTS, |number| number + 1), Relaxed);
        slot.thread.store(thread as u32, SeqCst);
        Ok(OwnedSlot(slot))
    }
}

impl Drop for OwnedSlot {
    fn drop(&mut self) {
        let slot = self.0;
        slot.thread.store(0, SeqCst);
        while slot.users.load(SeqCst) != 0 {
            std::thread::yield_now();
        }
        // SAFETY: the timer is this thread's, and no thread sets it any more.
        unsafe { libc::syscall(libc::SYS_timer_delete, slot.timer.load(Relaxed)) };
        slot.is_taken.store(0, Release);
    }
}
