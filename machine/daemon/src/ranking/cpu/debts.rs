//! [`Debts`]: what dispatchers may have used that ended before it was read.

use std::collections::HashMap;
use std::time::Duration;

use crate::cpu::watch::LOOK;

/// How much of the CPU time of dispatchers that have ended may be unknown: honest processes end as well, but not one after the other in four looks.
const DEBT: Duration = Duration::from_millis(4 * LOOK.as_millis() as u64);

/// By user.
#[derive(Debug, Default)]
pub(super) struct Debts(HashMap<u32, Duration>);

impl Debts {
    /// Each user pays so much off.
    pub(super) fn pay(&mut self, budget: Duration) {
        self.0.retain(|_, debt| {
            *debt = debt.saturating_sub(budget);
            !debt.is_zero()
        });
    }

    /// `user` owes so much more; whether that is more than it may, after which it owes nothing.
    pub(super) fn add(&mut self, user: u32, unseen: Duration) -> bool {
        let debt = self.0.entry(user).or_default();
        *debt += unseen;
        let is_over = *debt > DEBT;
        if is_over {
            *debt = Duration::ZERO;
        }
        is_over
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::evidence;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn debts_are_paid_off_by_user() {
        let mut debts = Debts::default();
        assert!(!debts.add(7, DEBT) && !debts.add(8, DEBT));
        debts.pay(10 * MS);
        assert!(!debts.add(7, 10 * MS));
        assert!(debts.add(7, MS) && debts.add(8, 11 * MS));
        // The bar has paid for all.
        assert!(!debts.add(7, DEBT));
    }

    proptest! {
        /// A user is over its debt only if dispatchers of it ended in more than four looks' time, however late these looks were.
        #[test]
        fn a_late_look_is_no_debt(looks in prop::collection::vec((0..5000u32, any::<bool>()), 1..60)) {
            let (mut debts, mut ended) = (Debts::default(), 0);
            for (late, ends) in looks {
                let time = LOOK + MS * late;
                debts.pay(time / 5);
                if ends {
                    ended += 1;
                    if debts.add(7, evidence::counted(time, LOOK)) {
                        prop_assert!(ended > 4, "{ended}");
                        ended = 0;
                    }
                }
            }
        }
    }
}
