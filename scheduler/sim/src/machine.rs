//! Describes the simulated machine by its number of vCPUs and the costs of its steps.

use upshift_core::Floor;

/// Costs and limits of the suspension of polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preemption {
    /// Nanoseconds between the decision to suspend a poll and the next pick of its vCPU, and
    /// between the decision to resume the poll and its next instruction. A poll that has run for
    /// less is not suspended.
    pub suspension: u64,
    /// Nanoseconds after which a poll yields to one of the same level.
    pub quantum: u64,
}

/// A simulated machine. Costs are in nanoseconds of virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Number of vCPUs, 1 to 128.
    pub vcpus: usize,
    /// Time between two polls of a vCPU.
    pub pick_cost: u64,
    /// Additional time between two polls if the vCPU takes work from another one.
    pub steal_cost: u64,
    /// Time from the end of a wait to the first instruction after it.
    pub wake: u64,
    /// Time after which a poll is long:
    /// [`Config::long_poll_after`](upshift_core::Config::long_poll_after).
    pub long_poll_after: u64,
    /// Preemption. With `None`, polls are never interrupted.
    pub preemption: Option<Preemption>,
    /// Share of less urgent levels; see [`Config::floor`](upshift_core::Config::floor).
    pub floor: Option<Floor>,
    /// Time at which the clock is set back, and the time by which it is set back, in nanoseconds.
    pub set_back: Option<(u64, u64)>,
}

impl Machine {
    /// Creates a machine with the costs of the virtual machine on which the project is measured.
    #[must_use]
    pub fn new(vcpus: usize) -> Machine {
        Machine {
            vcpus,
            pick_cost: 100,
            steal_cost: 300,
            wake: 35_000,
            long_poll_after: 50_000,
            preemption: None,
            floor: None,
            set_back: None,
        }
    }

    /// Creates a machine with the same costs and preemption.
    #[must_use]
    pub fn preemptible(vcpus: usize) -> Machine {
        Machine {
            preemption: Some(Preemption {
                suspension: 25_000,
                quantum: 500_000,
            }),
            ..Machine::new(vcpus)
        }
    }

    /// Returns the bound *B* of the law of conservation. An idle vCPU must examine another vCPU
    /// twice before it knows that a poll there is long, since the first examination may just have
    /// missed the beginning of the poll, and once more if a clock has been set back. Then vCPUs are
    /// woken, each of which wakes another, so that the number of awake vCPUs doubles in the time of
    /// a wake-up.
    #[must_use]
    pub fn conservation_bound(&self) -> u64 {
        let doublings = u64::from(self.vcpus.next_power_of_two().trailing_zeros());
        3 * self.long_poll_after + (2 + doublings) * (self.wake + self.overhead()) + SLACK
    }

    /// Returns the time that the interleaving, a pick and a steal may add to any span.
    pub(crate) fn slack(&self) -> u64 {
        self.overhead() + SLACK
    }

    /// Returns the time of a pick and a steal, which may be under way between a decision and its
    /// effect.
    fn overhead(&self) -> u64 {
        self.pick_cost + self.steal_cost
    }
}

/// Allowance for the delays of an interleaving. Generated cases have fewer than 80 delays of at
/// most 255 ns each, and most delays are shorter.
const SLACK: u64 = 20_000;
