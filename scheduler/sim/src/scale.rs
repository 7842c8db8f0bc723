//! Compares the core with an ideal scheduler on many vCPUs, for the table and the plots of
//! `docs/scale.md`.
//!
//! Jobs arrive from outside at random. One in ten has level 0 (the most urgent), the others have
//! level 40. The times for which they compute are distributed exponentially, with a mean of 20 µs.
//! The ideal scheduler has one global queue and no costs; like the core it does not interrupt
//! polls.

use std::collections::VecDeque;
use std::fmt::Write;

use crate::laws::Laws;
use crate::machine::Machine;
use crate::workload::{Op, Program, Workload};
use crate::world::World;

/// Mean time for which a job computes, in nanoseconds.
const MEAN: f64 = 20_000.0;
const JOBS_PER_VCPU: usize = 100;

/// A job, with times in nanoseconds.
struct Job {
    arrival_time: u64,
    is_urgent: bool,
    compute_time: u64,
}

/// A generator of uniform random numbers from 0 to 1, the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) as f64 + 1.0) / (1_u64 << 53) as f64
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -self.next().ln() * mean
    }
}

fn jobs(vcpus: usize, load: f64) -> Vec<Job> {
    let mut random = Random(0x5eed_1234_5678_9abc);
    let mut time = 100_000.0;
    let job = |_| {
        time += random.exponential(MEAN / (load * vcpus as f64));
        Job {
            arrival_time: time as u64,
            is_urgent: random.next() < 0.1,
            compute_time: random.exponential(MEAN) as u64,
        }
    };
    (0..JOBS_PER_VCPU * vcpus).map(job).collect()
}

/// Returns the wait of each job under the ideal scheduler.
fn ideal_waits(vcpus: usize, jobs: &[Job]) -> Vec<u64> {
    let mut free_at = vec![0; vcpus];
    let mut waits = vec![0; jobs.len()];
    let mut queues = [VecDeque::new(), VecDeque::new()];
    let (mut next, mut time) = (0, 0);
    while next < jobs.len() || queues.iter().any(|queue| !queue.is_empty()) {
        let first = (0..vcpus).min_by_key(|vcpu| free_at[*vcpu]).unwrap_or(0);
        let has_waiting = queues.iter().any(|queue| !queue.is_empty());
        let now = if has_waiting {
            free_at[first].max(time)
        } else {
            free_at[first].max(jobs[next].arrival_time)
        };
        time = now;
        while next < jobs.len() && jobs[next].arrival_time <= now {
            queues[usize::from(!jobs[next].is_urgent)].push_back(next);
            next += 1;
        }
        let urgent = queues[0].pop_front();
        let Some(k) = urgent.or_else(|| queues[1].pop_front()) else {
            continue;
        };
        waits[k] = now - jobs[k].arrival_time;
        free_at[first] = now + jobs[k].compute_time;
    }
    waits
}

/// Returns the wait of each job on the core.
fn core_waits(vcpus: usize, jobs: &[Job]) -> Vec<u64> {
    let program = |job: &Job| {
        let level = if job.is_urgent { 0 } else { 40 };
        Program::at(job.arrival_time, level, [Op::Compute(job.compute_time)])
    };
    let workload = Workload::new(jobs.iter().map(program).collect::<Vec<_>>());
    let machine = Machine::new(vcpus);
    let laws = Laws::new(&machine, &workload, false);
    let world = World::new(machine, workload, laws);
    // The laws are not checked, so the run returns no violation.
    let _ = world.run();
    let laws = world.laws.borrow();
    let wait = |(k, job): (usize, &Job)| {
        laws.first_polled(k).unwrap_or(job.arrival_time) - job.arrival_time
    };
    jobs.iter().enumerate().map(wait).collect()
}

/// Returns the median wait of level 0 and the mean wait of all jobs, in µs.
fn figures(jobs: &[Job], waits: &[u64]) -> (f64, f64) {
    let mut urgent: Vec<u64> = (jobs.iter().zip(waits))
        .filter(|(job, _)| job.is_urgent)
        .map(|(_, wait)| *wait)
        .collect();
    urgent.sort_unstable();
    let median = urgent[(urgent.len() - 1) / 2] as f64 / 1e3;
    let mean = waits.iter().sum::<u64>() as f64 / waits.len() as f64 / 1e3;
    (median, mean)
}

/// The waits of one machine at one load.
pub struct Point {
    /// Number of vCPUs.
    pub vcpus: usize,
    /// Offered work over capacity.
    pub load: f64,
    /// Median wait of level 0 and mean wait of all jobs on the core, in µs.
    pub core: (f64, f64),
    /// The same waits on the ideal machine.
    pub ideal: (f64, f64),
}

/// Measures all machines at all loads.
#[must_use]
pub fn points() -> Vec<Point> {
    let machines = [2, 8, 32, 128];
    let all = machines
        .iter()
        .flat_map(|vcpus| [0.5, 0.65, 0.8, 0.95, 1.05, 1.2].map(|load| (*vcpus, load)));
    all.map(|(vcpus, load)| {
        let jobs = jobs(vcpus, load);
        Point {
            vcpus,
            load,
            core: figures(&jobs, &core_waits(vcpus, &jobs)),
            ideal: figures(&jobs, &ideal_waits(vcpus, &jobs)),
        }
    })
    .collect()
}

/// Returns the table, in Markdown.
#[must_use]
pub fn table(points: &[Point]) -> String {
    let mut text = String::from(
        "| vCPUs | load | level 0, median wait, µs: core (ideal) | all, mean wait, µs: core (ideal) |\n|---|---|---|---|\n",
    );
    for Point {
        vcpus,
        load,
        core,
        ideal,
    } in points
    {
        let _ = writeln!(
            text,
            "| {vcpus} | {load} | {:.1} ({:.1}) | {:.1} ({:.1}) |",
            core.0, ideal.0, core.1, ideal.1
        );
    }
    text
}
