//! Preemptible ("split") vCPUs: a poll that overruns does not hold up others.
//!
//! ```text
//!   sentinel   SCHED_FIFO 30   sleeps on an eventfd and a timer; suspends (sentinel.rs)
//!   seats      SCHED_FIFO 20   one is current: it runs ring and coroutines, inline (serve.rs)
//!              SCHED_OTHER     the current one, while it goes on with a poll that has run for more than 50 ms
//!              SCHED_FIFO 10   those that hold a suspended poll
//!   home       SCHED_FIFO 20   the thread of `block_on`: polls what is pinned to it (home.rs)
//! ```
//!
//! All threads of a vCPU are pinned to one CPU. While polls are short, the current
//! seat does what an inline vCPU does, with no hand-over: enter the ring, reap,
//! poll. Before it polls, the ring's completion eventfd is unmasked by one store
//! into memory that the kernel reads, so that **the arrival is the interrupt**: it
//! wakes the sentinel only while a poll is under way. Who decides, and what it may
//! cost those who behave, is [`upshift_elevate::dispatch`].
//!
//! # Suspending
//!
//! The sentinel revokes the permit of the current seat (`seat.rs`, `suspend.rs`), takes the ring
//! from its thread, lets the core queue the coroutine as *suspended*, demotes the
//! thread, and makes a free seat current. The suspended thread stays runnable, so
//! it gets the CPU when everybody above sleeps: the holder of a lock that others
//! wait for goes on. Whatever it asks of the runtime meanwhile waits until its
//! coroutine is picked again, when its thread is elevated and its permit granted.
//! So no data is shared without the permit, whatever the priorities are: if they
//! fail (no rights any more, an affinity changed from outside) the vCPU gets
//! slower, not wrong.
//!
//! # The ring of a suspended thread
//!
//! Only the thread that made a ring (seat 0) may enter it. While that thread is
//! suspended, the current seat prepares the system call, sends it a signal and
//! elevates it for the length of the signal's handler, which does nothing but this
//! call (`service.rs`). So the ring stays in its fastest mode, and the detour,
//! some microseconds, is paid only while an overrun is being dealt with.
//!
//! # What is pinned
//!
//! The future of `block_on` and those of `spawn_local` are not `Send`: they are
//! polled on the thread of `block_on` only, and are not suspended.

mod home;
mod seat;
mod sentinel;
mod serve;
mod service;
mod split;
mod suspend;

use std::fmt;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use upshift_elevate::{CalibrateError, Calibration};

pub use seat::NoSuspend;
pub(crate) use seat::is_seated;
pub(crate) use serve::waits_here;
pub(crate) use service::answer_here;
pub(crate) use split::{Settings, Split};

/// Whether a vCPU may interrupt a poll that overruns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preemption {
    /// Never: vCPUs are cooperative.
    #[default]
    Off,
    /// If this process may use SCHED_FIFO. Otherwise the runtime says on standard
    /// error what is missing, and is cooperative.
    Preferred,
    /// Yes; building the runtime fails with the name of what is missing.
    Required,
}

/// What preemption has done so far, over all vCPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PreemptionStats {
    /// vCPUs that can interrupt a poll.
    pub vcpus: usize,
    /// Polls that were suspended.
    pub suspensions: u64,
    /// Coroutines that are suspended now.
    pub suspended: usize,
    /// How often a sentinel woke up.
    pub looks: u64,
    /// How often for nothing: precautions, which are limited to about 3 % of the
    /// time.
    pub useless: u64,
    /// System calls on the ring made by a thread that was suspended.
    pub services: u64,
}

/// Forbids that the current poll is suspended, until the guard is dropped or a
/// millisecond has passed. Two stores and two loads; nothing without preemption.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// {
///     let _guard = upshift::no_suspend();
///     // A few microseconds with a spin lock, say.
/// }
/// # });
/// ```
pub fn no_suspend() -> NoSuspend {
    NoSuspend::new()
}

/// What keeps a vCPU from being preemptible.
pub(crate) fn refusal(why: impl fmt::Display) -> io::Error {
    io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("no preemption: {why}"),
    )
}

/// The shortest quantum that makes sense on this machine; measured once, in some
/// ten milliseconds, by the first runtime that asks.
pub(crate) fn machine() -> io::Result<Machine> {
    static MACHINE: Mutex<Option<Machine>> = Mutex::new(None);
    let mut machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(machine) = *machine {
        return Ok(machine);
    }
    let measured = match Calibration::brief() {
        Ok(measured) => measured,
        // Others hold the CPU now. What every machine can do, and asked again next time.
        Err(CalibrateError::TooBusy) => return Ok(Machine::ASSUMED),
        Err(error) => return Err(refusal(error)),
    };
    let found = Machine {
        floor: measured.quantum_floor(),
        look_cost: measured.look_cost(),
    };
    *machine = Some(found);
    Ok(found)
}

/// What was measured of this machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine {
    /// The shortest sensible quantum.
    pub(crate) floor: Duration,
    /// What a look of a sentinel costs whoever runs.
    pub(crate) look_cost: Duration,
}

impl Machine {
    /// A slow virtual machine.
    const ASSUMED: Machine = Machine {
        floor: Duration::from_micros(100),
        look_cost: Duration::from_micros(20),
    };
}
