//! Computes how long a poll may run before it is suspended, and at which end of its queue it then
//! waits.

use crate::base::events::WaitingWork;
use crate::base::kind::QueueEnd;

/// Time that a poll under way has used: CPU time, unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunTime {
    /// Time since the poll began.
    pub total: u64,
    /// Time since the poll began or was last resumed.
    pub stretch: u64,
    /// Wall-clock time since the poll began, without the time in which it was suspended, but with
    /// the time in which it slept or waited for the CPU.
    pub elapsed: u64,
}

/// The parameters of the decision.
///
/// ```
/// use upshift_core::preempt::{RunTime, Rule, WaitingWork};
///
/// let rule = Rule::new(20_000, 100_000);
/// let ran = RunTime { total: 5_000, stretch: 5_000, elapsed: 5_000 };
/// assert_eq!(rule.time_left(WaitingWork::Urgent, ran), Some(15_000));
/// assert_eq!(rule.time_left(WaitingWork::Equal, ran), Some(95_000));
/// assert_eq!(rule.time_left(WaitingWork::Nothing, ran), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// CPU time of the suspension and the resumption of a poll: *C*.
    pub cost: u64,
    /// CPU time for which a poll may keep an equal waiting.
    pub quantum: u64,
    /// Whether running polls are suspended at all. If not, only sleeping ones are set aside.
    pub interrupts: bool,
}

impl Rule {
    /// Creates the rule. The quantum is at least 4 *C*, to cover one suspension each for the poll
    /// and for its equal, and the looks before each suspension, which cost about as much.
    #[must_use]
    pub fn new(cost: u64, quantum: u64) -> Rule {
        Rule {
            cost,
            quantum: quantum.max(cost.saturating_mul(4)),
            interrupts: true,
        }
    }

    /// Returns the end of its level to which a suspended poll goes: the head until it has used its
    /// quantum.
    #[must_use]
    pub fn queue_end(&self, ran: RunTime) -> QueueEnd {
        if ran.total < self.quantum {
            QueueEnd::Head
        } else {
            QueueEnd::Tail
        }
    }

    /// Returns the time for which the poll may continue, apart from the budget, or `None` if it may
    /// continue without limit.
    #[must_use]
    pub fn time_left(&self, waits: WaitingWork, ran: RunTime) -> Option<u64> {
        match waits {
            _ if !self.interrupts => None,
            WaitingWork::Nothing => None,
            WaitingWork::Urgent => Some(self.cost.saturating_sub(ran.total)),
            WaitingWork::Equal => Some(self.quantum.saturating_sub(ran.total)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: Rule = Rule {
        cost: 20,
        quantum: 100,
        interrupts: true,
    };

    #[test]
    fn the_most_urgent_waiting_level_decides() {
        assert_eq!(WaitingWork::most_urgent(5, 0), WaitingWork::Nothing);
        assert_eq!(WaitingWork::most_urgent(5, 1 << 6), WaitingWork::Nothing);
        assert_eq!(
            WaitingWork::most_urgent(5, 1 << 5 | 1 << 9),
            WaitingWork::Equal
        );
        assert_eq!(
            WaitingWork::most_urgent(5, 1 << 5 | 1 << 4),
            WaitingWork::Urgent
        );
        assert_eq!(WaitingWork::most_urgent(0, 1), WaitingWork::Equal);
        assert_eq!(WaitingWork::most_urgent(63, 1), WaitingWork::Urgent);
    }

    #[test]
    fn a_quantum_is_worth_four_suspensions() {
        assert_eq!(Rule::new(20, 5).quantum, 80);
        assert_eq!(Rule::new(20, 100).quantum, 100);
    }

    #[test]
    fn a_poll_runs_for_the_cost_of_its_suspension() {
        let ran = |total, stretch| RunTime {
            total,
            stretch,
            elapsed: total,
        };
        assert_eq!(
            RULE.time_left(WaitingWork::Nothing, ran(1_000, 1_000)),
            None
        );
        assert_eq!(RULE.time_left(WaitingWork::Urgent, ran(5, 5)), Some(15));
        assert_eq!(RULE.time_left(WaitingWork::Urgent, ran(500, 5)), Some(0));
        assert_eq!(RULE.time_left(WaitingWork::Equal, ran(5, 5)), Some(95));
        assert_eq!(RULE.time_left(WaitingWork::Equal, ran(500, 5)), Some(0));
    }

    #[test]
    fn without_interrupts_a_poll_runs_without_limit() {
        let tolerant = Rule {
            interrupts: false,
            ..RULE
        };
        let ran = RunTime {
            total: 1_000,
            stretch: 1_000,
            elapsed: 1_000,
        };
        assert_eq!(tolerant.time_left(WaitingWork::Urgent, ran), None);
    }
}
