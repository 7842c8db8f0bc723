//! Checks the floor, which is the share of the CPU time that is reserved for less urgent levels.
//! These levels must get their share, and may take at most this share ahead of urgent work.
//!
//! Both bounds must hold for *any* window of time. The largest excess of all windows that end now
//! is computed from the largest excess of a moment ago. Time that counts towards the excess is
//! added, and other time is subtracted. An excess below 0 becomes 0, since a shorter window is then
//! the worst.

use upshift_core::Floor;

use super::{Law, Laws, Tracked, Violation};
use crate::machine::Machine;
use crate::workload::Workload;
use crate::world::World;

/// The activity of a vCPU from the beginning of a poll to the next pick.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Other,
    /// A poll of a level of the floor. `overtakes_urgent` is true if a coroutine above the floor
    /// was ready when the poll began; `ready` is the vCPU's bitmap at that time.
    Floor {
        overtakes_urgent: bool,
        ready: u64,
    },
}

/// The state of the check. Excesses are in hundredths of nanoseconds.
pub(super) struct FloorLaw {
    floor: Floor,
    uses: Vec<Use>,
    /// For each vCPU, the time by which polls of the floor that went ahead of urgent work exceed
    /// the share.
    ahead: Vec<u64>,
    /// Time by which the floor is behind its share while it has work. Used only on a machine with
    /// one vCPU.
    behind: u64,
    /// The bound *Q* + *P*, where *Q* is the floor's quantum and *P* is the length of the longest
    /// poll.
    bound: u64,
    /// True if the floor is guaranteed its share *f*. The guarantee requires one vCPU, and *f* ·
    /// *P* ≤ *Q*.
    is_guaranteed: bool,
}

impl FloorLaw {
    /// Returns `None` if the machine has no floor, or a poll may take any time.
    pub(super) fn new(machine: &Machine, workload: &Workload) -> Option<FloorLaw> {
        let floor = machine.floor.filter(|_| !workload.may_block())?;
        let suspensions = 3 * machine.preemption.map_or(0, |p| p.suspension);
        let poll = workload.longest_poll() + suspensions + machine.slack();
        // If the clock is set back, its readings do not show the time of one poll.
        let unseen = machine.set_back.map_or(0, |_| poll);
        Some(FloorLaw {
            floor,
            uses: vec![Use::Other; machine.vcpus],
            ahead: vec![0; machine.vcpus],
            behind: 0,
            bound: 100 * (floor.quantum + poll + unseen),
            is_guaranteed: machine.vcpus == 1
                && u64::from(floor.percent) * poll <= 100 * floor.quantum,
        })
    }

    pub(super) fn contains(&self, level: u8) -> bool {
        level >= self.floor.from.get()
    }

    /// Records that a vCPU begins a poll of `level` while the levels in `ready` are ready.
    /// `urgent_waits` is true if a coroutine above the floor is ready, too.
    pub(super) fn record_poll(&mut self, vcpu: usize, level: u8, urgent_waits: bool, ready: u64) {
        self.uses[vcpu] = if self.contains(level) {
            Use::Floor {
                overtakes_urgent: urgent_waits,
                ready,
            }
        } else {
            Use::Other
        };
    }

    pub(super) fn record_pick(&mut self, vcpu: usize) {
        self.uses[vcpu] = Use::Other;
    }

    /// Returns the levels that were ready when a poll of the floor began on a vCPU. The core does
    /// not ask the poll to yield to these levels.
    pub(super) fn ready_before_poll(&self, vcpu: usize) -> u64 {
        match self.uses[vcpu] {
            Use::Floor { ready, .. } => ready,
            Use::Other => 0,
        }
    }

    /// Accounts for a span of time without changes. Returns a description of the bound that is
    /// exceeded, if any.
    fn account(&mut self, all: &[Tracked], time: u64) -> Option<String> {
        let share = u64::from(self.floor.percent);
        let complement = (100 - share) * time;
        for (vcpu_use, ahead) in self.uses.iter().zip(&mut self.ahead) {
            *ahead = match vcpu_use {
                Use::Floor {
                    overtakes_urgent: true,
                    ..
                } => *ahead + complement,
                _ => ahead.saturating_sub(share * time),
            };
        }
        let has_work = |tracked: &Tracked| tracked.is_queued() && self.contains(tracked.level);
        self.behind = if self.uses[0] != Use::Other {
            self.behind.saturating_sub(complement)
        } else if all.iter().any(has_work) {
            self.behind + share * time
        } else {
            0
        };
        let max_ahead = self.ahead.iter().copied().max().unwrap_or(0);
        let (relation, excess) = if max_ahead > self.bound {
            ("went ahead of urgent work for", max_ahead)
        } else if self.is_guaranteed && self.behind > self.bound {
            ("are behind their share by", self.behind)
        } else {
            return None;
        };
        Some(format!(
            "the levels of the floor {relation} {:.3} µs; the bound is {:.3} µs",
            excess as f64 / 1e5,
            self.bound as f64 / 1e5
        ))
    }
}

impl Laws {
    /// Checks the law for the next span of time, in which no state changes.
    pub(super) fn check_floor(&mut self, world: &World, time: u64) -> Result<(), Violation> {
        let Some(floor) = &mut self.floor else {
            return Ok(());
        };
        match floor.account(&self.all, time) {
            None => Ok(()),
            Some(description) => Err(self.violation(world, Law::Floor, description)),
        }
    }
}
