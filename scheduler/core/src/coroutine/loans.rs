//! Priority inheritance for the holder of locks. One word holds the number of locks that a
//! coroutine holds, and the most urgent level that waiters for these locks *lend* to it.
//!
//! Both are in one word because a guard may have been moved to another thread. That thread may
//! release the last lock while the coroutine takes the next lock and is lent a level for it. So
//! only the atomic operation that counts down to zero may end the loans.
//!
//! ```text
//!   bits 15..7   6..0
//!   locks        the level lent; 127: none
//! ```
//!
//! A waiter may lend less than before when it becomes less urgent, and nothing when it gives up. If
//! the holder has one lock, the lent level changes accordingly. If the holder has several locks, it
//! is not known for which of them the level was lent, so the holder keeps the level until it has
//! released its last lock.
//!
//! After a coroutine has held [`MAX_LOCKS`] locks at once, its locks are no longer counted, and it
//! keeps the lent level until it exits.

use crate::sync::AtomicU16;
use crate::sync::Ordering::Relaxed;

/// Bits of the word that hold the level lent.
const LEVEL: u16 = 0x7f;
/// Value of the level while nothing is lent: less urgent than any level.
pub(crate) const NO_LOAN: u8 = LEVEL as u8;
/// Increment of the word for one lock.
const ONE_LOCK: u16 = LEVEL + 1;
/// Largest number of locks that the word can count. A count that has reached it stays there.
const MAX_LOCKS: u16 = u16::MAX / ONE_LOCK;

/// The number of locks that a coroutine holds, and the level lent for them. A thread that has
/// changed the word then recomputes the level of the coroutine and moves the coroutine to its new
/// place (`Shared::resettle`), under the lock of the vCPU of the coroutine. That lock orders the
/// changes.
pub(crate) struct Loans(AtomicU16);

impl Loans {
    pub(crate) fn new() -> Loans {
        Loans(AtomicU16::new(LEVEL))
    }

    /// Returns the level lent. May be [`NO_LOAN`], which is less urgent than any level.
    #[inline]
    pub(crate) fn level(&self) -> u8 {
        (self.0.load(Relaxed) & LEVEL) as u8
    }

    /// Counts a lock. Called before any waiter can lend for the lock.
    #[inline]
    pub(crate) fn add_lock(&self) {
        let _ = self.0.fetch_update(Relaxed, Relaxed, |word| {
            (word / ONE_LOCK < MAX_LOCKS).then(|| word + ONE_LOCK)
        });
    }

    /// Counts the release of a lock. Returns true if this was the last lock and its release has
    /// ended a loan.
    #[inline]
    #[must_use]
    pub(crate) fn remove_lock(&self) -> bool {
        let before = self
            .0
            .fetch_update(Relaxed, Relaxed, |word| match word / ONE_LOCK {
                0 | MAX_LOCKS => None,
                1 => Some(LEVEL),
                _ => Some(word - ONE_LOCK),
            });
        before.is_ok_and(|word| word / ONE_LOCK == 1 && word & LEVEL != LEVEL)
    }

    /// Lends `level` if it is more urgent than the level lent before. Returns true if so.
    #[must_use]
    pub(crate) fn lend(&self, level: u8) -> bool {
        self.0
            .fetch_update(Relaxed, Relaxed, |word| {
                (u16::from(level) < word & LEVEL).then_some((word & !LEVEL) | u16::from(level))
            })
            .is_ok()
    }

    /// Adapts the loan to `level`, the most urgent level of the coroutines that wait for one of the
    /// locks, or [`NO_LOAN`]. Returns true if the level lent has changed.
    #[must_use]
    pub(crate) fn set_loan(&self, level: u8) -> bool {
        self.0
            .fetch_update(Relaxed, Relaxed, |word| {
                let lent = word & LEVEL;
                let now = match word / ONE_LOCK {
                    1 => u16::from(level),
                    _ => lent.min(u16::from(level)),
                };
                (now != lent).then_some((word & !LEVEL) | now)
            })
            .is_ok()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_the_release_of_the_last_lock_ends_the_loans() {
        let loans = Loans::new();
        (0..300).for_each(|_| loans.add_lock());
        assert!(loans.lend(9) && !loans.lend(20) && loans.lend(3));
        assert!((1..300).all(|_| !loans.remove_lock()));
        assert_eq!(loans.level(), 3);
        assert!(loans.remove_lock());
        assert_eq!(loans.level(), LEVEL as u8);
        assert!(!loans.remove_lock());
    }

    #[test]
    fn the_loan_for_a_single_lock_follows_its_waiters() {
        let loans = Loans::new();
        loans.add_lock();
        assert!(loans.set_loan(9) && loans.set_loan(20) && !loans.set_loan(20));
        loans.add_lock();
        assert!(!loans.set_loan(30) && !loans.set_loan(NO_LOAN));
        assert!(loans.set_loan(3) && !loans.remove_lock());
        assert_eq!(loans.level(), 3);
        assert!(loans.set_loan(NO_LOAN));
        assert!(!loans.remove_lock(), "nothing was lent any more");
    }

    #[test]
    fn locks_beyond_the_maximum_keep_their_loan() {
        let loans = Loans::new();
        (0..1_000).for_each(|_| loans.add_lock());
        assert!(loans.lend(9));
        assert!((0..2_000).all(|_| !loans.remove_lock()));
        assert_eq!(loans.level(), 9);
    }
}
