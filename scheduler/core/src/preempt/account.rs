//! A share of the time, saved up.

/// Time that may be spent: a share of all time, and so much in advance. What is spent beyond is owed, and paid off first; debts do not add up.
#[derive(Clone, Debug)]
pub struct Account {
    /// The reciprocal of the share.
    share: u64,
    /// What it holds at most.
    most: u64,
    held: u64,
    owed: u64,
    at: u64,
}

impl Account {
    /// One that holds `most`, which is all it can hold, at time `now`, and gets one part in `share` of the time; 0 counts as 1.
    #[must_use]
    pub fn new(share: u64, most: u64, now: u64) -> Account {
        Account {
            share: share.max(1),
            most,
            held: most,
            owed: 0,
            at: now,
        }
    }

    fn refresh(&mut self, now: u64) {
        let income = now.saturating_sub(self.at) / self.share;
        // What is less than a unit of income is not lost.
        self.at += income * self.share;
        self.earn(income);
        if self.held == self.most {
            self.at = self.at.max(now);
        }
    }

    /// Gets so much, whatever the time.
    pub fn earn(&mut self, amount: u64) {
        let pays = amount.min(self.owed);
        self.owed -= pays;
        self.held = self.held.saturating_add(amount - pays).min(self.most);
    }

    /// How long from `now` until it holds `price`, or as much as it can, by its share alone.
    pub fn wait(&mut self, price: u64, now: u64) -> u64 {
        self.refresh(now);
        let lacks = price.min(self.most).saturating_sub(self.held);
        let lacks = lacks.saturating_add(self.owed);
        (lacks.saturating_mul(self.share)).saturating_sub(now.saturating_sub(self.at))
    }

    /// Spends so much. A caller that has not asked [`Account::wait`] owes at most this price after it, however often it spends: one that asks waits for no more than that.
    pub fn spend(&mut self, price: u64, now: u64) {
        self.refresh(now);
        self.owed = self.owed.max(price.saturating_sub(self.held));
        self.held = self.held.saturating_sub(price);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_holds_a_share_of_the_time() {
        let mut account = Account::new(10, 100, 0);
        assert_eq!(account.wait(20, 0), 0);
        account.spend(100, 0);
        assert_eq!(account.wait(20, 0), 200);
        assert_eq!(account.wait(20, 199), 1);
        assert_eq!(account.wait(20, 200), 0);
        account.spend(20, 205);
        assert_eq!(account.wait(1, 209), 1);
        assert_eq!(account.wait(100, 1_000_000), 0, "no more than it can hold");
        account.spend(60, 1_000_000);
        assert_eq!(account.wait(50, 1_000_000), 100);
    }

    #[test]
    fn numbers_may_be_of_any_size() {
        for share in [0, 1, u64::MAX] {
            let mut account = Account::new(share, u64::MAX, u64::MAX);
            account.spend(u64::MAX, 0);
            account.spend(u64::MAX, u64::MAX);
            assert!(account.wait(u64::MAX, 0) > 0);
            account.earn(u64::MAX);
            account.earn(u64::MAX);
            assert_eq!(account.wait(u64::MAX, u64::MAX), 0);
        }
    }

    #[test]
    fn what_is_spent_beyond_is_paid_off_first() {
        let mut account = Account::new(10, 100, 0);
        account.spend(130, 0);
        account.spend(30, 0);
        assert_eq!(account.wait(20, 0), 500);
        assert_eq!(account.wait(20, 400), 100);
        account.earn(5);
        assert_eq!(account.wait(20, 400), 50);
        account.earn(1_000);
        account.spend(100, 400);
        assert_eq!(account.wait(1, 400), 10, "it holds no more than it can");
    }
}
