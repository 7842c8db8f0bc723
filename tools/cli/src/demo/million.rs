//! Experiment 3: a million coroutines, what they weigh and how long they take.
//!
//! Each count runs in a process of its own (`upshift spawn-test`), so memory is that of the count
//! alone. A few thousand threads stand beside them for comparison.

use std::time::Duration;

use anyhow::Result;

use super::bench::{Bench, keep_going};
use upshift_report::number::{bytes, factor, grouped, micros};
use upshift_report::plot::COLOURS;
use upshift_report::{Kind, Look, Plot};

use crate::choice::Model;
use crate::demo::report::{Finding, Section};
use crate::spawn_test::{SpawnReport, table};

/// Planned time of one count; most take far less.
const STEP: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(30);
const THREADS: usize = 2000;

fn counts(quick: bool) -> &'static [usize] {
    if quick {
        &[1_000_000]
    } else {
        &[1000, 10_000, 100_000, 1_000_000]
    }
}

/// How long the experiment is planned to take.
pub(crate) fn plan(quick: bool) -> Duration {
    STEP * (counts(quick).len() as u32 + 1)
}

/// Runs the experiment.
pub(crate) fn run(bench: &mut Bench) -> Result<Section> {
    let mut reports = Vec::new();
    for &count in counts(bench.quick) {
        reports.push(spawn(bench, Model::Coroutine, count)?);
    }
    let threads = keep_going(spawn(bench, Model::Thread, THREADS))?;
    Ok(section(&reports, &threads))
}

fn spawn(bench: &mut Bench, model: Model, count: usize) -> Result<SpawnReport> {
    bench
        .progress
        .step(&format!("{count} × {}", model.word()), STEP);
    let args = [
        "spawn-test",
        "--model",
        model.word(),
        "--count",
        &count.to_string(),
        "--json",
    ];
    let progress = &mut bench.progress;
    bench
        .children
        .json(&args.map(str::to_owned), PATIENCE, &mut || progress.tick())
}

fn section(reports: &[SpawnReport], threads: &Result<SpawnReport, String>) -> Section {
    let mut table = table("Spawned, all waiting at once, then woken and joined");
    for report in reports.iter().chain(threads.as_ref().ok()) {
        table.row(report.row());
    }
    let mut findings = Vec::new();
    if let Some(most) = reports.last() {
        findings.push(Finding::new(format!(
            "{} coroutines that wait take {} of memory, {} each; all are spawned in {} and woken, run and joined in {}.",
            grouped(most.count as f64),
            bytes(most.memory),
            bytes(most.bytes_each()),
            micros(most.spawn * 1e6),
            micros(most.run * 1e6),
        )));
        match threads {
            Ok(threads) => findings.push(Finding::new(format!(
                "A thread that waits takes {} of resident memory besides what the kernel holds for it ({} a coroutine), and {} to spawn ({} a coroutine).",
                bytes(threads.bytes_each()),
                factor(threads.bytes_each(), most.bytes_each()),
                micros(threads.spawn * 1e6 / threads.count as f64),
                factor(threads.spawn / threads.count as f64, most.spawn / most.count as f64),
            ))),
            Err(message) => findings.push(Finding::failed(format!("Threads for comparison: {message}."))),
        }
    }
    let each = |of: fn(&SpawnReport) -> f64| {
        let point = move |r: &SpawnReport| (r.count as f64, of(r));
        reports.iter().map(point).collect::<Vec<_>>()
    };
    let x = ("coroutines", Kind::Log10);
    let mut time = Plot::new("Time per coroutine", x, ("ns", Kind::Linear));
    let spawn = each(|r| r.spawn * 1e9 / r.count as f64);
    time.add("spawn", Look::Line, COLOURS[0], spawn);
    let run = each(|r| r.run * 1e9 / r.count as f64);
    time.add("wake, run and join", Look::Line, COLOURS[2], run);
    let y = ("bytes", Kind::Linear);
    let mut memory = Plot::new("Memory per waiting coroutine", x, y);
    let bytes = each(SpawnReport::bytes_each);
    memory.add("resident memory", Look::Line, COLOURS[3], bytes);
    let mut plots = vec![time, memory];
    plots.retain(|_| reports.len() > 1);
    let mut commands: Vec<String> = reports
        .iter()
        .map(|r| format!("upshift spawn-test --model coroutine --count {}", r.count))
        .collect();
    commands.push(format!(
        "upshift spawn-test --model thread --count {THREADS}"
    ));
    Section {
        title: "3. A million coroutines".into(),
        intro: "Each count is a process of its own: spawn all, let all wait, read the growth of resident memory, then \
                wake all, run them to their end and join them. On one vCPU."
            .into(),
        findings,
        plots,
        tables: vec![table],
        commands,
        ..Section::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_cannot_start_leave_a_remark() {
        let report = SpawnReport {
            model: "coroutine".into(),
            count: 1000,
            memory: 1e6,
            spawn: 0.1,
            run: 0.1,
        };
        let section = section(&[report], &Err("started only 5 of 2000 threads".into()));
        assert!(section.findings.iter().any(|f| f.text.contains("only 5")));
        assert_eq!(section.tables[0].rows.len(), 1);
    }
}
