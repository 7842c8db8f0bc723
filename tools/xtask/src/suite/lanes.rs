//! What of the chosen steps measures no time, two beside each other: lints, model checkers, builds.
//!
//! Invariants: two that build in the same folder never run at once, since cargo would have one of them wait; a step that is done here says so
//! in one line, whole, when it ends; what is built ahead says nothing until its step runs.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::step::Beside;

/// How many run at once. One alone leaves much of a second CPU idle: an interpreter or a model has one thread, and a build ends with one
/// crate. More would take the memory of as many compilers.
const LANES: usize = 2;

/// One step's part.
pub(super) struct Job {
    /// The step's place in the list of those chosen.
    pub(super) index: usize,
    pub(super) beside: Beside,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Job>,
    /// The folders of those that run.
    taken: Vec<&'static str>,
}

/// Runs the jobs, each as soon as there is room and its folder is free, else in their order. `work` gets the job and when it began.
pub(super) fn run<T: Send>(
    jobs: Vec<Job>,
    lanes: Lanes,
    work: impl Fn(&Job) -> T + Sync,
) -> Vec<(usize, T, Duration)> {
    let queue = Mutex::new(Queue {
        waiting: jobs,
        taken: Vec::new(),
    });
    let freed = Condvar::new();
    let done = Mutex::new(Vec::new());
    let lane = || {
        while let Some(job) = next(&queue, &freed) {
            let begun = Instant::now();
            let result = work(&job);
            lock(&done).push((job.index, result, begun.elapsed()));
            let folder = job.beside.folder();
            lock(&queue).taken.retain(|taken| *taken != folder);
            freed.notify_all();
        }
    };
    thread::scope(|scope| {
        for _ in 1..lanes.count() {
            scope.spawn(lane);
        }
        lane();
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// How many of them there are.
#[derive(Clone, Copy)]
pub(super) enum Lanes {
    /// Output that is shown as it comes would be mixed.
    One,
    All,
}

impl Lanes {
    fn count(self) -> usize {
        match self {
            Self::One => 1,
            Self::All => LANES,
        }
    }
}

/// The first whose folder is free; none once all have begun.
fn next(queue: &Mutex<Queue>, freed: &Condvar) -> Option<Job> {
    let mut queue = lock(queue);
    loop {
        if queue.waiting.is_empty() {
            return None;
        }
        let is_free = |job: &Job| !queue.taken.contains(&job.beside.folder());
        if let Some(place) = queue.waiting.iter().position(is_free) {
            let job = queue.waiting.remove(place);
            queue.taken.push(job.beside.folder());
            return Some(job);
        }
        queue = freed.wait(queue).unwrap_or_else(PoisonError::into_inner);
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn jobs(folders: &[&'static str]) -> Vec<Job> {
        let job = |(index, folder): (usize, &&'static str)| Job {
            index,
            beside: Beside::Whole(folder),
        };
        folders.iter().enumerate().map(job).collect()
    }

    #[test]
    fn two_run_at_once_but_not_in_one_folder() {
        let (mut here, mut there) = (Mutex::new(0), Mutex::new(0));
        let (at_once, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let done = run(
            jobs(&["here", "here", "here", "there", "there"]),
            Lanes::All,
            |job| {
                let of = if job.index < 3 { &here } else { &there };
                let mut of = of
                    .try_lock()
                    .expect("no other lane works in the same folder");
                most.fetch_max(at_once.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let since = Instant::now();
                // Until both lanes have been seen at work.
                while most.load(Ordering::SeqCst) < 2 && since.elapsed() < Duration::from_secs(30) {
                    thread::yield_now();
                }
                at_once.fetch_sub(1, Ordering::SeqCst);
                *of += 1;
                job.index
            },
        );
        assert_eq!(
            (*here.get_mut().unwrap(), *there.get_mut().unwrap()),
            (3, 2)
        );
        assert_eq!(most.into_inner(), 2);
        let mut indices: Vec<_> = done
            .iter()
            .map(|(index, result, _)| (*index, *result))
            .collect();
        indices.sort_unstable();
        assert_eq!(indices, [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)]);
    }

    #[test]
    fn one_lane_keeps_their_order() {
        let done = run(jobs(&["a", "b", "a"]), Lanes::One, |job| job.index);
        let order: Vec<_> = done.iter().map(|(index, ..)| *index).collect();
        assert_eq!(order, [0, 1, 2]);
    }
}
