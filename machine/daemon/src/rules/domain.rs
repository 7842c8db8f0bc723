//! Scheduling domains of assigned processes: the CPUs that share a last-level cache, a NUMA node where caches are not described, all CPUs
//! where neither is.
//!
//! A process that is not pinned moves about within its domain. The kernel runs the most urgent thread on each CPU of it; what the daemon
//! keeps by domain is what ordinary programs are owed. All assigned processes of a domain are counted together, in a common period of
//! [`TURN`]: if they may have kept one CPU for most of it, they leave the domain at the beginning of the next one (a *breath*). So
//! processes within their budgets, one after the other, and processes that fork without end, leave ordinary programs their share of
//! every CPU.
//!
//! A breath is `bystander_percent` of the period for ordinary programs, and twice that for each process that steps aside but may be in a
//! group of its own: in SCHED_IDLE a thread is the last of its session or cgroup only, so each of these has its part of a breath, and a
//! group that has just joined more than that (measured: beside four, ordinary programs have two fifths of an equal part). So what
//! is real-time has 85 % of a CPU at most, which the kernel's throttling (95 %) does not meet.

use std::time::{Duration, Instant};

use upshift_elevate::sys::{CpuSet, Sys};

/// What a process has used counts for so many periods: some that compute have to wait for others for a whole one.
pub(super) const LATELY: u32 = 4;

/// The common period: so short that two of them, in the first of which it is not yet seen, are less than the canary waits.
pub(super) const TURN: Duration = Duration::from_millis(25);

/// See the module.
#[derive(Debug)]
pub(super) struct Domains {
    all: Vec<Domain>,
    /// When this period began.
    began: Instant,
}

#[derive(Debug)]
struct Domain {
    cpus: CpuSet,
    /// What its processes have used in this period while they were elevated.
    used: Duration,
    /// For each of its CPUs, how many processes compute there, each in equal parts on those it runs on.
    crowds: Vec<f32>,
    /// Until when they leave it to others.
    breath_until: Option<Instant>,
}

impl Domains {
    /// Those of this machine. Reads some files of `/sys` for each CPU.
    pub(super) fn of(sys: &dyn Sys, online: &[usize], now: Instant) -> Domains {
        let mut lists: Vec<Vec<usize>> = Vec::new();
        for &cpu in online {
            if !lists.iter().any(|list| list.contains(&cpu)) {
                lists.push(around(sys, cpu).unwrap_or_else(|| online.to_vec()));
            }
        }
        Domains {
            all: lists.iter().map(|list| Domain::new(list)).collect(),
            began: now,
        }
    }

    /// How many CPUs of one domain a process has that may run on `cpus`: of that in which it has most.
    pub(super) fn width(&self, cpus: &CpuSet) -> u32 {
        let widths = self.all.iter().map(|it| common(&it.cpus, cpus));
        widths.max().unwrap_or(0).max(1)
    }

    /// A process that runs on `cpus` has used so much of this period while it was elevated, and so many threads of it compute. It counts in
    /// every domain it runs in.
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

    /// When the period ends.
    pub(super) fn due(&self) -> Instant {
        self.began + TURN
    }

    /// The end of a period: decides which domains take a breath in the next one, for `percent` for ordinary programs. The daemon itself has
    /// worked for `own`, on any CPU: what it takes from a CPU nothing ordinary has, either.
    pub(super) fn turn(&mut self, percent: u32, own: Duration, now: Instant) {
        let period = now - self.began;
        self.began = now;
        for domain in &mut self.all {
            // Something above that may be a CPU on which nothing ordinary has run.
            let crowded = !domain.used.is_zero() && (domain.used + own) * 20 >= period * 17;
            let crowd = domain.crowds.iter().fold(1.0f32, |a, b| a.max(b.ceil()));
            let breath = TURN
                .mul_f32(percent as f32 / 100.0 * (1.0 + 2.0 * crowd))
                .min(TURN / 2);
            domain.breath_until = crowded.then_some(now + breath);
            domain.used = Duration::ZERO;
            domain.crowds.fill(0.0);
        }
    }

    /// Until when a process that may run on `cpus` leaves them to others; `None`: it need not.
    pub(super) fn breath(&self, cpus: &CpuSet, now: Instant) -> Option<Instant> {
        let here = self.all.iter().filter(|it| common(&it.cpus, cpus) > 0);
        let ends = here.filter_map(|it| it.breath_until);
        ends.filter(|&end| now < end).max()
    }
}

impl Domain {
    fn new(cpus: &[usize]) -> Domain {
        Domain {
            cpus: set(cpus),
            used: Duration::ZERO,
            crowds: vec![0.0; cpus.len()],
            breath_until: None,
        }
    }
}

/// The CPUs that share the last level of their caches with `cpu`, or its node.
fn around(sys: &dyn Sys, cpu: usize) -> Option<Vec<usize>> {
    let cache = (0..8).rev().find_map(|index| {
        let directory = format!("/sys/devices/system/cpu/cpu{cpu}/cache/index{index}");
        let level: u32 = sys
            .read_file(&format!("{directory}/level"))
            .ok()?
            .trim()
            .parse()
            .ok()?;
        // Where the last level described is the core's own, it says nothing of the machine.
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
    fn a_domain_that_may_have_no_cpu_for_others_takes_a_breath() {
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
        // For two that step aside and for ordinary programs: five parts.
        let end = now + TURN / 4;
        assert_eq!(domains.breath(&left, now), Some(end));
        assert_eq!(domains.breath(&right, now), None);
        assert_eq!(domains.breath(&CpuSet::all(), now), Some(end));
        assert_eq!(domains.breath(&left, end), None);
        // The next period begins with nothing used; what was used without being elevated takes nothing from others.
        now = domains.due();
        domains.charge(&left, ms(20), 1);
        domains.turn(5, Duration::ZERO, now);
        assert_eq!(domains.breath(&CpuSet::all(), now), None);
        // What the daemon itself works counts, beside what they use.
        now = domains.due();
        domains.charge(&left, ms(20), 1);
        domains.turn(5, ms(2), now);
        assert!(domains.breath(&left, now).is_some());
        assert_eq!(domains.breath(&right, now), None);
    }

    #[test]
    fn this_machine_has_domains_that_cover_its_cpus() {
        let sys = upshift_elevate::sys::Kernel;
        let domains = Domains::of(&sys, &[0], Instant::now());
        assert_eq!(domains.width(&set(&[0])), 1);
    }
}
