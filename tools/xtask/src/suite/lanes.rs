//! Runs the chosen steps that measure no time (lints, model checkers, builds) in concurrent
//! *lanes*.
//!
//! Invariants: two jobs with the same build folder never run at once, since cargo would make one of
//! them wait. A step that runs completely in a lane prints one whole line when it ends. A build
//! that is started before its step's turn prints nothing until then.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::step::Concurrency;

/// Number of jobs that run at once. A single job leaves much of a second CPU idle, because Miri and
/// Loom are single-threaded, and the end of a build compiles a single crate. More jobs would
/// multiply the memory for compilers.
const LANES: usize = 2;

pub(super) struct Job {
    /// Index of the step in the list of chosen steps.
    pub(super) index: usize,
    pub(super) concurrency: Concurrency,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Job>,
    /// Build folders of the running jobs.
    busy_folders: Vec<&'static str>,
}

/// Runs `work` for the jobs. A free lane starts the first waiting job whose folder is free. Returns
/// the index, the result and the duration of each job.
pub(super) fn run<T: Send>(
    jobs: Vec<Job>,
    lanes: Lanes,
    work: impl Fn(&Job) -> T + Sync,
) -> Vec<(usize, T, Duration)> {
    let queue = Mutex::new(Queue {
        waiting: jobs,
        busy_folders: Vec::new(),
    });
    let folder_freed = Condvar::new();
    let results = Mutex::new(Vec::new());
    let lane = || {
        while let Some(job) = next(&queue, &folder_freed) {
            let started = Instant::now();
            let result = work(&job);
            lock(&results).push((job.index, result, started.elapsed()));
            let folder = job.concurrency.folder();
            lock(&queue).busy_folders.retain(|busy| *busy != folder);
            folder_freed.notify_all();
        }
    };
    thread::scope(|scope| {
        for _ in 1..lanes.count() {
            scope.spawn(lane);
        }
        lane();
    });
    results.into_inner().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Clone, Copy)]
pub(super) enum Lanes {
    /// A single lane, since live output of two jobs would mix.
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

/// Takes the first waiting job whose folder is free, and waits for such a job if necessary. Returns
/// `None` once all jobs have begun.
fn next(queue: &Mutex<Queue>, folder_freed: &Condvar) -> Option<Job> {
    let mut queue = lock(queue);
    loop {
        if queue.waiting.is_empty() {
            return None;
        }
        let is_free = |job: &Job| !queue.busy_folders.contains(&job.concurrency.folder());
        if let Some(place) = queue.waiting.iter().position(is_free) {
            let job = queue.waiting.remove(place);
            queue.busy_folders.push(job.concurrency.folder());
            return Some(job);
        }
        queue = folder_freed
            .wait(queue)
            .unwrap_or_else(PoisonError::into_inner);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn jobs(folders: &[&'static str]) -> Vec<Job> {
        let job = |(index, folder): (usize, &&'static str)| Job {
            index,
            concurrency: Concurrency::Whole(folder),
        };
        folders.iter().enumerate().map(job).collect()
    }

    #[test]
    fn two_jobs_run_at_once_but_not_in_one_folder() {
        let (mut here, mut there) = (Mutex::new(0), Mutex::new(0));
        let (at_once, max_at_once) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let results = run(
            jobs(&["here", "here", "here", "there", "there"]),
            Lanes::All,
            |job| {
                let runs = if job.index < 3 { &here } else { &there };
                let mut runs = runs
                    .try_lock()
                    .expect("no other lane works in the same folder");
                max_at_once.fetch_max(at_once.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let started = Instant::now();
                // Keeps the first lane busy until both lanes have been seen at work.
                while max_at_once.load(Ordering::SeqCst) < 2
                    && started.elapsed() < Duration::from_secs(30)
                {
                    thread::yield_now();
                }
                at_once.fetch_sub(1, Ordering::SeqCst);
                *runs += 1;
                job.index
            },
        );
        assert_eq!(
            (*here.get_mut().unwrap(), *there.get_mut().unwrap()),
            (3, 2)
        );
        assert_eq!(max_at_once.into_inner(), 2);
        let mut indices: Vec<_> = results
            .iter()
            .map(|(index, result, _)| (*index, *result))
            .collect();
        indices.sort_unstable();
        assert_eq!(indices, [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)]);
    }

    #[test]
    fn one_lane_keeps_the_order_of_jobs() {
        let results = run(jobs(&["a", "b", "a"]), Lanes::One, |job| job.index);
        let order: Vec<_> = results.iter().map(|(index, ..)| *index).collect();
        assert_eq!(order, [0, 1, 2]);
    }
}
