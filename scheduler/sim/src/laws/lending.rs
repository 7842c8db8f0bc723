//! Checks lent levels. A coroutine that holds a lock, or is awaited, must be at least as urgent as
//! its waiters, and must have its own level again once it has no waiters.

use upshift_core::Level;

use super::{Law, Laws, Phase, Violation};
use crate::world::World;

impl Laws {
    /// Records that coroutine `k` awaits coroutine `other` from now on, or none.
    pub(crate) fn record_await(&mut self, k: usize, other: Option<usize>) {
        let before = std::mem::replace(&mut self.all[k].awaits, other);
        self.all[k].awaited.extend(before);
        before
            .into_iter()
            .chain(other)
            .for_each(|k| self.requeue(k));
    }

    pub(crate) fn record_reprio(&mut self, k: usize, level: u8) {
        self.all[k].base = level;
        self.requeue(k);
    }

    fn is_alive(&self, k: usize) -> bool {
        !matches!(self.all[k].phase, Phase::New | Phase::Exited)
    }

    /// Checks that coroutine `other`, for which `k` waits, is at least as urgent as `k`. Only a
    /// blocked `k` is checked, since a coroutine that is no longer blocked may have another level,
    /// which it lends in its next poll.
    fn check_loan(&self, world: &World, k: usize, other: usize) -> Result<(), Violation> {
        let (level, other_level) = (self.all[k].level, self.all[other].level);
        if self.all[k].phase != Phase::Blocked || !self.is_alive(other) || other_level <= level {
            return Ok(());
        }
        let description =
            format!("#{k} of level {level} waits for #{other}, which is of level {other_level}");
        Err(self.violation(world, Law::Truth, description))
    }

    /// Checks all locks and all awaited coroutines. Called between two steps.
    pub(super) fn check_lending(&self, world: &World) -> Result<(), Violation> {
        let mut has_waiter = vec![false; self.all.len()];
        for lock in world.locks.borrow().iter() {
            let Some((holder, _)) = lock.holder else {
                continue;
            };
            has_waiter[holder] = true;
            for waiting in &lock.waiting {
                self.check_loan(world, waiting.k, holder)?;
            }
        }
        for (k, tracked) in self.all.iter().enumerate() {
            tracked
                .awaited
                .iter()
                .for_each(|other| has_waiter[*other] = true);
            if let Some(other) = tracked.awaits {
                has_waiter[other] = true;
                self.check_loan(world, k, other)?;
            }
        }
        for (k, tracked) in self.all.iter().enumerate() {
            if !has_waiter[k] && self.is_alive(k) && tracked.level != tracked.base {
                let description = format!(
                    "#{k} has level {} of its own and runs at {}, though no coroutine waits for it",
                    tracked.base, tracked.level
                );
                return Err(self.violation(world, Law::Truth, description));
            }
        }
        Ok(())
    }
}

/// Converts a number in a program to a level, modulo the number of levels.
pub(crate) fn level(n: u8) -> Level {
    Level::new(n & 63).unwrap_or(Level::DEFAULT)
}
