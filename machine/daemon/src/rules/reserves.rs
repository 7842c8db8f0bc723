//! What assigned programs may reserve in SCHED_DEADLINE, so that no rule and no user takes what is another's.
//!
//! The kernel admits reservations in the order in which they come, for 95 % of the CPUs, and nothing keeps what they leave. So:
//!
//! * all together have half of the CPUs;
//! * a rule has one reservation, and an equal part of what is left when each rule has one: whatever the programs of others do;
//! * a user has half of what is its rule's, or one reservation if that is more. Where the rule names a user, that has all of it.
//!
//! A reservation that its program has left by itself stays charged to the user: the kernel may have lost it (`elevate`, `leaving_deadline`), so that what
//! one user can make the kernel lose is what it may reserve. All of it is in millionths of a CPU. A call looks at all entries, of
//! which there is one for each user and rule.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::rule::{Assign, Bound, Reservation};
use crate::shared::Shared;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Reserves(Mutex<Vec<Entry>>);

/// What programs of a user have reserved by a rule.
#[derive(Debug)]
struct Entry {
    rule: Assign,
    user: u32,
    part: u64,
    /// Which refusal a line has told of.
    told: Option<Refusal>,
}

/// A part of the CPUs that is reserved; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Reserve {
    rule: Assign,
    user: u32,
    part: u64,
    shared: Arc<Shared>,
}

/// Why there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The canaries' watch has no deadline.
    Unguarded,
    All,
    Rule,
    User,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::Unguarded => "the canaries' watch has no deadline",
            Refusal::All => "deadlines have half of the CPUs",
            Refusal::Rule => {
                "its rule has used up its part of the half of the CPUs that deadlines have"
            }
            Refusal::User => {
                "its user has used up its part of the rule: half, unless the rule names the user"
            }
        })
    }
}

impl Reserve {
    /// The program has left SCHED_DEADLINE by itself: nothing is given back.
    pub(super) fn lose(mut self) {
        self.part = 0;
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        let mut entries = self.shared.reserves.lock();
        if let Some(it) = find(&mut entries, &self.rule, self.user) {
            it.part = it.part.saturating_sub(self.part);
        }
    }
}

/// Millionths of a CPU.
fn part(times: &Reservation) -> u64 {
    times.runtime.as_nanos() as u64 * 1_000_000 / (times.period.as_nanos() as u64).max(1)
}

/// What all, this rule, and a user of it may reserve of so many CPUs.
fn bounds(rules: &[Assign], rule: &Assign, cpus: usize) -> (u64, u64, u64) {
    let one = |it: &Assign| match &it.bound {
        Bound::Deadline(times) => Some(part(times)),
        Bound::Each(_) | Bound::Budget(_) | Bound::Share(_) => None,
    };
    let own = one(rule).unwrap_or(0);
    let others = || rules.iter().filter(|&it| it != rule).filter_map(one);
    let all = cpus as u64 * 1_000_000 / 2;
    let left = all.saturating_sub(own + others().sum::<u64>());
    let of_rule = own + left / (1 + others().count() as u64);
    let of_user = match rule.user {
        Some(_) => of_rule,
        None => own.max(of_rule / 2),
    };
    (all, of_rule, of_user)
}

impl Reserves {
    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn find<'a>(entries: &'a mut [Entry], rule: &Assign, user: u32) -> Option<&'a mut Entry> {
    let mut entries = entries.iter_mut();
    entries.find(|it| it.user == user && it.rule == *rule)
}

impl Shared {
    /// Reserves what the rule says for a program of `user` that may run on so many CPUs; `None`: a line has told why, once.
    pub(crate) fn reserve(
        self: &Arc<Shared>,
        rule: &Assign,
        user: u32,
        cpus: usize,
    ) -> Option<Reserve> {
        let Bound::Deadline(times) = &rule.bound else {
            return None;
        };
        let part = part(times);
        let config = self.config();
        let (all, of_rule, of_user) = bounds(&config.assign, rule, cpus.min(self.cpus));
        let mut entries = self.reserves.lock();
        if find(&mut entries, rule, user).is_none() {
            // Of those that have nothing reserved only the rules that there are count.
            entries.retain(|it| it.part > 0 || config.assign.contains(&it.rule));
            entries.push(Entry {
                rule: rule.clone(),
                user,
                part: 0,
                told: None,
            });
        }
        let sum = |which: &dyn Fn(&Entry) -> bool| {
            let chosen = entries.iter().filter(|it| which(it));
            part + chosen.map(|it| it.part).sum::<u64>()
        };
        let refusal = if !self.are_deadlines_guarded() {
            Some(Refusal::Unguarded)
        } else if sum(&|_| true) > all {
            Some(Refusal::All)
        } else if sum(&|it| it.rule == *rule) > of_rule {
            Some(Refusal::Rule)
        } else if sum(&|it| it.rule == *rule && it.user == user) > of_user {
            Some(Refusal::User)
        } else {
            None
        };
        let entry = find(&mut entries, rule, user)?;
        let Some(refusal) = refusal else {
            entry.part += part;
            return Some(Reserve {
                rule: rule.clone(),
                user,
                part,
                shared: Arc::clone(self),
            });
        };
        let said = entry.told.replace(refusal) == Some(refusal);
        drop(entries);
        // The watch says so itself, and why.
        if !said && refusal != Refusal::Unguarded {
            self.log.say(format!("programs of user {user} have budgets in place of deadlines of {:?} in {:?}: {refusal}", times.runtime, times.period));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn rule(user: Option<u32>, runtime: u64) -> Assign {
        let period = Duration::from_millis(20);
        Assign {
            user,
            bound: Bound::Deadline(Reservation {
                runtime: Duration::from_millis(runtime),
                deadline: period,
                period,
            }),
            ..Assign::default()
        }
    }

    #[test]
    fn each_rule_has_one_reservation_and_an_equal_part_of_the_rest() {
        let (small, large) = (rule(Some(1), 2), rule(None, 8));
        let rules = [small.clone(), large.clone(), Assign::default()];
        // One CPU is a million, half of two are for deadlines: 0.1 and 0.4 for one each, and 0.25 beside that.
        assert_eq!(bounds(&rules, &small, 2), (1_000_000, 350_000, 350_000));
        assert_eq!(bounds(&rules, &large, 2), (1_000_000, 650_000, 400_000));
        assert_eq!(bounds(&rules, &large, 8).2, 1_075_000);
        let alone = [rule(None, 8)];
        assert_eq!(
            bounds(&alone, &alone[0], 2),
            (1_000_000, 1_000_000, 500_000)
        );
        // More than there is: the first that come.
        let many = [rule(None, 16), rule(Some(1), 16)];
        assert_eq!(bounds(&many, &many[0], 2).1, 800_000);
    }
}
