//! Lent levels: what holds a lock, or is awaited, is as urgent as what waits for it, and no longer than that.

use upshift_core::Level;

use super::{Law, Laws, Phase, Violation};
use crate::world::World;

impl Laws {
    /// Coroutine `k` awaits another one from now on, or none.
    pub(crate) fn awaits(&mut self, k: usize, other: Option<usize>) {
        let before = std::mem::replace(&mut self.all[k].awaits, other);
        self.all[k].awaited.extend(before);
        before
            .into_iter()
            .chain(other)
            .for_each(|k| self.may_move(k));
    }

    /// Coroutine `k` is given a level of its own.
    pub(crate) fn rebase(&mut self, k: usize, level: u8) {
        self.all[k].base = level;
        self.may_move(k);
    }

    fn lives(&self, k: usize) -> bool {
        !matches!(self.all[k].phase, Phase::New | Phase::Exited)
    }

    /// Is what coroutine `k` waits for at least as urgent as it? One that is not blocked any more may have changed its level
    /// and tells what it waits for when it is polled.
    fn lends(&self, world: &World, k: usize, to: usize) -> Result<(), Violation> {
        let (from, to_level) = (self.all[k].level, self.all[to].level);
        if self.all[k].phase != Phase::Blocked || !self.lives(to) || to_level <= from {
            return Ok(());
        }
        let what = format!("#{k} of level {from} waits for #{to}, which is of level {to_level}");
        Err(self.violation(world, Law::Truth, what))
    }

    /// Looks at all locks and at all that is awaited. Between two steps.
    pub(super) fn lending(&self, world: &World) -> Result<(), Violation> {
        let mut borrows = vec![false; self.all.len()];
        for lock in world.locks.borrow().iter() {
            let Some((holder, _)) = lock.holder else {
                continue;
            };
            borrows[holder] = true;
            for waiting in &lock.waiting {
                self.lends(world, waiting.k, holder)?;
            }
        }
        for (k, it) in self.all.iter().enumerate() {
            it.awaited.iter().for_each(|other| borrows[*other] = true);
            if let Some(other) = it.awaits {
                borrows[other] = true;
                self.lends(world, k, other)?;
            }
        }
        for (k, it) in self.all.iter().enumerate() {
            if !borrows[k] && self.lives(k) && it.level != it.base {
                let what = format!(
                    "#{k} has level {} of its own and runs at {}, though nothing waits for it",
                    it.base, it.level
                );
                return Err(self.violation(world, Law::Truth, what));
            }
        }
        Ok(())
    }
}

/// Levels of programs are taken modulo the number of levels.
pub(crate) fn level(n: u8) -> Level {
    Level::new(n & 63).unwrap_or(Level::DEFAULT)
}
