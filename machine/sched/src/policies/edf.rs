//! [`Edf`] is the policy "earliest deadline first", with a budget for each period.
//!
//! The policy follows Liu and Layland, "Scheduling Algorithms for Multiprogramming in a
//! Hard-Real-Time Environment" (JACM 20(1), 1973). Budgets are enforced, so that an overrun harms
//! only its own task. A task's budget is refilled at the beginning of each period; the end of the
//! period is the task's deadline. Of the tasks that have budget left, the task with the earliest
//! deadline runs. Remaining time goes to the tasks without a reservation, in turn, each for a slice
//! of CPU time. If there are no such tasks, the remaining time goes to the tasks with a
//! reservation. On one CPU every task gets its budget before every deadline if the budgets divided
//! by the periods add up to at most 1, less the lateness of timers and the part of ordinary
//! threads.

use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::policy::{Nanos, Policy, TaskId, Turn, Usage};

/// A reservation: a budget in each period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reservation {
    /// Length of the period, ns.
    pub period: Nanos,
    /// CPU time in each period, ns.
    pub budget: Nanos,
}

#[derive(Debug)]
struct Job {
    task: TaskId,
    reserved: Option<Reservation>,
    deadline: Nanos,
    left: Nanos,
    sleeps: bool,
}

/// Default slice of the remaining time, ns of CPU time.
const SLICE: Nanos = 5_000_000;

/// Earliest deadline first.
///
/// ```
/// use upshift_sched::policies::{Edf, EdfError, Reservation};
/// use upshift_sched::TaskId;
///
/// // 4 ms of every 10 ms, on one CPU.
/// let four = Reservation { period: 10_000_000, budget: 4_000_000 };
/// let policy = Edf::new().reserve(TaskId(0), four, 1.0)?.reserve(TaskId(1), four, 1.0)?;
/// assert!(policy.reserve(TaskId(2), four, 1.0).is_err());
/// # Ok::<(), EdfError>(())
/// ```
#[derive(Debug)]
pub struct Edf {
    given: Vec<(TaskId, Reservation)>,
    jobs: Vec<Job>,
    slice: Nanos,
    /// Tasks that share the remaining time; the first task is next.
    rest: VecDeque<TaskId>,
    /// Remaining slice of the first of these tasks, ns.
    rest_left: Nanos,
}

impl Default for Edf {
    fn default() -> Edf {
        Edf {
            given: Vec::new(),
            jobs: Vec::new(),
            slice: SLICE,
            rest: VecDeque::new(),
            rest_left: SLICE,
        }
    }
}

/// The reason why a reservation is refused.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum EdfError {
    /// Period or budget is 0, or the budget is longer than the period.
    Impossible(Reservation),
    /// The reservations exceed the CPUs.
    Overcommitted {
        /// Sum of budget divided by period over all reservations, in CPUs.
        requested: f64,
        /// Number of CPUs.
        available: f64,
    },
}

impl fmt::Display for EdfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EdfError::Impossible(reserved) => write!(
                f,
                "a budget of {:?} in a period of {:?} is impossible: both must be above 0, the budget at most the period",
                Duration::from_nanos(reserved.budget),
                Duration::from_nanos(reserved.period)
            ),
            EdfError::Overcommitted {
                requested,
                available,
            } => write!(
                f,
                "the reservations add up to {requested:.2} CPUs of {available:.2}: shorten budgets, lengthen periods or add CPUs"
            ),
        }
    }
}

impl Error for EdfError {}

impl Edf {
    /// Creates the policy without reservations.
    pub fn new() -> Edf {
        Edf::default()
    }

    /// Sets the slice of the remaining time, ns of CPU time.
    pub fn slice(mut self, slice: Nanos) -> Edf {
        self.slice = slice.max(1);
        self.rest_left = self.slice;
        self
    }

    /// Makes a reservation for `task`, on a machine with `available` CPUs.
    ///
    /// # Errors
    /// [`EdfError`] if this reservation is impossible, or all reservations together exceed the
    /// CPUs.
    pub fn reserve(
        mut self,
        task: TaskId,
        reserved: Reservation,
        available: f64,
    ) -> Result<Edf, EdfError> {
        if reserved.budget == 0 || reserved.budget > reserved.period {
            return Err(EdfError::Impossible(reserved));
        }
        self.given.retain(|(other, _)| *other != task);
        self.given.push((task, reserved));
        let share = |r: &Reservation| r.budget as f64 / r.period as f64;
        let requested: f64 = self.given.iter().map(|(_, r)| share(r)).sum();
        if requested > available + 1e-9 {
            return Err(EdfError::Overcommitted {
                requested,
                available,
            });
        }
        Ok(self)
    }
}

impl Edf {
    fn rotate_rest(&mut self) {
        self.rest.rotate_left(1.min(self.rest.len()));
        self.rest_left = self.slice;
    }

    /// Updates the tasks that share the remaining time. These are the tasks without a reservation
    /// or, if there are none, all tasks.
    fn update_rest(&mut self) {
        let none_is_free = self.jobs.iter().all(|job| job.reserved.is_some());
        let shares = |job: &&Job| none_is_free || job.reserved.is_none();
        let due: Vec<TaskId> = self
            .jobs
            .iter()
            .filter(shares)
            .map(|job| job.task)
            .collect();
        self.rest.retain(|task| due.contains(task));
        for task in due {
            if !self.rest.contains(&task) {
                self.rest.push_back(task);
            }
        }
    }
}

impl Policy for Edf {
    fn name(&self) -> &'static str {
        "edf"
    }

    fn added(&mut self, task: TaskId, now: Nanos) {
        let given = self.given.iter().find(|(other, _)| *other == task);
        let reserved = given.map(|&(_, reserved)| reserved);
        self.jobs.push(Job {
            task,
            reserved,
            deadline: reserved.map_or(Nanos::MAX, |r| now + r.period),
            left: reserved.map_or(0, |r| r.budget),
            sleeps: false,
        });
        self.update_rest();
    }

    fn removed(&mut self, task: TaskId, _now: Nanos) {
        self.jobs.retain(|job| job.task != task);
        self.update_rest();
    }

    fn wants_usage(&self) -> bool {
        true
    }

    fn used(&mut self, usage: Usage, _now: Nanos) {
        if let Some(job) = self.jobs.iter_mut().find(|job| job.task == usage.task) {
            // Usage beyond the budget came from the remaining time.
            let beyond = usage.cpu_time.saturating_sub(job.left);
            job.left = job.left.saturating_sub(usage.cpu_time);
            job.sleeps = usage.slept;
            if self.rest.front() == Some(&usage.task) {
                self.rest_left = self.rest_left.saturating_sub(beyond);
                if self.rest_left == 0 {
                    self.rotate_rest();
                }
            }
        }
    }

    fn pick(&mut self, now: Nanos, turn: &mut Turn) {
        for job in &mut self.jobs {
            let Some(reserved) = job.reserved else {
                continue;
            };
            if now >= job.deadline {
                // Periods stay on their grid, even if several were missed.
                let periods = (now - job.deadline) / reserved.period + 1;
                job.deadline += periods * reserved.period;
                job.left = reserved.budget;
            }
            turn.end_at(job.deadline);
        }
        self.jobs.sort_by_key(|job| (job.deadline, job.task));
        let mut awake = 0;
        for job in self.jobs.iter().filter(|job| job.left > 0) {
            turn.favour(job.task);
            turn.end_at(now + job.left);
            awake += usize::from(!job.sleeps);
            if awake == turn.cpus() {
                return;
            }
        }
        let sleeps = |task: &TaskId| {
            let job = self.jobs.iter().find(|job| job.task == *task);
            job.is_some_and(|job| job.sleeps)
        };
        // A sleeper stays in front, so that it runs when it wakes; meanwhile the next task uses its
        // slice.
        for task in &self.rest {
            turn.favour(*task);
            awake += usize::from(!sleeps(task));
            if awake == turn.cpus() {
                break;
            }
        }
        if self.rest.len() > turn.cpus() {
            turn.end_at(now + self.rest_left);
        }
    }
}
