//! [`Levels`] is a policy with strict levels, and with round-robin within a level.
//!
//! Level 0 is the most urgent. A less urgent task runs only while all more urgent tasks sleep. A
//! sleeping task stays in front of less urgent tasks, so it runs the moment it wakes, without a
//! call of this policy. Within a level the tasks that are awake take turns of one slice. A level
//! that never sleeps starves all less urgent levels, which is what *strict* means.

use std::collections::{BTreeMap, VecDeque};

use crate::policy::{Nanos, Policy, TaskId, Turn, Usage, next_end};

/// Level of tasks without an assigned level: the least urgent.
const DEFAULT_LEVEL: u8 = u8::MAX;

/// Strict levels.
///
/// ```
/// use upshift_sched::policies::Levels;
/// use upshift_sched::{Policy, TaskId, Turn};
///
/// let mut policy = Levels::new(5_000_000).level(TaskId(1), 0);
/// policy.added(TaskId(0), 0);
/// policy.added(TaskId(1), 0);
/// let mut turn = Turn::new(1);
/// policy.pick(0, &mut turn);
/// assert_eq!(turn.favoured(), [TaskId(1)]);
/// ```
#[derive(Debug)]
pub struct Levels {
    slice: Nanos,
    assigned_levels: Vec<(TaskId, u8)>,
    levels: BTreeMap<u8, VecDeque<TaskId>>,
    asleep: Vec<TaskId>,
    /// Tasks that were favoured in the last turn and are not known to sleep.
    last_runners: Vec<TaskId>,
    slice_end: Nanos,
}

impl Levels {
    /// Creates the policy with slices of `slice` ns within a level. Tasks without a level come
    /// last.
    pub fn new(slice: Nanos) -> Levels {
        Levels {
            slice: slice.max(1),
            assigned_levels: Vec::new(),
            levels: BTreeMap::new(),
            asleep: Vec::new(),
            last_runners: Vec::new(),
            slice_end: 0,
        }
    }

    /// Puts `task` on `level`. Level 0 is the most urgent.
    pub fn level(mut self, task: TaskId, level: u8) -> Levels {
        self.assigned_levels.push((task, level));
        self
    }

    fn rotate(&mut self) {
        for queue in self.levels.values_mut() {
            let has_run =
                |task: &TaskId| self.last_runners.contains(task) && !self.asleep.contains(task);
            let (back, front): (Vec<TaskId>, Vec<TaskId>) = queue.drain(..).partition(has_run);
            queue.extend(front.into_iter().chain(back));
        }
    }
}

impl Policy for Levels {
    fn name(&self) -> &'static str {
        "priority"
    }

    fn added(&mut self, task: TaskId, _now: Nanos) {
        let mut assigned = self.assigned_levels.iter().rev();
        let level = assigned.find(|(other, _)| *other == task);
        let level = level.map_or(DEFAULT_LEVEL, |&(_, level)| level);
        self.levels.entry(level).or_default().push_back(task);
    }

    fn removed(&mut self, task: TaskId, _now: Nanos) {
        for queue in self.levels.values_mut() {
            queue.retain(|&other| other != task);
        }
        self.levels.retain(|_, queue| !queue.is_empty());
        self.asleep.retain(|&other| other != task);
        self.last_runners.retain(|&other| other != task);
    }

    fn wants_usage(&self) -> bool {
        true
    }

    fn used(&mut self, usage: Usage, _now: Nanos) {
        self.asleep.retain(|&task| task != usage.task);
        if usage.slept {
            self.asleep.push(usage.task);
        }
    }

    fn pick(&mut self, now: Nanos, turn: &mut Turn) {
        if now >= self.slice_end {
            self.rotate();
            self.slice_end = next_end(self.slice_end, self.slice, now);
        }
        self.last_runners.clear();
        for queue in self.levels.values() {
            // Within a level sleepers come first, because they use no time and no turns.
            let is_asleep = |task: &&TaskId| self.asleep.contains(task);
            let awake = queue.iter().filter(|task| !is_asleep(task));
            for &task in queue.iter().filter(is_asleep) {
                turn.favour(task);
            }
            for &task in awake.take(turn.cpus() - self.last_runners.len()) {
                turn.favour(task);
                self.last_runners.push(task);
            }
            if self.last_runners.len() == turn.cpus() {
                break;
            }
        }
        let tasks: usize = self.levels.values().map(VecDeque::len).sum();
        if tasks > turn.cpus() {
            turn.end_at(self.slice_end);
        }
    }
}
