//! Measures what it costs on this machine to suspend a poll. The first runtime that needs the cost
//! measures it, in about two milliseconds.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::thread;

use upshift_core::preempt::LookCosts;

use super::alarm::Alarm;
use super::slice;
use crate::affinity;
use crate::futex::{futex_wait, futex_wake};
use crate::time::clock;

/// Assumed cost of a look that the timer causes, if it cannot be measured, ns.
const DEFAULT_LOOK_COST: u64 = 10_000;
/// Delay for which a measurement sets the timer, ns.
const SHORT_TIMER: u64 = 20_000;
/// Longest time between two looks of the measurement's watcher, ns.
const LONGEST_TIMER: u64 = 500_000;
/// Repetitions of each measurement, of which the median counts.
const ROUNDS: usize = 33;

/// Costs in CPU time, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Costs {
    pub(crate) suspension: u64,
    /// Costs of looks that stop nothing.
    pub(crate) looks: LookCosts,
}

impl Costs {
    /// Derives the costs from the cost of a switch between threads and that of a look caused by the
    /// timer, in ns. A look caused by an arrival costs two switches, and work that costs as much as
    /// one more. A suspension costs one look of each kind and six switches, among them those to the
    /// stopped thread's handler, to the next thread, to and fro for the ring, and to the stopped
    /// thread when it resumes.
    fn derive(switch: u64, timer: u64) -> Costs {
        let event = 3 * switch;
        let timer = timer.max(event + switch);
        Costs {
            suspension: event + timer + 6 * switch,
            looks: LookCosts { event, timer },
        }
    }
}

/// Returns the costs on `cpu`, which the first call measures.
pub(crate) fn costs(cpu: usize) -> Costs {
    static COSTS: OnceLock<Costs> = OnceLock::new();
    *COSTS.get_or_init(|| {
        let result = thread::Builder::new()
            .name("upshift-calibrate".to_owned())
            .spawn(move || {
                // A switch to a thread on another CPU would cost more.
                let _ = affinity::pin(cpu);
                Costs::derive(measure_switch(), measure_look())
            })
            .and_then(|thread| {
                thread
                    .join()
                    .map_err(|_| std::io::Error::other("calibration failed"))
            });
        // If no thread can be started, no poll will be suspended either, so the values do not
        // matter.
        result.unwrap_or(Costs::derive(2_000, DEFAULT_LOOK_COST))
    })
}

/// Measures the time of a switch from a thread to another one, ns.
fn measure_switch() -> u64 {
    let (ping, pong) = (AtomicU32::new(0), AtomicU32::new(0));
    let pass = |own: &AtomicU32, other: &AtomicU32, round: u32| {
        while own.load(Acquire) != round {
            futex_wait(own, round - 1);
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

/// Measures the time (ns) that a poll loses to a look caused by the timer. This thread stands for
/// the poll: it sets the timer, and the watcher's thread interrupts it.
fn measure_look() -> u64 {
    let Ok(alarm) = Alarm::new() else {
        return DEFAULT_LOOK_COST;
    };
    let (looks, ended) = (AtomicU32::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let (alarm, looks, ended) = (&alarm, &looks, &ended);
        let watcher = thread::Builder::new().spawn_scoped(scope, move || {
            slice::schedule_as_watcher(false);
            while !ended.load(Acquire) {
                alarm.wait();
                alarm.take();
                // The timer is set again, so that this loop ends even if the other thread does not
                // set the timer any more.
                alarm.arm(clock::now() + LONGEST_TIMER);
                looks.fetch_add(1, Release);
            }
        });
        if watcher.is_err() {
            return DEFAULT_LOOK_COST;
        }
        let with_delay = median(|_| {
            let looks_before = looks.load(Acquire);
            let began = clock::now();
            alarm.arm(began + SHORT_TIMER);
            while looks.load(Acquire) == looks_before {
                // On the same CPU, the kernel may make the watcher wait for this thread until the
                // next scheduler tick.
                if clock::now() - began > LONGEST_TIMER {
                    thread::yield_now();
                }
            }
        });
        ended.store(true, Release);
        with_delay.saturating_sub(SHORT_TIMER)
    })
}

/// Returns the median time of a call of `act`, ns.
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
        let LookCosts { event, timer } = costs.looks;
        assert!(
            event > 0 && timer > event && costs.suspension > event,
            "{costs:?}"
        );
    }
}
