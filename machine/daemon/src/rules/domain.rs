//! Adds up the CPU time of assigned processes by *domain*, and pauses the processes of a crowded
//! domain. A domain consists of the CPUs that share a last-level cache, of a NUMA node if caches
//! are not described, or of all CPUs.
//!
//! A process that is not pinned migrates within its domain, and the kernel runs the most urgent
//! thread on each CPU of the domain. So the daemon adds up the CPU time of all assigned
//! processes of a domain, in a common period of [`DOMAIN_PERIOD`]. If the processes may have
//! occupied a CPU for most of a period, all of them move to SCHED_IDLE at the beginning of the
//! next period (a *pause*). That leaves ordinary programs their share of every CPU beside
//! several processes within their budgets, and beside processes that fork without end.
//!
//! A pause lasts `bystander_percent` of the period for ordinary programs, and twice that for each
//! paused process that may be in a scheduling group of its own. The reason is that SCHED_IDLE is
//! relative to a session or cgroup, so each group gets a part of the pause, and a new group gets a
//! larger part. Real-time threads get at most 85 % of a CPU, which is less than the 95 % at which
//! the kernel itself throttles them.

use std::time::{Duration, Instant};

use upshift_elevate::sys::{CpuSet, Sys};

/// Number of periods for which the usage of a process counts. One would be too few, because a
/// process that computes may have to wait for other processes for a whole period.
pub(super) const RECENT_PERIODS: u32 = 4;

/// Length of the common period. An overload may begin unnoticed in one period and is noticed at the
/// end of the next. Two periods are shorter than the silence that a canary tolerates.
pub(super) const DOMAIN_PERIOD: Duration = Duration::from_millis(25);

#[derive(Debug)]
pub(super) struct Domains {
    all: Vec<Domain>,
    began: Instant,
}

#[derive(Debug)]
struct Domain {
    cpus: CpuSet,
    /// CPU time that its processes have used in SCHED_FIFO in this period.
    used: Duration,
    /// Number of threads that compute on each of its CPUs. A process that may use several CPUs
    /// counts on each of them in equal parts, for at most one thread per CPU.
    crowds: Vec<f32>,
    pause_until: Option<Instant>,
}

impl Domains {
    pub(super) fn read(sys: &dyn Sys, online: &[usize], now: Instant) -> Domains {
        let mut lists: Vec<Vec<usize>> = Vec::new();
        for &cpu in online {
            if !lists.iter().any(|list| list.contains(&cpu)) {
                lists.push(cpus_around(sys, cpu).unwrap_or_else(|| online.to_vec()));
            }
        }
        Domains {
            all: lists.iter().map(|list| Domain::new(list)).collect(),
            began: now,
        }
    }

    /// Returns the largest number of CPUs in `cpus` that belong to one domain, at least 1.
    pub(super) fn width(&self, cpus: &CpuSet) -> u32 {
        let widths = self
            .all
            .iter()
            .map(|domain| count_common(&domain.cpus, cpus));
        widths.max().unwrap_or(0).max(1)
    }

    /// Charges every domain that overlaps `cpus` for a process that may run there. `urgent` is the
    /// process's CPU time in SCHED_FIFO in this period, and `threads` the number of its computing
    /// threads.
    pub(super) fn charge(&mut self, cpus: &CpuSet, urgent: Duration, threads: usize) {
        for domain in &mut self.all {
            let common = domain.cpus.and(cpus);
            let width = common.iter().count();
            if width == 0 {
                continue;
            }
            domain.used += urgent;
            let crowds = domain.cpus.iter().zip(&mut domain.crowds);
            for (_, crowd) in crowds.filter(|(cpu, _)| common.contains(*cpu)) {
                *crowd += (threads as f32 / width as f32).min(1.0);
            }
        }
    }

    pub(super) fn period_end(&self) -> Instant {
        self.began + DOMAIN_PERIOD
    }

    /// Ends the period, and decides which domains pause in the next period, so that ordinary
    /// programs have `percent` of the time. `daemon_time` is the CPU time of the daemon, on any
    /// CPU, which ordinary programs also did not have.
    pub(super) fn end_period(&mut self, percent: u32, daemon_time: Duration, now: Instant) {
        let period = now - self.began;
        self.began = now;
        for domain in &mut self.all {
            // One CPU may have run nothing but elevated threads for 85 % of the period.
            let is_crowded =
                !domain.used.is_zero() && (domain.used + daemon_time) * 20 >= period * 17;
            let crowd = domain.crowds.iter().fold(1.0f32, |a, b| a.max(b.ceil()));
            let pause = DOMAIN_PERIOD
                .mul_f32(percent as f32 / 100.0 * (1.0 + 2.0 * crowd))
                .min(DOMAIN_PERIOD / 2);
            domain.pause_until = is_crowded.then_some(now + pause);
            domain.used = Duration::ZERO;
            domain.crowds.fill(0.0);
        }
    }

    pub(super) fn pause_end(&self, cpus: &CpuSet, now: Instant) -> Option<Instant> {
        let overlapping = self
            .all
            .iter()
            .filter(|domain| count_common(&domain.cpus, cpus) > 0);
        let ends = overlapping.filter_map(|domain| domain.pause_until);
        ends.filter(|&end| now < end).max()
    }
}

impl Domain {
    fn new(cpus: &[usize]) -> Domain {
        Domain {
            cpus: set(cpus),
            used: Duration::ZERO,
            crowds: vec![0.0; cpus.len()],
            pause_until: None,
        }
    }
}

/// Returns the CPUs that share the last-level cache with `cpu`, or else its NUMA node; `None` if
/// `/sys` describes neither.
fn cpus_around(sys: &dyn Sys, cpu: usize) -> Option<Vec<usize>> {
    let cache = (0..8).rev().find_map(|index| {
        let directory = format!("/sys/devices/system/cpu/cpu{cpu}/cache/index{index}");
        let level: u32 = sys
            .read_file(&format!("{directory}/level"))
            .ok()?
            .trim()
            .parse()
            .ok()?;
        // If the last described cache is below level 3, it belongs to a core, and the machine's
        // shared cache is not described.
        let list = sys
            .read_file(&format!("{directory}/shared_cpu_list"))
            .ok()?;
        (level >= 3).then_some(list)
    });
    let list = cache.or_else(|| {
        (0..1024)
            .map_while(|node| {
                let path = format!("/sys/devices/system/node/node{node}/cpulist");
                sys.read_file(&path).ok()
            })
            .find(|list| crate::shared::parse_cpus(list).contains(&cpu))
    });
    let cpus = crate::shared::parse_cpus(&list?);
    cpus.contains(&cpu).then_some(cpus)
}

fn set(cpus: &[usize]) -> CpuSet {
    let mut set = CpuSet::empty();
    cpus.iter().for_each(|&cpu| set.insert(cpu));
    set
}

fn count_common(a: &CpuSet, b: &CpuSet) -> u32 {
    a.and(b).iter().count() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_pauses_if_its_processes_may_have_occupied_a_cpu() {
        let began = Instant::now();
        let mut domains = Domains {
            all: vec![Domain::new(&[0, 1, 2, 3]), Domain::new(&[4, 5])],
            began,
        };
        let (left, right) = (set(&[0]), set(&[4, 5]));
        assert_eq!((domains.width(&left), domains.width(&right)), (1, 2));
        assert_eq!(domains.width(&CpuSet::all()), 4);
        let ms = Duration::from_millis;
        let mut now = domains.period_end();
        // Two processes, each within its budget, ran on one CPU one after the other.
        domains.charge(&left, ms(11), 1);
        domains.charge(&left, ms(11), 1);
        domains.charge(&right, ms(15), 1);
        domains.end_period(5, Duration::ZERO, now);
        // Five shares of 5 %: one for ordinary programs, two for each of two paused processes.
        let end = now + DOMAIN_PERIOD / 4;
        assert_eq!(domains.pause_end(&left, now), Some(end));
        assert_eq!(domains.pause_end(&right, now), None);
        assert_eq!(domains.pause_end(&CpuSet::all(), now), Some(end));
        assert_eq!(domains.pause_end(&left, end), None);
        // The next period begins without usage, and 20 ms are less than 85 % of it.
        now = domains.period_end();
        domains.charge(&left, ms(20), 1);
        domains.end_period(5, Duration::ZERO, now);
        assert_eq!(domains.pause_end(&CpuSet::all(), now), None);
        // The CPU time of the daemon also counts.
        now = domains.period_end();
        domains.charge(&left, ms(20), 1);
        domains.end_period(5, ms(2), now);
        assert!(domains.pause_end(&left, now).is_some());
        assert_eq!(domains.pause_end(&right, now), None);
    }

    #[test]
    fn this_machine_has_domains_that_cover_its_cpus() {
        let sys = upshift_elevate::sys::Kernel;
        let domains = Domains::read(&sys, &[0], Instant::now());
        assert_eq!(domains.width(&set(&[0])), 1);
    }
}
