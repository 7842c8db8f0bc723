//! Makes one run under one scheduler, and computes its figures.

use std::error::Error;
use std::io;
use std::time::Duration;

use upshift_elevate::{Elevator, Priority};
use upshift_sched::policies::{Entry, RoundRobin, Table};
use upshift_sched::{
    Config, Ended, Engine, EventKind, Policy, ProcessMonitor, Processes, SchedError, Scheduler,
    TaskId,
};

use crate::spinners::{Record, Spinner, now};
use crate::trick;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Priority of Upshift's scheduler.
const SCHEDULER: Priority = Priority::of::<45>();
/// Time for a run to settle before it is measured.
const SETTLE: Duration = Duration::from_millis(50);

/// A scheduler that is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contender {
    Upshift,
    Trick,
    Script,
    Kernel,
}

impl Contender {
    fn name(self) -> &'static str {
        match self {
            Contender::Upshift => "upshift sched",
            Contender::Trick => "trick.c's algorithm",
            Contender::Script => "trick.sh's algorithm",
            Contender::Kernel => "kernel, SCHED_OTHER",
        }
    }
}

pub(crate) fn print(bench: &str, peer: &str, value: f64) {
    let line = serde_json::json!({
        "bench": bench, "peer": peer, "ns": value, "min": value, "max": value,
    });
    println!("{line}");
}

/// Measures the time that a process alone loses to interrupts and other threads.
pub(crate) fn alone(cpu: usize, time: Duration) -> Result<()> {
    let spinner = Spinner::start(cpu)?;
    std::thread::sleep(SETTLE);
    spinner.begin();
    let start_time = now();
    std::thread::sleep(time);
    let running_ns: u64 = (spinner.record().stretches.iter())
        .map(|(begin, end)| end - begin)
        .sum();
    let lost_percent = 100.0 * (1.0 - running_ns as f64 / (now() - start_time) as f64);
    print(
        "one process alone: time in which it did not run, %",
        Contender::Kernel.name(),
        lost_percent,
    );
    Ok(())
}

/// Records of one run.
struct Run {
    records: Vec<Record>,
    /// Absolute times in ns at which a task came to the front, which means that it was selected to
    /// run, with the index of the task. Empty under the kernel's scheduler and under the script.
    fronts: Vec<(u64, usize)>,
    /// Intervals in which the CPU was open to ordinary threads: begin and end.
    open: Vec<(u64, u64)>,
    /// Duration of the run, in ns.
    elapsed: u64,
    upshift: Option<upshift_sched::Report>,
    /// CPU time of the published algorithm's scheduler, in ns.
    trick_cpu_time: u64,
}

/// Runs `during` while Upshift schedules the processes.
fn run_upshift(
    pids: Vec<i32>,
    cpu: usize,
    policy: Box<dyn Policy>,
    during: impl FnOnce(),
) -> Result<Ended> {
    let elevator = Elevator::with_guardian()?;
    let handle = elevator.clone();
    let mut config = Config::for_cpus([cpu]);
    config.trace = 200_000;
    let base = config.base;
    let scheduler = Scheduler::start(&elevator, cpu, SCHEDULER, move || {
        let mut engine = Engine::new(config, policy);
        let monitor = ProcessMonitor::start(&engine.control(), &handle, SCHEDULER)?;
        for pid in pids {
            engine.add(Processes::attach(&handle, &monitor, pid, base, false)?)?;
        }
        Ok::<_, SchedError>(engine)
    })?;
    during();
    Ok(scheduler.stop())
}

fn run(
    contender: Contender,
    cpu: usize,
    spinners: &[Spinner],
    policy: Box<dyn Policy>,
    slice: Duration,
    time: Duration,
) -> Result<Run> {
    let pids: Vec<i32> = spinners.iter().map(|spinner| spinner.pid).collect();
    let begin = || spinners.iter().for_each(Spinner::begin);
    let records = || spinners.iter().map(Spinner::record).collect();
    let start_time = now();
    match contender {
        Contender::Kernel => {
            begin();
            std::thread::sleep(time);
            Ok(Run {
                records: records(),
                fronts: Vec::new(),
                open: Vec::new(),
                elapsed: now() - start_time,
                upshift: None,
                trick_cpu_time: 0,
            })
        }
        Contender::Trick => {
            begin();
            let outcome = trick::round_robin(pids, slice, cpu, time)?;
            let elapsed = now() - start_time;
            Ok(Run {
                records: records(),
                fronts: outcome.fronts,
                open: Vec::new(),
                elapsed,
                upshift: None,
                trick_cpu_time: outcome.cpu_time,
            })
        }
        Contender::Script => {
            begin();
            trick::script(&pids, slice, cpu, time)?;
            Ok(Run {
                records: records(),
                fronts: Vec::new(),
                open: Vec::new(),
                elapsed: now() - start_time,
                upshift: None,
                trick_cpu_time: 0,
            })
        }
        Contender::Upshift => {
            let (mut start, mut end, mut last_records) = (0, 0, Vec::new());
            let ended = run_upshift(pids, cpu, policy, || {
                std::thread::sleep(SETTLE);
                begin();
                start = now();
                std::thread::sleep(time);
                last_records = records();
                end = now();
            })?;
            let (report, trace) = ended?;
            let zero = report.began;
            let front = |event: &upshift_sched::Event| match event.kind {
                EventKind::Front { task, .. } => Some((zero + event.at, task?.0)),
                _ => None,
            };
            Ok(Run {
                records: last_records,
                fronts: trace.events().iter().filter_map(front).collect(),
                open: open_pieces(zero, trace.events()),
                elapsed: end - start,
                upshift: Some(report),
                trick_cpu_time: 0,
            })
        }
    }
}

fn open_pieces(zero: u64, events: &[upshift_sched::Event]) -> Vec<(u64, u64)> {
    let mut pieces = Vec::new();
    let mut begin = None;
    for event in events {
        match event.kind {
            EventKind::Opened => begin = Some(zero + event.at),
            EventKind::Closed => pieces.extend(begin.take().map(|begin| (begin, zero + event.at))),
            _ => {}
        }
    }
    pieces
}

/// Measures `count` processes that take turns of `slice`.
pub(crate) fn turns(
    contender: Contender,
    cpu: usize,
    count: usize,
    slice: Duration,
    time: Duration,
) -> Result<()> {
    let spinners = (0..count)
        .map(|_| Spinner::start(cpu))
        .collect::<io::Result<Vec<_>>>()?;
    std::thread::sleep(SETTLE);
    let policy = Box::new(RoundRobin::new(slice.as_nanos() as u64));
    let run = run(contender, cpu, &spinners, policy, slice, time)?;
    let case = format!("{count} × {} µs", slice.as_micros());
    let say = |name: &str, value: f64| print(&format!("{case}: {name}"), contender.name(), value);
    let loops: Vec<f64> = run
        .records
        .iter()
        .map(|record| record.loops as f64)
        .collect();
    let all: f64 = loops.iter().sum();
    let deviation = |loops: &f64| (loops / all - 1.0 / count as f64).abs() * 100.0;
    say(
        "largest deviation of a share, points",
        loops.iter().map(deviation).fold(0.0, f64::max),
    );
    let lengths = |record: &Record| {
        record
            .stretches
            .iter()
            .map(|(begin, end)| end - begin)
            .sum::<u64>()
    };
    let running_ns: u64 = run.records.iter().map(lengths).sum();
    say(
        "time in which none of them ran, %",
        100.0 * (1.0 - running_ns as f64 / run.elapsed as f64),
    );
    say("a turn, median, µs", median_stretch(&run) / 1e3);
    let per_switch = |ns: u64, switches: u64| ns as f64 / 1e3 / switches.max(1) as f64;
    let cpu_time = "scheduler's CPU time per switch, µs";
    if contender == Contender::Trick {
        say(
            cpu_time,
            per_switch(run.trick_cpu_time, run.fronts.len() as u64),
        );
    }
    if !run.fronts.is_empty() {
        let (closed, open) = out_of_turn(&run);
        say("ran out of turn, %", 100.0 * closed);
        say("ran out of turn in open pieces, %", 100.0 * open);
        say("gap at a switch, median, µs", median_gap(&run) / 1e3);
    }
    if let Some(report) = run.upshift {
        say(
            "scheduler, a switch, median, µs",
            report.cost.p50 as f64 / 1e3,
        );
        say(cpu_time, per_switch(report.own_cpu_time, report.switches));
        let waits = report.waits as f64 / report.switches.max(1) as f64;
        say("wake-ups per switch", waits);
        let calls = report.calls as f64 / report.switches.max(1) as f64;
        say("calls per switch", calls);
    }
    Ok(())
}

/// Returns the shares of the running time in which a process ran although it was not in front:
/// outside of open intervals, and inside them.
fn out_of_turn(run: &Run) -> (f64, f64) {
    let (mut closed, mut open, mut total) = (0, 0, 0);
    // Times recorded after the last turn belong to no turn.
    let last = run.fronts.last().map_or(0, |&(time, _)| time);
    for (task, record) in run.records.iter().enumerate() {
        for &(begin, end) in record.stretches.iter().filter(|(_, end)| *end <= last) {
            total += end - begin;
            let mut index = run
                .fronts
                .partition_point(|&(time, _)| time <= begin)
                .max(1)
                - 1;
            while let Some(&(turn_begin, front)) =
                run.fronts.get(index).filter(|(time, _)| *time < end)
            {
                let turn_end = run
                    .fronts
                    .get(index + 1)
                    .map_or(end, |&(time, _)| time)
                    .min(end);
                let turn_begin = turn_begin.max(begin);
                if front != task && turn_begin < turn_end {
                    let within =
                        |&(a, b): &(u64, u64)| b.min(turn_end).saturating_sub(a.max(turn_begin));
                    let part: u64 = run.open.iter().map(within).sum();
                    open += part;
                    closed += turn_end - turn_begin - part;
                }
                index += 1;
            }
        }
    }
    let part = |ns: u64| ns as f64 / total.max(1) as f64;
    (part(closed), part(open))
}

/// Returns the median time for which a process ran without a pause, in ns.
fn median_stretch(run: &Run) -> f64 {
    let stretches = run.records.iter().flat_map(|record| &record.stretches);
    let mut lengths: Vec<u64> = stretches.map(|(begin, end)| end - begin).collect();
    lengths.sort_unstable();
    lengths
        .get(lengths.len() / 2)
        .map_or(0.0, |&length| length as f64)
}

/// Returns the median time between the end of one process and the beginning of another, in ns.
fn median_gap(run: &Run) -> f64 {
    let mut stretches: Vec<(u64, u64, usize)> = Vec::new();
    for (task, record) in run.records.iter().enumerate() {
        stretches.extend(
            record
                .stretches
                .iter()
                .map(|&(begin, end)| (begin, end, task)),
        );
    }
    stretches.sort_unstable();
    let pairs = stretches.windows(2).filter(|pair| pair[0].2 != pair[1].2);
    let mut gaps: Vec<u64> = pairs
        .map(|pair| pair[1].0.saturating_sub(pair[0].1))
        .collect();
    gaps.sort_unstable();
    gaps.get(gaps.len() / 2).map_or(0.0, |&gap| gap as f64)
}

/// Measures the share and the longest wait of an ordinary process beside two scheduled ones.
pub(crate) fn with_bystander(contender: Contender, cpu: usize, time: Duration) -> Result<()> {
    let spinners = (0..3)
        .map(|_| Spinner::start(cpu))
        .collect::<io::Result<Vec<_>>>()?;
    std::thread::sleep(SETTLE);
    let (bystander, tasks) = spinners.split_last().ok_or("no processes")?;
    let slice = Duration::from_millis(5);
    bystander.begin();
    let policy = Box::new(RoundRobin::new(slice.as_nanos() as u64));
    // The kernel throttles real-time threads by the second, so a shorter run would not show the
    // throttling.
    let run = run(
        contender,
        cpu,
        tasks,
        policy,
        slice,
        time.max(Duration::from_secs(3)),
    )?;
    let record = bystander.record();
    let running_ns: u64 = record
        .stretches
        .iter()
        .map(|(begin, end)| end - begin)
        .sum();
    let share = 100.0 * running_ns as f64 / run.elapsed as f64;
    print(
        "2 × 5 ms and an ordinary process: its share, %",
        contender.name(),
        share,
    );
    let pauses = record
        .stretches
        .windows(2)
        .map(|pair| pair[1].0 - pair[0].1);
    let longest_pause_ms = pauses.max().unwrap_or(0) as f64 / 1e6;
    print(
        "2 × 5 ms and an ordinary process: longest wait, ms",
        contender.name(),
        longest_pause_ms,
    );
    let loops: Vec<f64> = run
        .records
        .iter()
        .map(|record| record.loops as f64)
        .collect();
    let deviation = (loops[0] / (loops[0] + loops[1]) - 0.5).abs() * 100.0;
    print(
        "2 × 5 ms and an ordinary process: deviation, points",
        contender.name(),
        deviation,
    );
    Ok(())
}

/// Measures how late the entries of a timetable begin, according to the records of the processes.
pub(crate) fn table(cpu: usize, time: Duration) -> Result<()> {
    let spinners = (0..3)
        .map(|_| Spinner::start(cpu))
        .collect::<io::Result<Vec<_>>>()?;
    std::thread::sleep(SETTLE);
    let lengths = [5_000_000u64, 1_000_000, 3_000_000, 400_000];
    let entry = |(index, &length): (usize, &u64)| Entry {
        tasks: vec![TaskId(index % 3)],
        length,
    };
    let entries: Vec<Entry> = lengths.iter().enumerate().map(entry).collect();
    let policy = Box::new(Table::new(entries));
    let run = run(
        Contender::Upshift,
        cpu,
        &spinners,
        policy,
        Duration::ZERO,
        time,
    )?;
    let start_time = run.upshift.as_ref().map_or(0, |report| report.began);
    let total: u64 = lengths.iter().sum();
    let mut latenesses: Vec<u64> = Vec::new();
    for &(at, task) in &run.fronts {
        // The first time after the switch at which this process ran. Entries whose process did not
        // run within 200 µs are left out.
        let stretches = &run.records[task].stretches;
        let first = stretches
            .iter()
            .find(|(_, end)| *end > at)
            .map(|(begin, _)| (*begin).max(at));
        let Some(first) = first.filter(|first| first - at < 200_000) else {
            continue;
        };
        let offset = (first - start_time) % total;
        let mut begin = 0;
        let mut lateness = offset;
        for length in lengths {
            begin += length;
            if offset >= begin {
                lateness = lateness.min(offset - begin);
            }
        }
        latenesses.push(lateness);
    }
    latenesses.sort_unstable();
    let percentile_us = |percent: usize| {
        latenesses
            .get(latenesses.len() * percent / 100)
            .map_or(0.0, |&ns| ns as f64 / 1e3)
    };
    print(
        "timetable: an entry begins late by, median, µs",
        Contender::Upshift.name(),
        percentile_us(50),
    );
    print(
        "timetable: an entry begins late by, p99, µs",
        Contender::Upshift.name(),
        percentile_us(99),
    );
    Ok(())
}
