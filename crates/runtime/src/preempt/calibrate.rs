//! What suspending a poll costs on this machine: measured once, in some two milliseconds, by the first runtime that asks.

use std::hint::black_box;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread;

use upshift_core::preempt::Looks;

use crate::affinity;
use crate::clock;
use crate::futex::{futex_wait, futex_wake};

/// How often each thing is done; the median counts.
const ROUNDS: usize = 33;

/// Costs in CPU time, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Costs {
    /// To suspend a poll and to go on with it.
    pub(crate) suspension: u64,
    /// To have the watcher look for nothing.
    pub(crate) looks: Looks,
}

impl Costs {
    /// A look is two switches of thread and as much work as one, and perhaps a timer. A suspension is two looks (what comes finds the poll, a timer stops
    /// it) and six switches: to the stopped thread's handler, to the next one, to and fro for the ring, and to the stopped one when it goes on.
    fn of(switch: u64, timer: u64) -> Costs {
        let bell = 3 * switch;
        let timer = timer + bell;
        Costs {
            suspension: bell + timer + 6 * switch,
            looks: Looks { bell, timer },
        }
    }
}

/// See the module.
pub(crate) fn costs(cpu: usize) -> Costs {
    static COSTS: OnceLock<Costs> = OnceLock::new();
    *COSTS.get_or_init(|| {
        let measured = thread::Builder::new()
            .name("upshift-calibrate".to_owned())
            .spawn(move || {
                // Elsewhere a switch costs more: then so does suspending.
                let _ = affinity::pin(cpu);
                Costs::of(switch(), timer())
            })
            .and_then(|thread| {
                thread
                    .join()
                    .map_err(|_| std::io::Error::other("calibration failed"))
            });
        // Where no thread can be started nothing will be suspended either.
        measured.unwrap_or(Costs::of(2_000, 10_000))
    })
}

/// From one thread to another one of the same CPU.
fn switch() -> u64 {
    let (ping, pong) = (AtomicU32::new(0), AtomicU32::new(0));
    let pass = |mine: &AtomicU32, other: &AtomicU32, round: u32| {
        while mine.load(Acquire) != round {
            futex_wait(mine, round - 1);
        }
        other.store(round, Release);
        futex_wake(other);
    };
    thread::scope(|scope| {
        scope.spawn(|| (1..=ROUNDS as u32).for_each(|round| pass(&ping, &pong, round)));
        median(|round| {
            ping.store(round, Release);
            futex_wake(&ping);
            while pong.load(Acquire) != round {
                futex_wait(&pong, round - 1);
            }
        }) / 2
    })
}

/// To wait for the shortest time.
fn timer() -> u64 {
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 1,
    };
    // SAFETY: no descriptors; a pointer to a local.
    median(|_| unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1);
        black_box(libc::ppoll(
            std::ptr::null_mut(),
            0,
            &raw const time,
            std::ptr::null(),
        ));
    })
}

fn median(mut act: impl FnMut(u32)) -> u64 {
    let mut times: Vec<_> = (1..=ROUNDS as u32)
        .map(|round| {
            let began = clock::now();
            act(round);
            clock::now() - began
        })
        .collect();
    times.sort_unstable();
    times[ROUNDS / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suspension_costs_more_than_a_look() {
        let costs = costs(affinity::current().unwrap().cpus()[0]);
        let Looks { bell, timer } = costs.looks;
        assert!(
            bell > 0 && timer > bell && costs.suspension > timer,
            "{costs:?}"
        );
    }
}
