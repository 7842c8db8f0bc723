//! The machine that is simulated: how many vCPUs it has and what its steps cost.

use upshift_core::Floor;

/// What polls may be interrupted at, and for how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preemption {
    /// Nanoseconds between the decision to suspend a poll and the next turn of its vCPU, and between the
    /// decision to resume it and its next instruction. A poll that has run for less is left alone.
    pub suspension: u64,
    /// Nanoseconds after which a poll gives way to an equal.
    pub quantum: u64,
}

/// Costs in nanoseconds of virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// 1 to 128.
    pub vcpus: usize,
    /// A turn of a vCPU: what lies between two polls.
    pub turn: u64,
    /// A turn that takes work from another vCPU costs this in addition.
    pub steal: u64,
    /// From the end of a wait to the first instruction after it.
    pub wake: u64,
    /// A poll that has run for so long is long: [`Config::look_after`](upshift_core::Config::look_after).
    pub look: u64,
    /// `None`: polls are never interrupted.
    pub preemption: Option<Preemption>,
    /// See [`Config::floor`](upshift_core::Config::floor).
    pub floor: Option<Floor>,
    /// When the clock of its CPUs is set back, and by how much, ns.
    pub set_back: Option<(u64, u64)>,
}

impl Machine {
    /// A machine with the costs of the virtual machine that the project is measured on.
    #[must_use]
    pub fn new(vcpus: usize) -> Machine {
        Machine {
            vcpus,
            turn: 100,
            steal: 300,
            wake: 35_000,
            look: 50_000,
            preemption: None,
            floor: None,
            set_back: None,
        }
    }

    /// The same with preemption.
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

    /// *B* of the law of conservation: a poll is known to be long after two looks, which may just have missed its
    /// beginning; then vCPUs are woken, each of which wakes another one, so their number doubles in a wake-up.
    #[must_use]
    pub fn conservation_bound(&self) -> u64 {
        let doublings = u64::from(self.vcpus.next_power_of_two().trailing_zeros());
        3 * self.look + (2 + doublings) * (self.wake + self.overhead()) + SLACK
    }

    /// Returns the time that the interleaving and a turn may add to any span.
    pub(crate) fn slack(&self) -> u64 {
        self.overhead() + SLACK
    }

    /// What may lie between a decision and its effect besides what the law counts: turns and steals that are under way.
    fn overhead(&self) -> u64 {
        self.turn + self.steal
    }
}

/// Delays that the interleaving inserts, at most 255 ns each: room for so many that one case of tests can hold.
const SLACK: u64 = 20_000;
