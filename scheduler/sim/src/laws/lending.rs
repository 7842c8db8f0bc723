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

    fn lives(&self, k: usize) -> bool {
        !matches!(self.all[k].phase, Phase::New | Phase::Exited)
    }

    /// Checks that the coroutine that `k` waits for is at least as urgent as `k`. Only a blocked
    /// `k` is checked, since a coroutine that is no longer blocked may have another level, which it
    /// lends in its next poll.
    fn check_loan(&self, world: &World, k: usize, to: usize) -> Result<(), Violation> {
        let (from, to_level) = (self.all[k].level, self.all[to].level);
        if self.all[k].phase != Phase::Blocked || !self.lives(to) || to_level <= from {
            return Ok(());
        }
        let what = format!("#{k} of level {from} waits for #{to}, which is of level {to_level}");
        Err(self.violation(world, Law::Truth, what))
    }

    /// Checks all locks and all awaited coroutines. Called between two steps.
    pub(super) fn check_lending(&self, world: &World) -> Result<(), Violation> {
        let mut borrows = vec![false; self.all.len()];
        for lock in world.locks.borrow().iter() {
            let Some((holder, _)) = lock.holder else {
                continue;
            };
            borrows[holder] = true;
            for waiting in &lock.waiting {
                self.check_loan(world, waiting.k, holder)?;
            }
        }
        for (k, tracked) in self.all.iter().enumerate() {
            tracked
                .awaited
                .iter()
                .for_each(|other| borrows[*other] = true);
            if let Some(other) = tracked.awaits {
                borrows[other] = true;
                self.check_loan(world, k, other)?;
            }
        }
        for (k, tracked) in self.all.iter().enumerate() {
            if !borrows[k] && self.lives(k) && tracked.level != tracked.base {
                let what = format!(
                    "#{k} has level {} of its own and runs at {}, though no coroutine waits for it",
                    tracked.base, tracked.level
                );
                return Err(self.violation(world, Law::Truth, what));
            }
        }
        Ok(())
    }
}

/// Converts a number in a program to a level, modulo the number of levels.
pub(crate) fn level(n: u8) -> Level {
    Level::new(n & 63).unwrap_or(Level::DEFAULT)
}
