//! What waiters lend to the holder of their locks: how many locks it holds, and the most
//! urgent level lent for them, in one word.
//!
//! One word, because the last lock may be given back by one thread (its guard was
//! moved there) while another takes the next and is lent a level for it: the step
//! that counts down to none is the step that ends the loans, and no other does.
//!
//! ```text
//!   bits 15..7   6..0
//!   locks        the level lent; 127: none
//! ```
//!
//! What waits for the lock of a coroutine that holds one may also lend less than before, or nothing: it has become less urgent, or waits no more.
//! Of a coroutine that holds several it is not known for which of them the level was lent: it keeps the level until it has given back the last.
//!
//! A coroutine that has held [`MANY`] locks at once is no longer counted: it keeps
//! what it is lent until it exits.

use crate::sync::AtomicU16;
use crate::sync::Ordering::Relaxed;

const LEVEL: u16 = 0x7f;
/// In the place of a level: nothing is lent.
pub(crate) const NOTHING: u8 = LEVEL as u8;
const LOCK: u16 = LEVEL + 1;
/// As much as fits.
const MANY: u16 = u16::MAX / LOCK;

/// The word. A thread that changes it settles the coroutine afterwards, under the lock of its
/// vCPU; that orders.
pub(crate) struct Loans(AtomicU16);

impl Loans {
    pub(crate) fn new() -> Loans {
        Loans(AtomicU16::new(LEVEL))
    }

    /// The most urgent level lent, or what is less urgent than any.
    #[inline]
    pub(crate) fn level(&self) -> u8 {
        (self.0.load(Relaxed) & LEVEL) as u8
    }

    /// One more lock. Before anything can lend for it.
    #[inline]
    pub(crate) fn taken(&self) {
        let _ = self.0.fetch_update(Relaxed, Relaxed, |word| {
            (word / LOCK < MANY).then(|| word + LOCK)
        });
    }

    /// One lock less. True: it was the last, and something had been lent.
    #[inline]
    #[must_use]
    pub(crate) fn released(&self) -> bool {
        let before = self
            .0
            .fetch_update(Relaxed, Relaxed, |word| match word / LOCK {
                0 | MANY => None,
                1 => Some(LEVEL),
                _ => Some(word - LOCK),
            });
        before.is_ok_and(|word| word / LOCK == 1 && word & LEVEL != LEVEL)
    }

    /// Lends a level. True: it is more urgent than what was lent before.
    #[must_use]
    pub(crate) fn lend(&self, level: u8) -> bool {
        self.0
            .fetch_update(Relaxed, Relaxed, |word| {
                (u16::from(level) < word & LEVEL).then_some((word & !LEVEL) | u16::from(level))
            })
            .is_ok()
    }

    /// The most urgent that waits for one of the locks is of this level now; or [`NOTHING`] waits. True: what is lent has changed.
    #[must_use]
    pub(crate) fn lend_again(&self, level: u8) -> bool {
        self.0
            .fetch_update(Relaxed, Relaxed, |word| {
                let lent = word & LEVEL;
                let now = match word / LOCK {
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
    fn the_last_lock_ends_the_loans_and_no_other() {
        let loans = Loans::new();
        (0..300).for_each(|_| loans.taken());
        assert!(loans.lend(9) && !loans.lend(20) && loans.lend(3));
        assert!((1..300).all(|_| !loans.released()));
        assert_eq!(loans.level(), 3);
        assert!(loans.released());
        assert_eq!(loans.level(), LEVEL as u8);
        assert!(!loans.released());
    }

    #[test]
    fn with_one_lock_the_loan_is_what_waits_for_it() {
        let loans = Loans::new();
        loans.taken();
        assert!(loans.lend_again(9) && loans.lend_again(20) && !loans.lend_again(20));
        loans.taken();
        assert!(!loans.lend_again(30) && !loans.lend_again(NOTHING));
        assert!(loans.lend_again(3) && !loans.released());
        assert_eq!(loans.level(), 3);
        assert!(loans.lend_again(NOTHING));
        assert!(!loans.released(), "nothing was lent any more");
    }

    #[test]
    fn too_many_to_count_keep_what_they_are_lent() {
        let loans = Loans::new();
        (0..1_000).for_each(|_| loans.taken());
        assert!(loans.lend(9));
        assert!((0..2_000).all(|_| !loans.released()));
        assert_eq!(loans.level(), 9);
    }
}
