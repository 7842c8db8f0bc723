//! [`Clock`] is the engine's source of time, which tests replace by a simulated clock.

use upshift_elevate::futex::{futex_wait, futex_wait_until};

use crate::control::Control;
use crate::policy::Nanos;

/// A source of time for an engine.
pub trait Clock {
    /// Returns the current time, ns.
    fn now(&self) -> Nanos;

    /// Waits until `until`, or until another thread wakes the engine through `control`; with `None`
    /// it waits only for another thread. May return early.
    fn wait(&mut self, until: Option<Nanos>, control: &Control);

    /// Returns the CPU time of the calling thread, ns, which is the cost of scheduling.
    fn own_cpu_time(&self) -> Nanos {
        0
    }
}

/// CLOCK_MONOTONIC. A wait is one system call with an absolute time; real-time threads have no
/// timer slack.
#[derive(Debug, Clone, Copy, Default)]
pub struct Monotonic;

fn read(clock: libc::clockid_t) -> Option<Nanos> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes to `time`, a local.
    let done = unsafe { libc::clock_gettime(clock, &raw mut time) };
    (done == 0).then_some(time.tv_sec as Nanos * 1_000_000_000 + time.tv_nsec as Nanos)
}

/// Returns the CPU time of a thread, ns, or `None` if the thread has ended. This costs one system
/// call.
pub(crate) fn thread_cpu_time(tid: libc::pid_t) -> Option<Nanos> {
    // Number of a thread's CPU clock (linux/posix-timers_types.h): the complement of the tid, then
    // three bits: 4 selects a thread's clock, 2 the scheduler's count.
    read((!tid << 3) | 4 | 2)
}

impl Clock for Monotonic {
    fn now(&self) -> Nanos {
        // CLOCK_MONOTONIC always exists.
        read(libc::CLOCK_MONOTONIC).unwrap_or(0)
    }

    fn wait(&mut self, until: Option<Nanos>, control: &Control) {
        // The call returns at the given time, when the word is not 0, or on a signal. This function
        // may return in all three cases.
        match until {
            Some(at) => futex_wait_until(control.word(), 0, at),
            None => futex_wait(control.word(), 0),
        }
    }

    fn own_cpu_time(&self) -> Nanos {
        read(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_at_its_time_or_with_the_bell() {
        let (mut clock, control) = (Monotonic, Control::default());
        let until = clock.now() + 2_000_000;
        while clock.now() < until {
            clock.wait(Some(until), &control);
        }
        control.stop();
        clock.wait(None, &control);
        assert!(control.take_bell() && !control.take_bell());
    }
}
