//! [`Poll`]: a poll as a watchdog sees it.
//!
//! A thread that wants to know of long polls looks, from time to time, at
//! [`Vcpu::current_poll`](crate::Vcpu::current_poll) and asks by
//! [`Vcpu::watch_current_poll`](crate::Vcpu::watch_current_poll) to be told of its end.
//! So the clock is read at the end of polls that somebody has seen under way, and of
//! no other: whoever looks every *t* hears of every poll that takes longer than *t*,
//! and of shorter ones as often as they are long.
//!
//! Cost: one load and one comparison per poll, whether anybody looks or not, and 8
//! bytes per coroutine for the place where it was spawned.

use core::panic::Location;
use core::ptr::NonNull;

use crate::coroutine::Header;
use crate::host::Host;
use crate::id::CoroutineId;
use crate::level::Level;
use crate::vcpu::id_of;

/// A poll that is under way, or has just ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Poll {
    /// Whose.
    pub id: CoroutineId,
    /// Its effective level.
    pub level: Level,
    /// Where it was spawned.
    pub location: &'static Location<'static>,
    /// When the poll began, in the host's ticks; up to four short polls too early.
    pub began: u64,
}

impl Poll {
    /// # Safety
    /// The caller owns the coroutine or holds a reference to it.
    pub(crate) unsafe fn of<H: Host>(coroutine: NonNull<Header<H>>, began: u64) -> Poll {
        // SAFETY: alive, says the caller.
        let header = unsafe { coroutine.as_ref() };
        Poll {
            id: id_of(coroutine),
            level: header.level(),
            location: header.location,
            began,
        }
    }
}
