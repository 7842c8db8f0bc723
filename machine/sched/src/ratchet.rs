//! [`Ratchet`] chooses the SCHED_FIFO priorities (*notches*) that make a task run next, with few
//! system calls. To *favour* a task is to put it above the other tasks of its CPU.
//!
//! A simple switch takes two calls for each thread, one to raise the next task and one to lower the
//! last task. A ratchet has three ways and takes the cheapest. The weight of a task is the number
//! of its threads. The three ways are:
//!
//! 1. *Raise* the next task one notch above the last task and lower no task. This is the usual way,
//!    with one call for each thread of the next task, until the range is used up.
//! 2. Keep the *heaviest* task in place and move the other tasks around it. Thus a task with
//!    thousands of sleeping threads is moved once, and a switch costs only the threads of the other
//!    tasks.
//! 3. *Restart* the range: the favoured tasks get the lowest notches, all other tasks go to the
//!    base.
//!
//! After [`Ratchet::order`], the favoured tasks have strictly falling notches, all above the
//! notches of every other task of the CPU. The computation takes O(tasks²), for few tasks. The
//! caller makes the system calls.

use upshift_elevate::Priority;

#[derive(Debug, Clone)]
pub(crate) struct Ratchet {
    base: u8,
    top: u8,
}

/// A task on this CPU and its notch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Notch {
    pub(crate) task: usize,
    pub(crate) at: Priority,
}

impl Ratchet {
    /// Creates a range of notches from `base`, the notch of tasks that are not favoured, to `top`,
    /// which is above it.
    pub(crate) fn new(base: Priority, top: Priority) -> Ratchet {
        Ratchet {
            base: base.get(),
            top: top.get().max(base.get()),
        }
    }

    /// Returns the number of tasks that can be favoured at the same time.
    pub(crate) fn room(&self) -> usize {
        usize::from(self.top - self.base)
    }

    /// Returns the changes that put `favoured` above all other tasks and in this order, first to
    /// last. `current` contains all tasks of this CPU; `weight` returns the number of system calls
    /// that a change of a task takes. Favoured tasks beyond [`Ratchet::room`] are ignored.
    pub(crate) fn order(
        &self,
        favoured: &[usize],
        current: &[Notch],
        weight: impl Fn(usize) -> usize,
    ) -> Vec<Notch> {
        let favoured = &favoured[..favoured.len().min(self.room())];
        let heaviest = current.iter().max_by_key(|notch| weight(notch.task));
        let around = heaviest.and_then(|&fixed| self.around(fixed, favoured, current));
        let restarted = self.restarted(favoured, current);
        // The second way leaves less space above than the third, so its cost counts twice.
        let ways = [
            (self.raised(favoured, current), 1),
            (around, 2),
            (Some(restarted), 1),
        ];
        let ways = ways
            .into_iter()
            .filter_map(|(way, times)| Some((way?, times)));
        let calls =
            |changes: &Changes| changes.iter().map(|&(task, _)| weight(task)).sum::<usize>();
        let cheapest = ways.min_by_key(|(changes, times)| calls(changes) * times);
        let (changes, _) = cheapest.unwrap_or_default();
        changes.into_iter().filter_map(change).collect()
    }

    /// Computes the changes of the first way, or returns `None` if the range is used up.
    fn raised(&self, favoured: &[usize], current: &[Notch]) -> Option<Changes> {
        let mut below = others(favoured, current)
            .map(|(_, at)| at)
            .max()
            .unwrap_or(0);
        let notches = current.iter().map(|notch| notch.at.get());
        let mut highest = notches.max().unwrap_or(self.base);
        let mut changes = Vec::new();
        for &task in favoured.iter().rev() {
            let at = self.notch(task, current);
            if at > below.max(self.base) {
                below = at;
            } else {
                highest += 1;
                below = highest;
                changes.push((task, highest));
            }
        }
        (highest <= self.top).then_some(changes)
    }

    /// Computes the changes of the second way, or returns `None` without space above or below
    /// `fixed`.
    fn around(&self, fixed: Notch, favoured: &[usize], current: &[Notch]) -> Option<Changes> {
        let at = fixed.at.get();
        let position = favoured.iter().position(|&task| task == fixed.task);
        let (above, below) = match position {
            Some(position) => (&favoured[..position], &favoured[position + 1..]),
            None => (favoured, &[][..]),
        };
        let fits = above.len() <= usize::from(self.top - at)
            && (position.is_none() || below.len() < usize::from(at - self.base));
        if !fits {
            return None;
        }
        let mut changes = Vec::new();
        // The favoured tasks begin at this notch; the other tasks are below it.
        let lowest = match (position, below) {
            (None, _) => at + 1,
            (Some(_), []) => at,
            (Some(_), _) => self.base + 1,
        };
        for (task, notch) in others(favoured, current) {
            if notch >= lowest {
                changes.push((task, self.base));
            }
        }
        for (tasks, first) in [(below, lowest), (above, at + 1)] {
            let notches = tasks.iter().rev().zip(first..);
            changes.extend(notches.map(|(&task, at)| (task, at)));
        }
        changes.retain(|&(task, at)| self.notch(task, current) != at);
        Some(changes)
    }

    fn restarted(&self, favoured: &[usize], current: &[Notch]) -> Changes {
        let raised = others(favoured, current).filter(|&(_, at)| at > self.base);
        let lowered = raised.map(|(task, _)| (task, self.base));
        let first = favoured.iter().rev().zip(self.base + 1..);
        let first = first.map(|(&task, at)| (task, at));
        lowered.chain(first).collect()
    }

    fn notch(&self, task: usize, current: &[Notch]) -> u8 {
        let found = current.iter().find(|notch| notch.task == task);
        found.map_or(self.base, |notch| notch.at.get())
    }
}

type Changes = Vec<(usize, u8)>;

fn others<'a>(
    favoured: &'a [usize],
    current: &'a [Notch],
) -> impl Iterator<Item = (usize, u8)> + 'a {
    let others = current
        .iter()
        .filter(|notch| !favoured.contains(&notch.task));
    others.map(|notch| (notch.task, notch.at.get()))
}

fn change((task, at): (usize, u8)) -> Option<Notch> {
    // The notch is within `base ..= top`, so it is always a priority.
    let at = Priority::new(at).ok()?;
    Some(Notch { task, at })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn start(tasks: usize) -> Vec<Notch> {
        let base = Priority::of::<2>();
        (0..tasks).map(|task| Notch { task, at: base }).collect()
    }

    fn make(changes: &[Notch], current: &mut [Notch]) {
        for change in changes {
            current[change.task] = *change;
        }
    }

    #[test]
    fn a_switch_costs_one_change() {
        let ratchet = Ratchet::new(Priority::of::<2>(), Priority::of::<12>());
        let mut current = start(3);
        let mut calls = 0;
        for turn in 0..300 {
            let changes = ratchet.order(&[turn % 3], &current, |_| 1);
            calls += changes.len();
            make(&changes, &mut current);
        }
        // The range has ten notches, so every tenth switch restarts it with up to three changes.
        assert!(calls <= 300 + 300 * 3 / 10, "{calls} calls");
        assert_eq!(ratchet.order(&[299 % 3], &current, |_| 1), []);
    }

    #[test]
    fn a_heavy_task_is_rarely_moved_and_the_others_move_around_it() {
        let ratchet = Ratchet::new(Priority::of::<2>(), Priority::of::<12>());
        let mut current = start(4);
        let mut moved = [0; 4];
        // Task 0 is heavy. Each task is favoured alone in turn, and in between two tasks are.
        let turns = [&[0][..], &[1], &[2], &[1, 0], &[3], &[0, 1], &[2, 3]];
        for turn in 0..700 {
            let weight = |task: usize| if task == 0 { 2000 } else { 1 };
            let changes = ratchet.order(turns[turn % turns.len()], &current, weight);
            changes.iter().for_each(|change| moved[change.task] += 1);
            make(&changes, &mut current);
        }
        assert!(moved[0] <= 3, "moves of each task: {moved:?}");
        assert!(
            moved[1..].iter().sum::<usize>() <= 700 * 2,
            "moves of each task: {moved:?}"
        );
    }

    proptest! {
        #[test]
        fn favoured_tasks_are_above_all_others_in_their_order(
            turns in prop::collection::vec(prop::collection::vec(0usize..6, 0..5), 1..60),
            range in 4u8..20,
            weights in prop::collection::vec(1usize..100, 6),
        ) {
            let base = Priority::of::<2>();
            let ratchet = Ratchet::new(base, Priority::new(2 + range).unwrap());
            let mut current = start(6);
            for mut favoured in turns {
                let mut seen = Vec::new();
                favoured.retain(|task| !seen.contains(task) && { seen.push(*task); true });
                let changes = ratchet.order(&favoured, &current, |task| weights[task]);
                make(&changes, &mut current);
                let at = |task: usize| current[task].at;
                prop_assert!(current.iter().all(|n| n.at >= base && n.at.get() <= 2 + range));
                prop_assert!(favoured.windows(2).all(|pair| at(pair[0]) > at(pair[1])));
                if let Some(&last) = favoured.last() {
                    let others = current.iter().filter(|n| !favoured.contains(&n.task));
                    prop_assert!(others.clone().all(|n| n.at < at(last)));
                }
            }
        }
    }
}
