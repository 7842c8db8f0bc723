//! [`Weighted`] is a policy that gives tasks proportional shares of the CPU time by stride
//! scheduling.
//!
//! The algorithm is from Waldspurger and Weihl, "Stride Scheduling: Deterministic
//! Proportional-Share Resource Management" (MIT LCS TM-528, 1995). Each task has a *pass*, which is
//! its CPU time divided by its shares. The task with the smallest pass runs for one slice. Here a
//! pass grows by the CPU time actually used, so a late slice, or a slice that a sleeper left, is
//! charged to the task that ran. Over any time in which a set of tasks stays awake, the CPU time of
//! each task differs from its share by less than one slice and one timer's lateness.
//!
//! A sleeping task accumulates no claim, because its pass is raised to the smallest pass of the
//! awake tasks. The sleeping task stays in front of them, so it runs at once when it wakes.

use crate::policy::{Nanos, Policy, TaskId, Turn, Usage, next_end};

/// Pass for one ns of CPU time with one share.
const PASS_PER_NS: u128 = 1 << 32;

#[derive(Debug)]
struct Stride {
    task: TaskId,
    shares: u64,
    /// CPU time divided by the shares, in units of `1 / PASS_PER_NS` ns.
    pass: u128,
    sleeps: bool,
}

/// Proportional shares of the CPU time.
///
/// ```
/// use upshift_sched::policies::Weighted;
/// use upshift_sched::{Policy, TaskId, Turn, Usage};
///
/// // Task 1 gets three times the CPU time of task 0.
/// let mut policy = Weighted::new(5_000_000).share(TaskId(1), 3);
/// let mut slices = [0, 0];
/// policy.added(TaskId(0), 0);
/// policy.added(TaskId(1), 0);
/// for slice in 0..400 {
///     let mut turn = Turn::new(1);
///     policy.pick(slice * 5_000_000, &mut turn);
///     let task = turn.favoured()[0];
///     policy.used(Usage { task, cpu_time: 5_000_000, slept: false }, (slice + 1) * 5_000_000);
///     slices[task.0] += 1;
/// }
/// assert_eq!(slices, [100, 300]);
/// ```
#[derive(Debug)]
pub struct Weighted {
    slice: Nanos,
    shares: Vec<(TaskId, u64)>,
    strides: Vec<Stride>,
    slice_end: Nanos,
}

impl Weighted {
    /// Creates the policy with slices of `slice` ns; every task has one share.
    pub fn new(slice: Nanos) -> Weighted {
        Weighted {
            slice: slice.max(1),
            shares: Vec::new(),
            strides: Vec::new(),
            slice_end: 0,
        }
    }

    /// Gives `task` a number of shares, at least 1.
    pub fn share(mut self, task: TaskId, shares: u32) -> Weighted {
        self.shares.push((task, u64::from(shares.max(1))));
        self
    }

    fn min_awake_pass(&self) -> Option<u128> {
        let awake = self.strides.iter().filter(|stride| !stride.sleeps);
        awake.map(|stride| stride.pass).min()
    }
}

impl Policy for Weighted {
    fn name(&self) -> &'static str {
        "weighted"
    }

    fn added(&mut self, task: TaskId, _now: Nanos) {
        let given = self.shares.iter().rev().find(|(other, _)| *other == task);
        self.strides.push(Stride {
            task,
            shares: given.map_or(1, |&(_, shares)| shares),
            pass: self.min_awake_pass().unwrap_or(0),
            sleeps: false,
        });
    }

    fn removed(&mut self, task: TaskId, _now: Nanos) {
        self.strides.retain(|stride| stride.task != task);
        self.slice_end = 0;
    }

    fn wants_usage(&self) -> bool {
        true
    }

    fn used(&mut self, usage: Usage, _now: Nanos) {
        let is_used = |stride: &&mut Stride| stride.task == usage.task;
        if let Some(stride) = self.strides.iter_mut().find(is_used) {
            stride.pass += u128::from(usage.cpu_time) * PASS_PER_NS / u128::from(stride.shares);
            stride.sleeps = usage.slept;
        }
    }

    fn pick(&mut self, now: Nanos, turn: &mut Turn) {
        if now >= self.slice_end {
            self.slice_end = next_end(self.slice_end, self.slice, now);
        }
        if let Some(min_pass) = self.min_awake_pass() {
            for sleeper in self.strides.iter_mut().filter(|stride| stride.sleeps) {
                sleeper.pass = sleeper.pass.max(min_pass);
            }
        }
        self.strides
            .sort_by_key(|stride| (stride.pass, !stride.sleeps, stride.task));
        let mut awake = 0;
        for stride in &self.strides {
            turn.favour(stride.task);
            awake += usize::from(!stride.sleeps);
            if awake == turn.cpus() {
                break;
            }
        }
        if self.strides.len() > turn.cpus() {
            turn.end_at(self.slice_end);
        }
    }
}
