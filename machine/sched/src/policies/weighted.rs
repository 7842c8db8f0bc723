//! [`Weighted`]: proportional shares by stride scheduling.
//!
//! Waldspurger and Weihl, "Stride Scheduling: Deterministic Proportional-Share Resource Management" (MIT LCS TM-528, 1995).
//! Each task has a *pass*, the CPU time it has used divided by its shares; the task with the smallest pass runs for one
//! slice. Here a pass grows by what was really used, so slices that end late or are lent out while a task sleeps are
//! charged to the task they went to. Over any time in which a set of tasks stays awake, what each of them gets differs from its
//! share by less than one slice and one timer's lateness.
//!
//! A task that sleeps saves nothing up: its pass is kept at least at the smallest pass of those awake. It stays in front of them,
//! so it runs at once when it wakes.

use crate::policy::{Nanos, Policy, TaskId, Turn, Usage, next_end};

/// What one ns adds to the pass of a task with one share.
const ONE: u128 = 1 << 32;

#[derive(Debug)]
struct Stride {
    task: TaskId,
    shares: u64,
    pass: u128,
    sleeps: bool,
}

/// Shares of the CPU time.
#[derive(Debug)]
pub struct Weighted {
    slice: Nanos,
    shares: Vec<(TaskId, u64)>,
    accounts: Vec<Stride>,
    ends: Nanos,
}

impl Weighted {
    /// Slices of `slice` ns; every task has one share.
    pub fn new(slice: Nanos) -> Weighted {
        Weighted {
            slice: slice.max(1),
            shares: Vec::new(),
            accounts: Vec::new(),
            ends: 0,
        }
    }

    /// Gives `task` so many shares, at least 1.
    pub fn share(mut self, task: TaskId, shares: u32) -> Weighted {
        self.shares.push((task, u64::from(shares.max(1))));
        self
    }

    fn least_awake(&self) -> Option<u128> {
        let awake = self.accounts.iter().filter(|account| !account.sleeps);
        awake.map(|account| account.pass).min()
    }
}

impl Policy for Weighted {
    fn name(&self) -> &'static str {
        "weighted"
    }

    fn added(&mut self, task: TaskId, _now: Nanos) {
        let given = self.shares.iter().rev().find(|(other, _)| *other == task);
        self.accounts.push(Stride {
            task,
            shares: given.map_or(1, |&(_, shares)| shares),
            pass: self.least_awake().unwrap_or(0),
            sleeps: false,
        });
    }

    fn removed(&mut self, task: TaskId, _now: Nanos) {
        self.accounts.retain(|account| account.task != task);
        self.ends = 0;
    }

    fn wants_usage(&self) -> bool {
        true
    }

    fn used(&mut self, usage: Usage, _now: Nanos) {
        let own = |account: &&mut Stride| account.task == usage.task;
        if let Some(account) = self.accounts.iter_mut().find(own) {
            account.pass += u128::from(usage.cpu_time) * ONE / u128::from(account.shares);
            account.sleeps = usage.slept;
        }
    }

    fn pick(&mut self, now: Nanos, turn: &mut Turn) {
        if now >= self.ends {
            self.ends = next_end(self.ends, self.slice, now);
        }
        if let Some(least) = self.least_awake() {
            for sleeper in self.accounts.iter_mut().filter(|account| account.sleeps) {
                sleeper.pass = sleeper.pass.max(least);
            }
        }
        self.accounts
            .sort_by_key(|account| (account.pass, !account.sleeps, account.task));
        let mut awake = 0;
        for account in &self.accounts {
            turn.favour(account.task);
            awake += usize::from(!account.sleeps);
            if awake == turn.cpus() {
                break;
            }
        }
        if self.accounts.len() > turn.cpus() {
            turn.until(self.ends);
        }
    }
}
