//! How a poll is suspended, and who makes the ring's system calls meanwhile.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use upshift_core::Place;
use upshift_elevate::dispatch::heavy_barrier;
use upshift_ring::Proxy;

use super::seat::Go;
use super::split::{RING_SEAT, Split};

impl Split {
    /// Takes the vCPU from the current seat in the middle of its poll and makes
    /// another one current, which finds out what it is told as `guess`, see
    /// [`Split::guess`]. Only for the sentinel.
    pub(super) fn suspend(&self, guess: u8) -> Result<(), Unsuspended> {
        // Whoever makes another seat current holds this until that one has its permit.
        let mut roles = self.roles();
        let current = self.current.load(Acquire);
        let seat = &self.seats[current];
        if seat.permit.revoke(heavy_barrier).is_err() {
            return Err(Unsuspended::InUse);
        }
        let next = if seat.started.load(Relaxed) == 0 {
            Err(Unsuspended::Over)
        } else {
            // The thread that polls is outside of the core, and comes back to it only with its permit, which `resume` grants
            // when the coroutine has been picked.
            let stopped = roles.free().map(|_| {
                // SAFETY: as the lines above say.
                unsafe { self.worker().executor.suspend_current(Place::Tail) }
            });
            match stopped {
                None => Err(Unsuspended::NoSeat),
                Some(None) => Err(Unsuspended::Over),
                Some(Some(id)) => {
                    seat.ran.store(seat.has_run(), Relaxed);
                    seat.coroutine.store(id.to_u64(), Relaxed);
                    roles.suspend().ok_or(Unsuspended::NoSeat)
                }
            }
        };
        match next {
            Err(why) => {
                seat.permit.grant();
                Err(why)
            }
            Ok(next) => {
                self.suspended.fetch_add(1, Relaxed);
                // The same thread every time.
                let _ = seat.owner.set(self.worker().ring.owner());
                if let Some(thread) = seat.thread.get() {
                    // Lowering needs no rights; if the thread is gone there is nothing to lower.
                    let _ = thread.set(self.settings.bands.demoted());
                }
                self.guess.store(guess, Relaxed);
                self.current.store(next, Release);
                // The next seat looks after itself, from its first poll on.
                self.watched.store(false, SeqCst);
                self.seats[next].tell(Go::Serve);
                Ok(())
            }
        }
    }
}

/// Why nothing was suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unsuspended {
    /// The runtime is in the middle of something.
    InUse,
    /// The poll has ended.
    Over,
    /// Every seat holds a poll.
    NoSeat,
}

/// The way of the ring's system calls while seat 0 is suspended.
pub(super) struct ByOwner(pub(super) *const Split);

// SAFETY: the ring, which holds it, lives in the `Split`, and asks it from the current seat only.
unsafe impl Send for ByOwner {}
// SAFETY: as above.
unsafe impl Sync for ByOwner {}

impl Proxy for ByOwner {
    fn call(&self, job: &mut dyn FnMut()) -> bool {
        // SAFETY: see above.
        let split = unsafe { &*self.0 };
        let seat = &split.seats[RING_SEAT];
        let settings = &split.settings;
        // The home thread asks while seat 0 waits for it; everybody else while seat 0 is suspended.
        let back_to = if seat.permit.is_revoked() {
            settings.bands.demoted()
        } else {
            settings.bands.elevated()
        };
        match seat.thread.get() {
            Some(owner) => split.service.request(job, owner, settings.service, back_to),
            None => false,
        }
    }
}
