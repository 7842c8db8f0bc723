//! A token bucket is an allowance that refills with time, up to a capacity.
//!
//! A bucket stores the tokens that are missing and the time up to which the refill is counted. The
//! caller passes the time, so a bucket needs no clock and no thread. Times may be nanoseconds or
//! ticks, but must have the same unit at each call. The arithmetic uses integers, is exact, and
//! saturates.
//!
//! A call with an earlier time than a previous call refills nothing, and no time is counted twice.
//!
//! A call is O(1), with one division.

/// An allowance that refills with time.
///
/// ```
/// use upshift_core::TokenBucket;
///
/// // A token each 10 ns, at most 100.
/// let mut bucket = TokenBucket::new(10, 100, 0);
/// assert!(bucket.try_take(100, 0));
/// assert!(!bucket.try_take(1, 9));
/// assert_eq!(bucket.wait(20, 50), 150);
/// ```
#[derive(Clone, Debug)]
pub struct TokenBucket {
    /// Number of tokens that are refilled in the time `per`.
    tokens: u64,
    /// Time in which `tokens` tokens are refilled, at least 1.
    per: u64,
    capacity: u64,
    /// Number of tokens missing from a full bucket. If it exceeds the capacity, the bucket owes the
    /// rest.
    missing: u64,
    /// Refilled fraction of the next token, in units of 1 / `per`.
    part: u64,
    /// Time up to which the refill is counted.
    refilled_at: u64,
}

impl TokenBucket {
    /// Creates a full bucket at time `now`. It is refilled by a token per `interval` (0 counts as
    /// 1) and holds at most `capacity`. With the interval `u64::MAX` it is never refilled.
    #[must_use]
    pub fn new(interval: u64, capacity: u64, now: u64) -> TokenBucket {
        TokenBucket::with_rate((1, interval), capacity, now)
    }

    /// Creates a full bucket at time `now` that is refilled by `tokens` in the time `per`.
    #[must_use]
    pub fn with_rate((tokens, per): (u64, u64), capacity: u64, now: u64) -> TokenBucket {
        TokenBucket {
            tokens,
            per: per.max(1),
            capacity,
            missing: 0,
            part: 0,
            refilled_at: now,
        }
    }

    /// Changes the rate from `now` on.
    pub fn set_rate(&mut self, (tokens, per): (u64, u64), now: u64) {
        self.refill(now);
        if (tokens, per.max(1)) != (self.tokens, self.per) {
            (self.tokens, self.per, self.part) = (tokens, per.max(1), 0);
        }
    }

    /// Changes the capacity. Tokens beyond the new capacity are lost, debts stay.
    pub fn set_capacity(&mut self, capacity: u64) {
        self.missing = match capacity.checked_sub(self.capacity) {
            Some(increase) => self.missing.saturating_add(increase),
            None => self.missing.saturating_sub(self.capacity - capacity),
        };
        self.capacity = capacity;
    }

    /// Takes `price` tokens if the bucket holds that many. Returns whether it did.
    #[must_use]
    pub fn try_take(&mut self, price: u64, now: u64) -> bool {
        let has_enough = self.holds(price, now);
        if has_enough {
            self.missing += price;
        }
        has_enough
    }

    /// Takes `price` tokens; the bucket owes the tokens that it does not hold. Returns whether it
    /// still holds a token.
    pub fn charge(&mut self, price: u64, now: u64) -> bool {
        self.refill(now);
        self.missing = self.missing.saturating_add(price);
        self.missing < self.capacity
    }

    /// Takes `price` tokens; the bucket owes the tokens that it does not hold. Debts do not add up;
    /// the bucket owes the largest debt, and at most its capacity.
    pub fn spend(&mut self, price: u64, now: u64) {
        self.refill(now);
        let max_missing = self.capacity.saturating_mul(2);
        let spent = (self.missing.min(self.capacity)).saturating_add(price);
        self.missing = self.missing.max(spent.min(max_missing));
    }

    /// Puts tokens back, in addition to the refill.
    pub fn refund(&mut self, tokens: u64) {
        self.missing = self.missing.saturating_sub(tokens);
    }

    /// Returns the time from `now` until the bucket holds `price` tokens, or is full.
    pub fn wait(&mut self, price: u64, now: u64) -> u64 {
        self.refill(now);
        let allowed_missing = self.capacity - price.min(self.capacity);
        let shortfall = self.missing.saturating_sub(allowed_missing);
        if shortfall == 0 {
            return 0;
        }
        let parts = u128::from(shortfall) * u128::from(self.per) - u128::from(self.part);
        let time = parts.div_ceil(u128::from(self.tokens.max(1)));
        let time = match self.tokens {
            0 => u64::MAX,
            _ => u64::try_from(time).unwrap_or(u64::MAX),
        };
        self.refilled_at.saturating_add(time).saturating_sub(now)
    }

    /// Returns whether the bucket holds `price` tokens.
    #[must_use]
    pub fn holds(&mut self, price: u64, now: u64) -> bool {
        self.refill(now);
        price <= self.capacity.saturating_sub(self.missing)
    }

    /// Returns whether the bucket owes tokens.
    pub fn owes(&mut self, now: u64) -> bool {
        self.refill(now);
        self.missing > self.capacity
    }

    /// Returns whether the bucket is full, so that a new one would be equivalent.
    pub fn is_full(&mut self, now: u64) -> bool {
        self.refill(now);
        self.missing == 0
    }

    fn refill(&mut self, now: u64) {
        let elapsed = now.saturating_sub(self.refilled_at);
        self.refilled_at = self.refilled_at.max(now);
        let parts = elapsed.checked_mul(self.tokens);
        let tokens = match parts.and_then(|parts| parts.checked_add(self.part)) {
            Some(parts) => {
                self.part = parts % self.per;
                parts / self.per
            }
            None => {
                let parts = u128::from(elapsed) * u128::from(self.tokens) + u128::from(self.part);
                // The remainder is below `per`.
                self.part = (parts % u128::from(self.per)) as u64;
                u64::try_from(parts / u128::from(self.per)).unwrap_or(u64::MAX)
            }
        };
        self.refund(tokens);
        if self.missing == 0 {
            self.part = 0;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_refills_with_time_up_to_its_capacity() {
        let mut bucket = TokenBucket::new(10, 100, 0);
        assert_eq!(bucket.wait(20, 0), 0);
        bucket.spend(100, 0);
        assert_eq!(bucket.wait(20, 0), 200);
        assert_eq!(bucket.wait(20, 199), 1);
        assert_eq!(bucket.wait(20, 200), 0);
        bucket.spend(20, 205);
        assert_eq!(bucket.wait(1, 209), 1);
        assert!(!bucket.is_full(1_199) && bucket.is_full(1_200));
        assert_eq!(bucket.wait(200, 1_000_000), 0, "no more than its capacity");
        bucket.spend(60, 1_000_000);
        assert_eq!(bucket.wait(50, 1_000_000), 100);
    }

    #[test]
    fn a_price_is_taken_in_full_or_not_at_all() {
        let mut bucket = TokenBucket::new(10, 5, 0);
        assert!(bucket.holds(5, 0) && !bucket.holds(6, 0));
        assert!(bucket.try_take(3, 0) && !bucket.try_take(3, 0) && bucket.try_take(2, 0));
        assert!(bucket.holds(0, 0) && !bucket.holds(1, 0));
        assert!(!bucket.try_take(1, 9) && bucket.try_take(1, 10));
        assert!(!bucket.try_take(6, u64::MAX), "more than the capacity");
    }

    #[test]
    fn debts_are_paid_off_first_and_do_not_add_up() {
        let mut bucket = TokenBucket::new(10, 100, 0);
        bucket.spend(130, 0);
        bucket.spend(30, 0);
        assert!(bucket.owes(299) && !bucket.owes(300));
        bucket.spend(30, 300);
        assert_eq!(bucket.wait(20, 300), 500);
        assert_eq!(bucket.wait(20, 700), 100);
        bucket.refund(5);
        assert_eq!(bucket.wait(20, 700), 50);
        bucket.refund(1_000);
        bucket.spend(100, 700);
        assert_eq!(bucket.wait(1, 700), 10, "no more than its capacity");
        bucket.spend(u64::MAX, 700);
        assert_eq!(bucket.wait(1, 700), 1_010, "it owes at most its capacity");
    }

    #[test]
    fn an_earlier_time_refills_nothing_and_no_time_is_counted_twice() {
        let mut bucket = TokenBucket::new(10, 100, 1_000);
        bucket.spend(100, 1_000);
        assert_eq!(bucket.wait(10, 0), 1_100);
        assert!(!bucket.try_take(1, 500));
        assert_eq!(bucket.wait(10, 1_050), 50);
        assert_eq!(bucket.wait(10, 1_000), 100);
        assert_eq!(bucket.wait(10, 1_060), 40);
    }

    #[test]
    fn a_bucket_without_refill_runs_out_and_one_without_capacity_holds_nothing() {
        let mut never = TokenBucket::new(u64::MAX, 2, 0);
        assert!(never.try_take(2, 0) && !never.try_take(1, u64::MAX - 1));
        assert_eq!(never.wait(1, 1), u64::MAX - 1);
        let mut empty = TokenBucket::new(1, 0, 0);
        assert!(!empty.try_take(1, u64::MAX) && empty.try_take(0, u64::MAX));
        empty.spend(7, u64::MAX);
        assert!(!empty.owes(u64::MAX));
    }

    #[test]
    fn all_charges_are_owed_and_paid_off_at_any_rate() {
        // Two tokens in ten units of time come at whole intervals; seven tokens in two units do
        // not.
        let mut bucket = TokenBucket::with_rate((2, 10), 4, 0);
        assert!(bucket.charge(3, 0) && !bucket.charge(3, 0));
        assert_eq!((bucket.wait(0, 0), bucket.wait(0, 10)), (10, 0));
        assert!(!bucket.try_take(1, 10) && bucket.try_take(1, 15));
        let mut fast = TokenBucket::with_rate((7, 2), 10, 0);
        assert!(!fast.charge(1_000_000, 0));
        assert_eq!(fast.wait(10, 1), 285_714);
        assert!(!fast.is_full(285_714) && fast.is_full(285_715));
        let mut never = TokenBucket::with_rate((0, 1), 1, 0);
        assert!(!never.charge(2, 0));
        assert_eq!(never.wait(1, 9), u64::MAX - 9);
    }

    #[test]
    fn a_new_capacity_keeps_tokens_and_debts() {
        let mut bucket = TokenBucket::new(1, 10, 0);
        assert!(bucket.try_take(4, 0));
        bucket.set_capacity(20);
        assert!(!bucket.try_take(7, 0) && bucket.try_take(6, 0));
        bucket.set_capacity(5);
        assert_eq!(bucket.wait(5, 0), 5);
        assert!(!bucket.charge(3, 0));
        bucket.set_capacity(0);
        assert_eq!(bucket.wait(0, 0), 3);
    }

    #[test]
    fn a_new_rate_applies_from_then_on() {
        let mut bucket = TokenBucket::new(10, 100, 0);
        bucket.spend(100, 0);
        bucket.set_rate((1, 5), 100);
        assert_eq!(bucket.wait(20, 100), 50);
    }

    #[test]
    fn the_bucket_accepts_numbers_of_any_size() {
        for interval in [0, 1, u64::MAX] {
            let mut bucket = TokenBucket::new(interval, u64::MAX, u64::MAX);
            bucket.spend(u64::MAX, 0);
            bucket.spend(u64::MAX, u64::MAX);
            assert!(bucket.wait(u64::MAX, 0) > 0);
            bucket.refund(u64::MAX);
            bucket.refund(u64::MAX);
            assert_eq!(bucket.wait(u64::MAX, u64::MAX), 0);
        }
    }
}
