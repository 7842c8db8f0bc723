//! A share of the time, saved up.

/// Time that may be spent: a share of all time, and so much in advance.
#[derive(Clone, Debug)]
pub struct Account {
    /// The reciprocal of the share.
    share: u64,
    /// What it holds at most.
    most: u64,
    held: u64,
    at: u64,
}

impl Account {
    /// One that is full at time `now`, and gets one part in `share` of the time, over windows of `window`.
    #[must_use]
    pub fn new(share: u64, window: u64, now: u64) -> Account {
        Account {
            share,
            most: window / share,
            held: window / share,
            at: now,
        }
    }

    fn refresh(&mut self, now: u64) {
        let income = now.saturating_sub(self.at) / self.share;
        self.held = self.held.saturating_add(income).min(self.most);
        // What is less than a unit of income is not lost.
        self.at += income * self.share;
        if self.held == self.most {
            self.at = self.at.max(now);
        }
    }

    /// How long from `now` until it holds `price`, or as much as it can.
    pub fn wait(&mut self, price: u64, now: u64) -> u64 {
        self.refresh(now);
        let lacks = price.min(self.most).saturating_sub(self.held);
        (lacks * self.share).saturating_sub(now.saturating_sub(self.at))
    }

    /// Spends what it holds of this.
    pub fn spend(&mut self, price: u64, now: u64) {
        self.refresh(now);
        self.held = self.held.saturating_sub(price);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_holds_a_share_of_the_time() {
        let mut account = Account::new(10, 1_000, 0);
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
}
