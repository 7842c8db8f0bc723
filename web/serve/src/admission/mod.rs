//! Admission control, which refuses requests that would wait too long. Each level (0 is the most
//! urgent, 63 the least) has a *gate*, which admits or refuses the requests of the level.
//!
//! A gate knows two facts about its level: the number of requests in progress, and how long
//! requests wait before they begin. The ready queue of a level is FIFO. The expected wait of the
//! next request is therefore the wait of the request that began last, or the time since then while
//! other requests wait, whichever is longer. If the expected wait exceeds the bound, the request is
//! refused. Gates share no state, so a queue at one level does not close the gate of another level.
//! Since strict priority makes the least urgent requests wait first, they are also refused first.
//!
//! Each vCPU, that is, each worker thread with its run queues, has its own ready queues, and
//! therefore its own gates. A request is admitted according to the queue in which it would wait.
//! Only the bound on the number of requests in progress applies to the whole server, by the sum of
//! the counts of all vCPUs.
//!
//! Time in which the process has no CPU does not count as waiting, because the clock of the gates
//! ([`Gates::counted`]) excludes this time.
//!
//! Each request costs four relaxed read-modify-write operations and a few stores on words of its
//! vCPU, a load for each of the other vCPUs, and two readings of the clock.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use upshift::{LEVELS, Level};

use crate::admission::absence::{Absence, process_cpu_time};
use crate::clock;
use crate::per_vcpu::PerVcpu;

mod absence;
pub(crate) mod rates;

/// The gate of one level on one vCPU. Times are nanoseconds of [`Gates::counted`].
#[derive(Debug, Default)]
struct Gate {
    /// Number of requests that were admitted and have not ended.
    in_flight: AtomicU32,
    /// Number of requests that were admitted and have not begun.
    waiting: AtomicU32,
    /// Time at which a request last began, or last arrived at a gate without waiting requests.
    progress_at: AtomicU64,
    /// Wait of the request that began last.
    last_wait: AtomicU64,
    /// Number of requests that were refused.
    refused: AtomicU64,
}

impl Gate {
    fn expected_wait(&self, now: u64) -> u64 {
        if self.waiting.load(Relaxed) == 0 {
            return 0;
        }
        let since_progress = now.saturating_sub(self.progress_at.load(Relaxed));
        since_progress.max(self.last_wait.load(Relaxed))
    }
}

#[derive(Debug)]
pub(crate) struct Gates {
    gates: PerVcpu<VcpuGates>,
    absence: Absence,
}

#[derive(Debug)]
struct VcpuGates([Gate; LEVELS]);

impl Default for VcpuGates {
    fn default() -> VcpuGates {
        VcpuGates(std::array::from_fn(|_| Gate::default()))
    }
}

/// An admitted request, from [`admit`](Gates::admit) to [`end`](Gates::end).
#[derive(Debug)]
#[must_use = "a request counts as in flight until `end`"]
pub(crate) struct Ticket {
    vcpu: usize,
    level: Level,
    /// Counted time at which the request was admitted.
    admitted_at: u64,
    has_begun: bool,
}

impl Gates {
    pub(crate) fn new(vcpus: usize) -> Gates {
        Gates {
            gates: PerVcpu::new(vcpus),
            absence: Absence::new(),
        }
    }

    /// Returns the time `now` of [`clock`] without the absences, which are times in which requests
    /// waited and the process had no CPU.
    pub(crate) fn counted(&self, now: u64) -> u64 {
        let is_waiting = || {
            let mut gates = self.gates.iter().flat_map(|gates| &gates.0);
            gates.any(|gate| gate.waiting.load(Relaxed) != 0)
        };
        self.absence.counted(now, process_cpu_time, is_waiting)
    }

    fn gate(&self, vcpu: usize, level: Level) -> &Gate {
        &self.gates.get(vcpu).0[usize::from(level.get())]
    }

    fn level_gates(&self, level: Level) -> impl Iterator<Item = &Gate> {
        let level = usize::from(level.get());
        self.gates.iter().map(move |gates| &gates.0[level])
    }

    /// Admits a request of a level at the counted time `now`. Returns `None` if `max_in_flight`
    /// requests of the level are in progress, or if the expected wait exceeds `max_wait`.
    pub(crate) fn admit(
        &self,
        level: Level,
        now: u64,
        max_wait: Duration,
        max_in_flight: u32,
    ) -> Option<Ticket> {
        let vcpu = self.gates.index();
        let gate = self.gate(vcpu, level);
        if self.in_flight(level) >= max_in_flight
            || u128::from(gate.expected_wait(now)) > max_wait.as_nanos()
        {
            gate.refused.fetch_add(1, Relaxed);
            return None;
        }
        gate.in_flight.fetch_add(1, Relaxed);
        if gate.waiting.fetch_add(1, Relaxed) == 0 {
            gate.last_wait.store(0, Relaxed);
            gate.progress_at.store(now, Relaxed);
        }
        Some(Ticket {
            vcpu,
            level,
            admitted_at: now,
            has_begun: false,
        })
    }

    /// Returns the expected wait of the next request of a level, on the vCPU where it is longest.
    pub(crate) fn expected_wait(&self, level: Level) -> Duration {
        let now = self.counted(clock::nanos());
        let longest = self
            .level_gates(level)
            .map(|gate| gate.expected_wait(now))
            .max();
        Duration::from_nanos(longest.unwrap_or(0))
    }

    pub(crate) fn in_flight(&self, level: Level) -> u32 {
        let counts = self
            .level_gates(level)
            .map(|gate| gate.in_flight.load(Relaxed));
        counts.sum()
    }

    pub(crate) fn refused(&self, level: Level) -> u64 {
        let refused = self
            .level_gates(level)
            .map(|gate| gate.refused.load(Relaxed));
        refused.sum()
    }

    pub(crate) fn begin(&self, ticket: &mut Ticket, now: u64) {
        self.begin_at(ticket, self.counted(now));
    }

    fn begin_at(&self, ticket: &mut Ticket, now: u64) {
        if !ticket.has_begun {
            ticket.has_begun = true;
            let gate = self.gate(ticket.vcpu, ticket.level);
            gate.waiting.fetch_sub(1, Relaxed);
            gate.last_wait
                .store(now.saturating_sub(ticket.admitted_at), Relaxed);
            gate.progress_at.store(now, Relaxed);
        }
    }

    pub(crate) fn end(&self, ticket: Ticket) {
        let gate = self.gate(ticket.vcpu, ticket.level);
        gate.in_flight.fetch_sub(1, Relaxed);
        if !ticket.has_begun {
            gate.waiting.fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const BOUND: Duration = Duration::from_millis(100);
    const LOW: Level = Level::at::<60>();
    const HIGH: Level = Level::at::<4>();

    #[test]
    fn a_level_that_makes_no_progress_is_closed_and_others_are_not() {
        let gates = Gates::new(1);
        let first = gates.admit(LOW, 0, BOUND, 1000).unwrap();
        let second = gates.admit(LOW, 99 * MS, BOUND, 1000).unwrap();
        assert!(gates.admit(LOW, 101 * MS, BOUND, 1000).is_none());
        assert!(gates.admit(HIGH, 101 * MS, BOUND, 1000).is_some());
        assert_eq!((gates.refused(LOW), gates.refused(HIGH)), (1, 0));
        gates.end(first);
        gates.end(second);
        assert!(
            gates.admit(LOW, 102 * MS, BOUND, 1000).is_some(),
            "no request waits"
        );
    }

    #[test]
    fn the_last_wait_counts_while_requests_wait() {
        let gates = Gates::new(1);
        let mut first = gates.admit(LOW, 0, BOUND, 1000).unwrap();
        let mut second = gates.admit(LOW, 100 * MS, BOUND, 1000).unwrap();
        gates.begin_at(&mut first, 150 * MS);
        assert!(gates.admit(LOW, 151 * MS, BOUND, 1000).is_none());
        gates.begin_at(&mut second, 160 * MS);
        assert!(gates.admit(LOW, 161 * MS, BOUND, 1000).is_some());
    }

    #[test]
    fn the_number_of_requests_in_flight_is_bounded() {
        let gates = Gates::new(1);
        let mut first = gates.admit(LOW, 0, BOUND, 1).unwrap();
        gates.begin_at(&mut first, 0);
        assert!(gates.admit(LOW, 1, BOUND, 1).is_none());
        gates.end(first);
        gates.end(gates.admit(LOW, 2, BOUND, 1).unwrap());
        assert_eq!(gates.in_flight(LOW), 0);
    }
}
