//! Simulates the daemon's decisions on large machines, in virtual time.
//!
//! `cargo run --release -p upshift-daemon --example scale [FOLDER]` prints two tables
//! about the daemon, and draws the plot `scale-daemon.svg` of `docs/scale.md` into the folder.
//!
//! The example uses the real lines and words of the pages, claims, standings, rings, ranking,
//! choice of a winner, and limits of rings. The loop of a CPU's scheduler is rebuilt here after
//! `ranking/cpu/scheduler.rs`. It wakes, reads and ranks until the standings are stable, moves
//! threads whose band has changed, and works for at most 4 ms in each 20 ms. The times [`WAKE_NS`],
//! [`READ_AND_RANK_NS`] and [`MOVE_NS`] are assumptions.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use upshift_board::layout::VcpuLine;
use upshift_board::{NO_LEVEL, Standing};
use upshift_core::TokenBucket;
use upshift_daemon::rank::{self, Contender};
use upshift_elevate::testing::Random;
use upshift_report::plot::{COLOURS, SeriesStyle};
use upshift_report::{Kind, Plot, Table};

/// Time from a ring to the first instruction of the scheduler, and back, on one CPU, ns.
const WAKE_NS: u64 = 3_000;
/// Time to read and rank one vCPU, ns; the example prints the time of ranking on this machine for
/// comparison.
const READ_AND_RANK_NS: u64 = 15;
/// Time to move one thread, ns.
const MOVE_NS: u64 = 700;
/// Maximum number of times that the claims are read in a turn. This and the following values are
/// those of `ranking/cpu/scheduler.rs` and `shared.rs`.
const MAX_READS: usize = 3;
/// Maximum numbers of answered rings per second, for all doorbells of a CPU and for one doorbell.
const RINGS: (u64, u64) = (20_000, 10_000);
/// Time for which a doorbell that rings too often is ignored, ns.
const IGNORED_NS: u64 = 36_000_000;
/// Work budget for a second and for a burst, ns.
const WORK: (u64, u64) = (200_000_000, 4_000_000);

fn per_second(rate: u64, burst: u64) -> TokenBucket {
    TokenBucket::with_rate((rate, 1_000_000_000), burst, 0)
}
/// Numbers of CPUs of the simulated machines.
const MACHINES: [usize; 3] = [8, 64, 256];

const PROCESSES: usize = 1_000;
/// Number of changes of a vCPU's level per second, on the whole machine.
const CHANGES: u64 = 100_000;
/// Nanoseconds of a second, the duration of a simulation.
const SECOND: u64 = 1_000_000_000;
/// Latency from which a decision is late, ns.
const LATE_NS: u64 = 1_000_000;

/// A vCPU of a process, pinned to a CPU.
struct Vcpu {
    line: VcpuLine,
    standing: AtomicU32,
    cpu: usize,
    user: u32,
    /// The most urgent of the eight levels of this vCPU.
    base: u8,
    rings: TokenBucket,
    ignored_until: u64,
    band: u8,
    /// Time of a change beyond the vCPU's thresholds that the scheduler has not considered yet.
    undecided_since: Option<u64>,
}

impl Vcpu {
    fn contender(&self) -> Contender {
        let claim = self.line.claim();
        Contender {
            potential: claim.potential(),
            runnable: claim.runnable(),
            user: self.user,
            trusted: false,
        }
    }

    /// Changes to another level, or sleeps and awaits its most urgent level. Returns whether the
    /// change requires a ring.
    fn change(&mut self, random: &mut Random) -> bool {
        let level = self.base + random.below(8) as u8;
        let runs = random.below(2) == 0;
        self.line.set_running(if runs { level } else { NO_LEVEL });
        self.line.set_awaited(self.base);
        let standing = Standing::from_word(self.standing.load(Relaxed));
        standing.requires_ring(self.line.claim().potential())
    }
}

struct Cpu {
    vcpus: Vec<usize>,
    rings: TokenBucket,
    /// Set while a wake-up is in progress.
    is_woken: bool,
    /// Time until which the thread works, or has used up its budget.
    busy_until: u64,
    work: TokenBucket,
    /// Time for which the scheduler has worked, ns.
    worked_ns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Action {
    Change,
    Wake(usize),
    EnableDoorbell(usize),
}

#[derive(Default)]
struct Outcome {
    rings: u64,
    turns: u64,
    ranked_vcpus: u64,
    moved_threads: u64,
    /// Latencies of decisions, ns.
    decisions: Vec<u64>,
    ignored_rings: u64,
    written_standings: u64,
    /// Numbers of lines with several writers, first if each word has a line, and then if a line
    /// contains 16 words.
    shared_lines: usize,
    shared_packed_lines: usize,
    /// For comparison, the cost of a bitmap of the whole machine, which the daemon does not have.
    /// The numbers count changes of the bitmap, and lines read to compute the bitmap.
    global_bitmap_changes: u64,
    scanned_lines: u64,
    /// Number of wrong bands after a change that did not ring, in `checked_changes` changes.
    wrong_bands: u64,
    checked_changes: u64,
    /// CPU time of the scheduler that worked most, percent of a CPU.
    busiest_percent: f64,
}

struct Machine {
    vcpus: Vec<Vcpu>,
    cpus: Vec<Cpu>,
    queue: BinaryHeap<Reverse<(u64, Action)>>,
    random: Random,
    out: Outcome,
    writers: HashMap<usize, Vec<usize>>,
    bitmaps: Vec<u64>,
    header: u64,
    contenders: Vec<Contender>,
    standings: Vec<Standing>,
}

impl Machine {
    fn new(cpus: usize, vcpus_per_process: usize) -> Machine {
        let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ cpus as u64);
        let mut machine = Machine {
            vcpus: Vec::new(),
            cpus: Vec::new(),
            queue: BinaryHeap::new(),
            out: Outcome::default(),
            writers: HashMap::new(),
            bitmaps: vec![0; cpus],
            header: 0,
            contenders: Vec::new(),
            standings: Vec::new(),
            random: Random(1 + random.below(u64::MAX - 1)),
        };
        machine.cpus.extend((0..cpus).map(|_| Cpu {
            vcpus: Vec::new(),
            rings: per_second(RINGS.0, RINGS.0 / 50),
            is_woken: false,
            busy_until: 0,
            work: per_second(WORK.0, WORK.1),
            worked_ns: 0,
        }));
        for process in 0..PROCESSES {
            let first = random.below(cpus as u64) as usize;
            let base = random.below(56) as u8;
            for index in 0..vcpus_per_process {
                // A runtime uses a row of CPUs, a part of the machine.
                let cpu = (first + index) % cpus;
                machine.cpus[cpu].vcpus.push(machine.vcpus.len());
                machine.vcpus.push(Vcpu {
                    line: VcpuLine::new(),
                    standing: AtomicU32::new(0),
                    cpu,
                    user: process as u32 % 100,
                    base,
                    rings: per_second(RINGS.1, RINGS.1 / 50),
                    ignored_until: 0,
                    band: 0,
                    undecided_since: None,
                });
            }
        }
        machine
    }

    fn run(mut self) -> Outcome {
        self.queue.push(Reverse((0, Action::Change)));
        // All processes have just joined.
        (0..self.cpus.len()).for_each(|cpu| self.wake(cpu, 0));
        while let Some(Reverse((now, action))) = self.queue.pop() {
            if now >= SECOND {
                break;
            }
            match action {
                Action::Change => self.change(now),
                Action::Wake(cpu) => self.turn(cpu, now),
                Action::EnableDoorbell(vcpu) => self.wake(self.vcpus[vcpu].cpu, now),
            }
        }
        let busiest = self.cpus.iter().map(|cpu| cpu.worked_ns).max().unwrap_or(0);
        self.out.busiest_percent = busiest as f64 / SECOND as f64 * 100.0;
        let shared_lines = |words_per_line: usize| {
            let mut lines: HashMap<usize, Vec<usize>> = HashMap::new();
            for (slot, writers) in &self.writers {
                let line = lines.entry(slot / words_per_line).or_default();
                line.extend(writers);
                line.sort_unstable();
                line.dedup();
            }
            lines.values().filter(|writers| writers.len() > 1).count()
        };
        (self.out.shared_lines, self.out.shared_packed_lines) = (shared_lines(1), shared_lines(16));
        self.out.decisions.sort_unstable();
        self.out
    }

    /// Changes a level of a random vCPU, and schedules the next change at a random time.
    fn change(&mut self, now: u64) {
        let index = self.random.below(self.vcpus.len() as u64) as usize;
        let mean = SECOND / CHANGES;
        let next = now + 1 + self.random.below(2 * mean);
        self.queue.push(Reverse((next, Action::Change)));
        let vcpu = &mut self.vcpus[index];
        if !vcpu.change(&mut self.random) {
            if self.random.below(64) == 0 {
                self.check(index);
            }
            return;
        }
        self.out.rings += 1;
        self.vcpus[index].undecided_since.get_or_insert(now);
        let vcpu = &mut self.vcpus[index];
        let cpu = &mut self.cpus[vcpu.cpu];
        if now < vcpu.ignored_until {
            self.out.ignored_rings += 1;
        } else if vcpu.rings.try_take(1, now) && cpu.rings.try_take(1, now) {
            let cpu = vcpu.cpu;
            self.wake(cpu, now);
        } else {
            self.out.ignored_rings += 1;
            vcpu.ignored_until = now + IGNORED_NS;
            self.queue
                .push(Reverse((now + IGNORED_NS, Action::EnableDoorbell(index))));
        }
    }

    /// Checks that no band is wrong after a change within the thresholds, unless a decision of this
    /// CPU is pending.
    fn check(&mut self, index: usize) {
        let cpu = &self.cpus[self.vcpus[index].cpu];
        let vcpus_of_cpu = || cpu.vcpus.iter().map(|&index| &self.vcpus[index]);
        if cpu.is_woken || vcpus_of_cpu().any(|vcpu| vcpu.undecided_since.is_some()) {
            return;
        }
        let contenders: Vec<Contender> = vcpus_of_cpu().map(Vcpu::contender).collect();
        let mut standings = Vec::new();
        rank::rank(&contenders, None, &mut standings);
        let is_same = standings
            .iter()
            .zip(vcpus_of_cpu())
            .all(|(a, b)| a.band == b.band);
        self.out.checked_changes += 1;
        self.out.wrong_bands += u64::from(!is_same);
    }

    fn wake(&mut self, cpu: usize, now: u64) {
        let scheduler = &mut self.cpus[cpu];
        if !scheduler.is_woken {
            scheduler.is_woken = true;
            let wake_time = now.max(scheduler.busy_until) + WAKE_NS;
            self.queue.push(Reverse((wake_time, Action::Wake(cpu))));
        }
    }

    fn turn(&mut self, cpu: usize, now: u64) {
        self.out.turns += 1;
        let mut duration_ns = WAKE_NS;
        let mut indices = std::mem::take(&mut self.cpus[cpu].vcpus);
        for _ in 0..MAX_READS {
            self.contenders.clear();
            let all = indices.iter().map(|&index| self.vcpus[index].contender());
            self.contenders.extend(all);
            rank::rank(&self.contenders, None, &mut self.standings);
            duration_ns += READ_AND_RANK_NS * indices.len() as u64;
            self.out.ranked_vcpus += indices.len() as u64;
            let mut changed = false;
            for (&index, standing) in indices.iter().zip(&self.standings) {
                let word = &self.vcpus[index].standing;
                if word.swap(standing.word(), Relaxed) != standing.word() {
                    changed = true;
                    self.out.written_standings += 1;
                    let writers = self.writers.entry(index).or_default();
                    if !writers.contains(&cpu) {
                        writers.push(cpu);
                    }
                }
            }
            if !changed {
                break;
            }
        }
        let _winner = rank::winner(&self.contenders, 0);
        for (&index, standing) in indices.iter().zip(&self.standings) {
            let vcpu = &mut self.vcpus[index];
            if std::mem::replace(&mut vcpu.band, standing.band) != standing.band {
                duration_ns += MOVE_NS;
                self.out.moved_threads += 1;
            }
        }
        let decided_at = now + duration_ns;
        let mut bitmap = 0;
        for &index in &indices {
            let vcpu = &mut self.vcpus[index];
            bitmap |= vcpu.line.claim().levels();
            if let Some(change_time) = vcpu.undecided_since.take() {
                self.out.decisions.push(decided_at - change_time);
            }
        }
        if std::mem::replace(&mut self.bitmaps[cpu], bitmap) != bitmap {
            self.out.scanned_lines += self.bitmaps.len() as u64;
            let header = self.bitmaps.iter().fold(0, |all, bitmap| all | bitmap);
            self.out.global_bitmap_changes += u64::from(header != self.header);
            self.header = header;
        }
        let scheduler = &mut self.cpus[cpu];
        std::mem::swap(&mut scheduler.vcpus, &mut indices);
        scheduler.is_woken = false;
        scheduler.work.charge(duration_ns, decided_at);
        scheduler.worked_ns += duration_ns;
        scheduler.busy_until = decided_at + scheduler.work.wait(0, decided_at);
    }
}

/// Returns a quantile (0.5 is the median) of sorted times in ns, in µs.
fn quantile_us(sorted: &[u64], quantile: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    let index = (sorted.len() as f64 * quantile) as usize;
    sorted
        .get(index.min(last))
        .map_or(0.0, |&ns| ns as f64 / 1e3)
}

/// Prints the time of ranking on this machine, for comparison with [`READ_AND_RANK_NS`].
fn measure() {
    let mut random = Random(7);
    let contenders: Vec<Contender> = (0..1000)
        .map(|index| Contender {
            potential: random.below(64) as u8,
            runnable: random.below(64) as u8,
            user: index % 100,
            trusted: false,
        })
        .collect();
    let mut standings = Vec::new();
    let start = Instant::now();
    for _ in 0..1000 {
        rank::rank(std::hint::black_box(&contenders), None, &mut standings);
    }
    // The loop has ranked a thousand times a thousand vCPUs.
    let time_per_vcpu_ns = start.elapsed().as_nanos() as f64 / 1e6;
    println!(
        "Ranking takes {time_per_vcpu_ns:.1} ns for each vCPU on this machine; the example assumes {READ_AND_RANK_NS} ns for reading and ranking.\n"
    );
}

fn main() -> std::io::Result<()> {
    measure();
    let mut decisions = Table::new(
        "",
        &[
            "<CPUs",
            "<vCPUs of a process",
            "vCPUs on a CPU",
            "rings/s",
            "turns/s",
            "threads moved/s",
            "decided after, µs: p50",
            "p99",
            "longest",
            "later than 1 ms",
            "ignored rings",
            "busiest scheduler",
        ],
    );
    let mut lines = Table::new(
        "",
        &[
            "<CPUs",
            "<vCPUs of a process",
            "lines that several CPUs write",
            "the same with 16 standings in a line",
            "standings written/s",
            "changes/s of a bitmap of the whole machine, for comparison",
            "lines read/s to compute that bitmap",
            "changes within the thresholds after which a band was wrong",
        ],
    );
    let (mut machines, mut latencies) = (Vec::new(), [Vec::new(), Vec::new()]);
    for cpus in MACHINES {
        for vcpus_per_process in [1, 16] {
            let vcpus_per_process = vcpus_per_process.min(cpus);
            let out = Machine::new(cpus, vcpus_per_process).run();
            let quantiles = [0.5, 0.99, 1.0];
            let [p50, p99, longest] = quantiles.map(|q| quantile_us(&out.decisions, q));
            let late_decisions = out
                .decisions
                .iter()
                .filter(|&&latency| latency > LATE_NS)
                .count();
            decisions.row([
                cpus.to_string(),
                vcpus_per_process.to_string(),
                format!(
                    "{:.0}",
                    (PROCESSES * vcpus_per_process) as f64 / cpus as f64
                ),
                out.rings.to_string(),
                out.turns.to_string(),
                out.moved_threads.to_string(),
                format!("{p50:.1}"),
                format!("{p99:.1}"),
                format!("{longest:.0}"),
                late_decisions.to_string(),
                out.ignored_rings.to_string(),
                format!("{:.1} %", out.busiest_percent),
            ]);
            lines.row([
                cpus.to_string(),
                vcpus_per_process.to_string(),
                out.shared_lines.to_string(),
                out.shared_packed_lines.to_string(),
                out.written_standings.to_string(),
                out.global_bitmap_changes.to_string(),
                out.scanned_lines.to_string(),
                format!("{} of {}", out.wrong_bands, out.checked_changes),
            ]);
            for (points, us) in latencies.iter_mut().zip([p50, p99]) {
                points.push((machines.len() as f64, us));
            }
            machines.push(format!("{cpus} × {vcpus_per_process}"));
        }
    }
    print!("{}{}", decisions.markdown(), lines.markdown());
    if let Some(folder) = std::env::args().nth(1) {
        let title = "From a change to the decision";
        let x = "CPUs × vCPUs of a process";
        let mut plot = Plot::bars(title, x, ("µs", Kind::Log10), machines);
        for ((name, colour), points) in ["p50", "p99"].into_iter().zip(COLOURS).zip(latencies) {
            plot.add(name, SeriesStyle::Bar, colour, points);
        }
        std::fs::write(format!("{folder}/scale-daemon.svg"), plot.svg())?;
    }
    Ok(())
}
