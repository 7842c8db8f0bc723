//! Scheduling domains of assigned processes: the CPUs that share a last-level cache, a NUMA node
//! where caches are not described, or all CPUs.
//!
//! A process that is not pinned moves within its domain, and the kernel runs the most urgent thread
//! on each CPU of it. The debt to ordinary programs is counted by domain: the CPU time of all
//! assigned processes of a domain is added up, in a common period of [`TURN`]. If they may have
//! occupied one CPU for most of it, they leave the domain at the beginning of the next one (a
//! *pause*). So several processes within their budgets, or processes that fork without end, leave
//! ordinary programs their share of every CPU.
//!
//! A pause is `bystander_percent` of the period for ordinary programs, and twice that for each
//! paused process that may be in a group of its own: SCHED_IDLE is relative to a session or cgroup,
//! so each of these has its part of a pause, and a group that has just joined has more than that.
//! So real-time threads have 85 % of a CPU at most, which is below the kernel's throttling (95 %).

use std::time::{Duration, Instant};

use upshift_elevate::sys::{CpuSet, Sys};

/// Periods for which the usage of a process counts: some computing processes have to wait for
/// others for a whole one.
pub(super) const RECENT_TURNS: u32 = 4;

/// The common period: two of them, of which the first may pass unnoticed, are shorter than the
/// silence that a canary tolerates.
pub(super) const TURN: Duration = Duration::from_millis(25);

/// The domains of the machine; see the module.
#[derive(Debug)]
pub(super) struct Domains {
    all: Vec<Domain>,
    /// Beginning of the present period.
    began: Instant,
}

#[derive(Debug)]
struct Domain {
    cpus: CpuSet,
    /// CPU time of its processes in this period while they were elevated.
    used: Duration,
    /// Number of processes that compute on each of its CPUs; a process counts in equal parts on all
    /// its CPUs.
    crowds: Vec<f32>,
    /// Time until which its processes pause.
    pause_until: Option<Instant>,
}

impl Domains {
    /// Detects the domains of this machine. Reads some files of `/sys` for each CPU.
    pub(super) fn of(sys: &dyn Sys, online: &[usize], now: Instant) -> Domains {
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

    /// Returns the largest number of CPUs of one domain that a process on `cpus` may use.
    pub(super) fn width(&self, cpus: &CpuSet) -> u32 {
        let widths = self.all.iter().map(|domain| common(&domain.cpus, cpus));
        widths.max().unwrap_or(0).max(1)
    }

    /// Charges a process that runs on `cpus` with its elevated CPU time of this period; `threads`
    /// of its threads compute. It counts in every domain that it may run in.
    pub(super) fn charge(&mut self, cpus: &CpuSet, urgent: Duration, threads: usize) {
        for domain in &mut self.all {
            let common = domain.cpus.and(cpus);
            let width = common.iter().count();
            if width == 0 {
                continue;
            }
            domain.used += urgent;
            let here = domain.cpus.iter().zip(&mut domain.crowds);
            for (_, crowd) in here.filter(|(cpu, _)| common.contains(*cpu)) {
                *crowd += (threads as f32 / width as f32).min(1.0);
            }
        }
    }

    /// Returns the end of the period.
    pub(super) fn due(&self) -> Instant {
        self.began + TURN
    }

    /// Ends a period: decides which domains pause in the next one, for `percent` of the time for
    /// ordinary programs. `own` is the work of the daemon itself, on any CPU: ordinary programs did
    /// not have that either.
    pub(super) fn turn(&mut self, percent: u32, own: Duration, now: Instant) {
        let period = now - self.began;
        self.began = now;
        for domain in &mut self.all {
            // A CPU may have run elevated threads alone for most of the period.
            let crowded = !domain.used.is_zero() && (domain.used + own) * 20 >= period * 17;
            let crowd = domain.crowds.iter().fold(1.0f32, |a, b| a.max(b.ceil()));
            let pause = TURN
                .mul_f32(percent as f32 / 100.0 * (1.0 + 2.0 * crowd))
                .min(TURN / 2);
            domain.pause_until = crowded.then_some(now + pause);
            domain.used = Duration::ZERO;
            domain.crowds.fill(0.0);
        }
    }

    /// Returns the time until which a process on `cpus` pauses; `None` if it need not.
    pub(super) fn pause_end(&self, cpus: &CpuSet, now: Instant) -> Option<Instant> {
        let here = self
            .all
            .iter()
            .filter(|domain| common(&domain.cpus, cpus) > 0);
        let ends = here.filter_map(|domain| domain.pause_until);
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

/// Returns the CPUs that share the last-level cache with `cpu`, or its NUMA node.
fn cpus_around(sys: &dyn Sys, cpu: usize) -> Option<Vec<usize>> {
    let cache = (0..8).rev().find_map(|index| {
        let directory = format!("/sys/devices/system/cpu/cpu{cpu}/cache/index{index}");
        let level: u32 = sys
            .read_file(&format!("{directory}/level"))
            .ok()?
            .trim()
            .parse()
            .ok()?;
        // A last described level below 3 is the core's own, and does not describe the machine.
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
            .find(|list| crate::shared::cpus(list).contains(&cpu))
    });
    let cpus = crate::shared::cpus(&list?);
    cpus.contains(&cpu).then_some(cpus)
}

fn set(cpus: &[usize]) -> CpuSet {
    let mut set = CpuSet::empty();
    cpus.iter().for_each(|&cpu| set.insert(cpu));
    set
}

fn common(a: &CpuSet, b: &CpuSet) -> u32 {
    a.and(b).iter().count() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_that_may_have_no_cpu_for_others_pauses() {
        let began = Instant::now();
        let mut domains = Domains {
            all: vec![Domain::new(&[0, 1, 2, 3]), Domain::new(&[4, 5])],
            began,
        };
        let (left, right) = (set(&[0]), set(&[4, 5]));
        assert_eq!((domains.width(&left), domains.width(&right)), (1, 2));
        assert_eq!(domains.width(&CpuSet::all()), 4);
        let ms = Duration::from_millis;
        let mut now = domains.due();
        // Within budgets, but one after the other on one CPU.
        domains.charge(&left, ms(11), 1);
        domains.charge(&left, ms(11), 1);
        domains.charge(&right, ms(15), 1);
        domains.turn(5, Duration::ZERO, now);
        // Two that pause and ordinary programs: five parts.
        let end = now + TURN / 4;
        assert_eq!(domains.pause_end(&left, now), Some(end));
        assert_eq!(domains.pause_end(&right, now), None);
        assert_eq!(domains.pause_end(&CpuSet::all(), now), Some(end));
        assert_eq!(domains.pause_end(&left, end), None);
        // The next period begins without usage; usage of threads that are not elevated takes no
        // time from others.
        now = domains.due();
        domains.charge(&left, ms(20), 1);
        domains.turn(5, Duration::ZERO, now);
        assert_eq!(domains.pause_end(&CpuSet::all(), now), None);
        // The work of the daemon itself counts, too.
        now = domains.due();
        domains.charge(&left, ms(20), 1);
        domains.turn(5, ms(2), now);
        assert!(domains.pause_end(&left, now).is_some());
        assert_eq!(domains.pause_end(&right, now), None);
    }

    #[test]
    fn this_machine_has_domains_that_cover_its_cpus() {
        let sys = upshift_elevate::sys::Kernel;
        let domains = Domains::of(&sys, &[0], Instant::now());
        assert_eq!(domains.width(&set(&[0])), 1);
    }
}
