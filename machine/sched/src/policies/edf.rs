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
    reservation: Option<Reservation>,
    deadline: Nanos,
    /// Remaining budget of the period, ns.
    remaining: Nanos,
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
    reservations: Vec<(TaskId, Reservation)>,
    jobs: Vec<Job>,
    slice: Nanos,
    /// Tasks that share the remaining time; the first task is next.
    sharers: VecDeque<TaskId>,
    /// Remaining slice of the first of these tasks, ns.
    remaining_slice: Nanos,
}

impl Default for Edf {
    fn default() -> Edf {
        Edf {
            reservations: Vec::new(),
            jobs: Vec::new(),
            slice: SLICE,
            sharers: VecDeque::new(),
            remaining_slice: SLICE,
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
            EdfError::Impossible(reservation) => write!(
                f,
                "a budget of {:?} in a period of {:?} is impossible: both must be above 0, the budget at most the period",
                Duration::from_nanos(reservation.budget),
                Duration::from_nanos(reservation.period)
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
        self.remaining_slice = self.slice;
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
        reservation: Reservation,
        available: f64,
    ) -> Result<Edf, EdfError> {
        if reservation.budget == 0 || reservation.budget > reservation.period {
            return Err(EdfError::Impossible(reservation));
        }
        self.reservations.retain(|(other, _)| *other != task);
        self.reservations.push((task, reservation));
        let share = |r: &Reservation| r.budget as f64 / r.period as f64;
        let requested: f64 = self.reservations.iter().map(|(_, r)| share(r)).sum();
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
    fn rotate_sharers(&mut self) {
        self.sharers.rotate_left(1.min(self.sharers.len()));
        self.remaining_slice = self.slice;
    }

    /// Updates the tasks that share the remaining time. These are the tasks without a reservation
    /// or, if there are none, all tasks.
    fn update_sharers(&mut self) {
        let none_is_free = self.jobs.iter().all(|job| job.reservation.is_some());
        let shares = |job: &&Job| none_is_free || job.reservation.is_none();
        let tasks: Vec<TaskId> = self
            .jobs
            .iter()
            .filter(shares)
            .map(|job| job.task)
            .collect();
        self.sharers.retain(|task| tasks.contains(task));
        for task in tasks {
            if !self.sharers.contains(&task) {
                self.sharers.push_back(task);
            }
        }
    }
}

impl Policy for Edf {
    fn name(&self) -> &'static str {
        "edf"
    }

    fn added(&mut self, task: TaskId, now: Nanos) {
        let mut reservations = self.reservations.iter();
        let reservation = reservations.find(|(other, _)| *other == task);
        let reservation = reservation.map(|&(_, reservation)| reservation);
        self.jobs.push(Job {
            task,
            reservation,
            deadline: reservation.map_or(Nanos::MAX, |r| now + r.period),
            remaining: reservation.map_or(0, |r| r.budget),
            sleeps: false,
        });
        self.update_sharers();
    }

    fn removed(&mut self, task: TaskId, _now: Nanos) {
        self.jobs.retain(|job| job.task != task);
        self.update_sharers();
    }

    fn wants_usage(&self) -> bool {
        true
    }

    fn used(&mut self, usage: Usage, _now: Nanos) {
        if let Some(job) = self.jobs.iter_mut().find(|job| job.task == usage.task) {
            // Usage beyond the budget came from the remaining time.
            let excess = usage.cpu_time.saturating_sub(job.remaining);
            job.remaining = job.remaining.saturating_sub(usage.cpu_time);
            job.sleeps = usage.slept;
            if self.sharers.front() == Some(&usage.task) {
                self.remaining_slice = self.remaining_slice.saturating_sub(excess);
                if self.remaining_slice == 0 {
                    self.rotate_sharers();
                }
            }
        }
    }

    fn pick(&mut self, now: Nanos, turn: &mut Turn) {
        for job in &mut self.jobs {
            let Some(reservation) = job.reservation else {
                continue;
            };
            if now >= job.deadline {
                // Periods stay on their grid, even if several were missed.
                let periods = (now - job.deadline) / reservation.period + 1;
                job.deadline += periods * reservation.period;
                job.remaining = reservation.budget;
            }
            turn.end_at(job.deadline);
        }
        self.jobs.sort_by_key(|job| (job.deadline, job.task));
        let mut awake = 0;
        for job in self.jobs.iter().filter(|job| job.remaining > 0) {
            turn.favour(job.task);
            turn.end_at(now + job.remaining);
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
        for task in &self.sharers {
            turn.favour(*task);
            awake += usize::from(!sleeps(task));
            if awake == turn.cpus() {
                break;
            }
        }
        if self.sharers.len() > turn.cpus() {
            turn.end_at(now + self.remaining_slice);
        }
    }
}
