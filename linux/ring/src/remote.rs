//! Lets other threads wake the thread that blocks in [`Ring::wait`](crate::Ring::wait). Such a wake
//! is called a *kick*.
//!
//! ```text
//!             sleep                     kick (one eventfd write)
//!   AWAKE ──────────────▶ SLEEPING ──────────────────────────────▶ KICKED
//!     ▲ ▲                    │ awake                                 │ ▲
//!     │ └────────────────────┘                                       │ │ kick (no system call)
//!     └───────────── sleep (refused) or awake ───────────────────────┘─┘ also from AWAKE
//! ```
//!
//! No kick is lost, because both sides change the same word by read-modify-write. Either the kick
//! sees `SLEEPING` and writes, or the sleeper sees `KICKED` and does not sleep. The word is back at
//! `AWAKE` before `wait` returns, that is, before the caller of `wait` looks for work. All kicks
//! during one sleep cost one `write` together; while the ring's thread is awake, they cost none.
//!
//! An urgent [message](crate::mailbox) kicks, too, and always writes to the eventfd.
//!
//! The ring has a multishot poll of the eventfd. The poll is edge-triggered, so the eventfd is
//! never read. Its 64-bit counter does not overflow in practice. After the ring is gone the word is
//! never `SLEEPING`, so a kick is one atomic swap.

use crate::sync::{AtomicU32, Ordering};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::{fmt, io};

const AWAKE: u32 = 0;
const SLEEPING: u32 = 1;
const KICKED: u32 = 2;

pub(crate) struct SleepState(AtomicU32);

#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sleep {
    /// The ring's thread has not been kicked since it last looked for work, and may block.
    Block,
    /// The ring's thread was kicked. It must not block, but look for work.
    Kicked,
}

impl SleepState {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(AWAKE))
    }

    pub(crate) fn sleep(&self) -> Sleep {
        match self
            .0
            .compare_exchange(AWAKE, SLEEPING, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => Sleep::Block,
            Err(_) => {
                self.awake();
                Sleep::Kicked
            }
        }
    }

    pub(crate) fn awake(&self) {
        self.0.swap(AWAKE, Ordering::AcqRel);
    }

    /// Records a kick, from any thread. Returns true if the owner sleeps and this call must signal
    /// the eventfd.
    #[must_use]
    pub(crate) fn kick(&self) -> bool {
        self.0.swap(KICKED, Ordering::AcqRel) == SLEEPING
    }
}

pub(crate) struct Kick {
    pub(crate) sleep_state: SleepState,
    eventfd: OwnedFd,
}

impl Kick {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: the call takes no pointers, so it has no preconditions.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            sleep_state: SleepState::new(),
            // SAFETY: the descriptor is new and has no other owner.
            eventfd: unsafe { OwnedFd::from_raw_fd(fd) },
        })
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.eventfd.as_raw_fd()
    }

    pub(crate) fn kick(&self) {
        if self.sleep_state.kick() {
            self.signal();
        }
    }

    /// Kicks, and signals the eventfd even while the ring's thread is awake. The ring then has a
    /// completion, that of the poll of the eventfd.
    pub(crate) fn kick_always(&self) {
        let _ = self.sleep_state.kick();
        self.signal();
    }

    /// Signals the eventfd without looking at the state word. Async-signal-safe.
    pub(crate) fn signal(&self) {
        let one = 1u64;
        // SAFETY: the pointer is valid for reading eight bytes. The only possible failure, a
        // counter at its maximum, leaves the descriptor readable.
        unsafe {
            libc::write(self.raw_fd(), (&raw const one).cast(), 8);
        }
    }
}

/// Wakes a ring's thread from any thread. Cheap to clone; outlives the ring.
#[derive(Clone)]
pub struct Remote(Arc<Kick>);

impl Remote {
    pub(crate) fn new(kick: Arc<Kick>) -> Self {
        Self(kick)
    }

    /// Makes the current or the next [`Ring::wait`](crate::Ring::wait) return. The caller publishes
    /// work first, then kicks.
    ///
    /// Costs one atomic swap, and one `write` if the ring's thread is blocked and has not been
    /// kicked yet. Does nothing after the ring is gone.
    #[inline]
    pub fn kick(&self) {
        self.0.kick();
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote")
            .field("eventfd", &self.0.raw_fd())
            .finish()
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;

    /// The sleeper never blocks on work that was published before the kick.
    #[test]
    fn no_kick_is_lost() {
        loom::model(|| {
            let sleep_state = Arc::new(SleepState::new());
            let signalled = Arc::new(AtomicBool::new(false));
            let work = Arc::new(AtomicBool::new(false));
            let thread = {
                let (sleep_state, signalled, work) =
                    (sleep_state.clone(), signalled.clone(), work.clone());
                loom::thread::spawn(move || {
                    work.store(true, Ordering::Relaxed);
                    if sleep_state.kick() {
                        signalled.store(true, Ordering::Release);
                    }
                })
            };
            while !work.load(Ordering::Relaxed) {
                if sleep_state.sleep() == Sleep::Block {
                    while !signalled.load(Ordering::Acquire) {
                        loom::thread::yield_now();
                    }
                    sleep_state.awake();
                    assert!(work.load(Ordering::Relaxed));
                }
            }
            thread.join().unwrap();
        });
    }
}
