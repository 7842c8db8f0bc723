//! [`Ratchet`]: which SCHED_FIFO priority makes a task run next, with as few system calls as possible.
//!
//! The plain way to switch is two calls for each thread: raise the next task, lower the last one. A ratchet raises the next
//! one *above* the last one instead, one notch at a time, and lowers none until the range is used up. Then all go
//! back to the base and it starts again. With *n* tasks and a range of *r* notches a switch costs at most *1 + n / r* calls
//! for each thread instead of 2.
//!
//! One ratchet for each CPU. Invariant after [`Ratchet::order`]: the favoured tasks have strictly falling notches, all above
//! those of every other task of the CPU. Pure logic, O(tasks²) for few tasks, no system calls.

use upshift_elevate::Priority;

/// The notches of one CPU.
#[derive(Debug, Clone)]
pub(crate) struct Ratchet {
    base: u8,
    top: u8,
    /// The highest notch given out.
    highest: u8,
}

/// A task on this CPU and its notch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Notch {
    pub(crate) task: usize,
    pub(crate) at: Priority,
}

impl Ratchet {
    /// Notches from `base`, where those wait that are not favoured, up to `top`, which is above it.
    pub(crate) fn new(base: Priority, top: Priority) -> Ratchet {
        Ratchet {
            base: base.get(),
            top: top.get().max(base.get()),
            highest: base.get(),
        }
    }

    /// All are at the base.
    pub(crate) fn reset(&mut self) {
        self.highest = self.base;
    }

    /// How many tasks can be favoured at once.
    pub(crate) fn room(&self) -> usize {
        usize::from(self.top - self.base)
    }

    /// The changes, in the order in which they are to be made, that put `favoured` above all others and in this order. `now`: all
    /// tasks of this CPU. Favoured tasks beyond [`Ratchet::room`] are left out.
    pub(crate) fn order(&mut self, favoured: &[usize], now: &[Notch]) -> Vec<Notch> {
        let favoured = &favoured[..favoured.len().min(self.room())];
        let notch = |task: usize| {
            let found = now.iter().find(|notch| notch.task == task);
            found.map_or(self.base, |notch| notch.at.get())
        };
        let others = now.iter().filter(|notch| !favoured.contains(&notch.task));
        let mut below = others.map(|notch| notch.at.get()).max().unwrap_or(0);
        let mut highest = self.highest;
        let mut changes = Vec::new();
        for &task in favoured.iter().rev() {
            if notch(task) > below.max(self.base) {
                below = notch(task);
            } else {
                highest += 1;
                below = highest;
                changes.push((task, highest));
            }
        }
        if highest > self.top {
            return self.start_again(favoured, now);
        }
        self.highest = highest;
        changes.into_iter().filter_map(change).collect()
    }

    fn start_again(&mut self, favoured: &[usize], now: &[Notch]) -> Vec<Notch> {
        let raised = now.iter().filter(|notch| notch.at.get() > self.base);
        let lowered = raised.filter(|notch| !favoured.contains(&notch.task));
        let mut changes: Vec<(usize, u8)> = lowered.map(|notch| (notch.task, self.base)).collect();
        self.highest = self.base;
        for &task in favoured.iter().rev() {
            self.highest += 1;
            changes.push((task, self.highest));
        }
        changes.into_iter().filter_map(change).collect()
    }
}

fn change((task, at): (usize, u8)) -> Option<Notch> {
    // Within `base ..= top`, so always a priority.
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

    fn make(changes: &[Notch], now: &mut [Notch]) {
        for change in changes {
            now[change.task] = *change;
        }
    }

    #[test]
    fn the_next_one_costs_one_change() {
        let mut ratchet = Ratchet::new(Priority::of::<2>(), Priority::of::<12>());
        let mut now = start(3);
        let mut calls = 0;
        for turn in 0..300 {
            let changes = ratchet.order(&[turn % 3], &now);
            calls += changes.len();
            make(&changes, &mut now);
        }
        assert!(calls <= 300 + 300 * 3 / 10, "{calls}");
        assert_eq!(ratchet.order(&[299 % 3], &now), []);
    }

    proptest! {
        #[test]
        fn favoured_tasks_are_above_all_others_in_their_order(
            turns in prop::collection::vec(prop::collection::vec(0usize..6, 0..5), 1..60),
            range in 4u8..20,
        ) {
            let base = Priority::of::<2>();
            let mut ratchet = Ratchet::new(base, Priority::new(2 + range).unwrap());
            let mut now = start(6);
            for mut favoured in turns {
                let mut seen = Vec::new();
                favoured.retain(|task| !seen.contains(task) && { seen.push(*task); true });
                let changes = ratchet.order(&favoured, &now);
                make(&changes, &mut now);
                let at = |task: usize| now[task].at;
                prop_assert!(now.iter().all(|n| n.at >= base && n.at.get() <= 2 + range));
                prop_assert!(favoured.windows(2).all(|pair| at(pair[0]) > at(pair[1])));
                if let Some(&last) = favoured.last() {
                    let others = now.iter().filter(|n| !favoured.contains(&n.task));
                    prop_assert!(others.clone().all(|n| n.at < at(last)));
                }
            }
        }
    }
}
