//! Assigns a CPU to each task.
//!
//! The favoured tasks are placed first. In order, each goes to the CPU with the fewest favoured
//! tasks that are awake, and prefers its present CPU. The other tasks stay on their CPU unless the
//! loads of the CPUs differ by two or more tasks.

use crate::policy::TaskId;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) task: TaskId,
    pub(crate) cpu: usize,
    pub(crate) sleeps: bool,
}

/// Distributes the tasks over `cpus` CPUs (counted from 0), and returns the favoured tasks of each
/// CPU, in order.
pub(crate) fn place(
    favoured: &[TaskId],
    placements: &mut [Placement],
    cpus: usize,
) -> Vec<Vec<TaskId>> {
    let mut front: Vec<Vec<TaskId>> = vec![Vec::new(); cpus];
    let mut awake = vec![0usize; cpus];
    for &task in favoured {
        let Some(placement) = placements
            .iter_mut()
            .find(|placement| placement.task == task)
        else {
            continue;
        };
        let load = |cpu: usize| (awake[cpu], front[cpu].len(), cpu != placement.cpu);
        let best = (0..cpus).min_by_key(|&cpu| load(cpu)).unwrap_or(0);
        placement.cpu = best;
        front[best].push(task);
        awake[best] += usize::from(!placement.sleeps);
    }
    let mut load = vec![0usize; cpus];
    for placement in placements.iter() {
        load[placement.cpu] += 1;
    }
    for placement in placements
        .iter_mut()
        .filter(|placement| !favoured.contains(&placement.task))
    {
        let least_loaded = (0..cpus).min_by_key(|&cpu| load[cpu]).unwrap_or(0);
        if load[placement.cpu] >= load[least_loaded] + 2 {
            load[placement.cpu] -= 1;
            load[least_loaded] += 1;
            placement.cpu = least_loaded;
        }
    }
    front
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placements(cpus: &[usize]) -> Vec<Placement> {
        let placement = |(task, &cpu)| Placement {
            task: TaskId(task),
            cpu,
            sleeps: false,
        };
        cpus.iter().enumerate().map(placement).collect()
    }

    fn ids(tasks: &[usize]) -> Vec<TaskId> {
        tasks.iter().map(|&task| TaskId(task)).collect()
    }

    #[test]
    fn favoured_tasks_keep_their_cpu_if_they_can() {
        let mut all = placements(&[0, 1, 0]);
        assert_eq!(place(&ids(&[0, 1]), &mut all, 2), [ids(&[0]), ids(&[1])]);
        assert_eq!(place(&ids(&[1, 2]), &mut all, 2), [ids(&[2]), ids(&[1])]);
        assert_eq!(all[1].cpu, 1);
    }

    #[test]
    fn two_favoured_tasks_never_share_a_cpu_while_another_has_none() {
        let mut all = placements(&[0, 0, 0]);
        let front = place(&ids(&[0, 2]), &mut all, 2);
        assert!(front.iter().all(|tasks| tasks.len() == 1));
    }

    #[test]
    fn a_task_that_is_favoured_because_another_sleeps_shares_its_cpu() {
        let mut all = placements(&[0, 1, 0]);
        all[0].sleeps = true;
        let front = place(&ids(&[0, 1, 2]), &mut all, 2);
        assert_eq!(front, [ids(&[0, 2]), ids(&[1])]);
    }

    #[test]
    fn other_tasks_are_spread() {
        let mut all = placements(&[0; 6]);
        place(&[], &mut all, 3);
        for cpu in 0..3 {
            assert_eq!(
                all.iter().filter(|placement| placement.cpu == cpu).count(),
                2
            );
        }
    }
}
