//! What preemption was to reach, and whether it did: rows of the summary.

use crate::preemption::{
    COST_CASE, EVEN_FULL, EVEN_MEDIAN, EXPONENTIAL_FULL, EXPONENTIAL_MEDIAN, LOADS, MICROS_CASE,
    MILLIS_SHORT, NO_LONG, OFF, ON, PING_ALONE, PING_CASE, class_row, millis_case,
};
use crate::results::{Run, SectionResults};
use crate::targets::{Row, Verdict, at_most, row};

/// A short request is served in time when its p99 is below this many times its service time.
const SLOWDOWN: f64 = 20.0;

/// All rows of the section.
pub(crate) fn rows(section: &SectionResults, rows: &mut Vec<Row>) {
    micros(section, rows);
    millis(section, rows);
    without_harm(section, rows);
    pings(section, rows);
    let cpu = |server| section.cell(COST_CASE, server)?.median(Run::cpu);
    rows.push(ratio(
        "preemption, nothing overruns: plaintext CPU/request ≤ 1.10 × off".into(),
        cpu(ON),
        cpu(OFF),
        1.10,
        "µs",
    ));
}

/// `value` against `limit` times `base`.
fn ratio(target: String, value: Option<f64>, base: Option<f64>, limit: f64, unit: &str) -> Row {
    row(
        target,
        value.zip(base).map(|(value, base)| {
            let text = format!(
                "{:.2} × ({value:.1} against {base:.1} {unit})",
                value / base
            );
            (text, at_most(value / base, limit))
        }),
    )
}

/// A percentile of the class of a server.
fn latency(section: &SectionResults, case: &str, row: &str, quantile: f64) -> Option<f64> {
    let of = |run: &Run| match quantile {
        0.5 => run.honest(run.p50, 0.5),
        0.99 => run.honest(run.p99, 0.99),
        _ => run.honest(run.p999, 0.999),
    };
    section.cell(case, row)?.median(of)
}

fn short(section: &SectionResults, case: &str, server: &str, quantile: f64) -> Option<f64> {
    latency(section, case, &class_row(server, "short"), quantile)
}

fn micros(section: &SectionResults, rows: &mut Vec<Row>) {
    let of = |server, quantile| short(section, MICROS_CASE, server, quantile);
    for (words, quantile, base, limit) in [
        ("p50 ≤ 1.15 × off", 0.5, OFF, 1.15),
        ("p99 ≤ 1.4 × without long requests", 0.99, NO_LONG, 1.4),
        ("p99.9 ≤ 0.5 × off", 0.999, OFF, 0.5),
    ] {
        rows.push(ratio(
            format!("preemption, {MICROS_CASE}: short {words}"),
            of(ON, quantile),
            of(base, quantile),
            limit,
            "µs",
        ));
    }
}

/// The highest load up to which the short requests of a server are served in time at every load measured.
fn in_time(section: &SectionResults, server: &str) -> Option<f64> {
    let mut highest = None;
    for load in LOADS {
        match short(section, &millis_case(load), server, 0.99) {
            Some(p99) if p99 < SLOWDOWN * MILLIS_SHORT => highest = Some(load),
            Some(_) => return highest.or(Some(0.0)),
            None => {}
        }
    }
    highest
}

fn millis(section: &SectionResults, rows: &mut Vec<Row>) {
    let others = [OFF, "go", "tokio-mt"].map(|server| {
        let found = in_time(section, server);
        format!("{server} {}", found.map_or("–".into(), |l| l.to_string()))
    });
    rows.push(row(
        "preemption, 99.5 % 25 µs / 0.5 % 25 ms: short p99 < 20 × service time up to load 0.85",
        in_time(section, ON).map(|load| {
            let text = format!("up to {load}; {}", others.join(", "));
            (text, at_most(0.85, load))
        }),
    ));
}

fn without_harm(section: &SectionResults, rows: &mut Vec<Row>) {
    for (median, full, classes) in [
        (EVEN_MEDIAN, EVEN_FULL, &["short", "long"][..]),
        (EXPONENTIAL_MEDIAN, EXPONENTIAL_FULL, &["short"]),
    ] {
        rows.push(ratio(
            format!("preemption, {median}: short p50 no worse than off"),
            short(section, median, ON, 0.5),
            short(section, median, OFF, 0.5),
            1.0,
            "µs",
        ));
        let served = |server: &str| -> Option<f64> {
            let rates = classes.iter().map(|class| {
                let cell = section.cell(full, &class_row(server, class))?;
                cell.median(|r| r.per_second)
            });
            rates.sum()
        };
        let target = format!("preemption, {full}: throughput within 5 % of off");
        rows.push(row(
            target,
            served(ON).zip(served(OFF)).map(|(on, off)| {
                // The 5 % is itself a margin, so noise is not added to it.
                let verdict = if on >= 0.95 * off {
                    Verdict::Reached
                } else {
                    Verdict::Missed
                };
                (format!("{:+.1} %", 100.0 * (on / off - 1.0)), verdict)
            }),
        ));
    }
}

fn pings(section: &SectionResults, rows: &mut Vec<Row>) {
    let name = |server: &str| class_row(server, "pings");
    let waiting = |server: &str| {
        let cell = section.cell(PING_CASE, &name(server))?;
        let all = |r: &Run| r.unanswered.0 as f64;
        Some(cell.spread(all)?.max)
    };
    rows.push(row(
        format!("preemption, {PING_CASE}: every ping answered"),
        waiting(ON).map(|on| {
            let off = waiting(OFF).map_or("–".into(), |off| format!("{off:.0}"));
            let verdict = if on == 0.0 {
                Verdict::Reached
            } else {
                Verdict::Missed
            };
            (format!("{on:.0} unanswered; {off} without it"), verdict)
        }),
    ));
    rows.push(ratio(
        format!("preemption, {PING_CASE}: p99 ≤ 2 × an idle vCPU kept awake"),
        latency(section, PING_CASE, &name(ON), 0.99),
        latency(section, PING_CASE, &name(PING_ALONE), 0.99),
        2.0,
        "µs",
    ));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Cell;

    fn with(loads: &[(f64, f64)]) -> SectionResults {
        let cell = |&(load, p99)| Cell {
            case: millis_case(load),
            peer: class_row(ON, "short"),
            runs: vec![Run {
                p99,
                ..Run::default()
            }],
        };
        SectionResults {
            cells: loads.iter().map(cell).collect(),
            ..SectionResults::default()
        }
    }

    #[test]
    fn the_highest_load_ends_where_requests_are_first_late() {
        assert_eq!(in_time(&with(&[]), ON), None);
        assert_eq!(in_time(&with(&[(0.2, 900.0)]), ON), Some(0.0));
        let late_once = with(&[(0.2, 40.0), (0.5, 100.0), (0.7, 501.0), (0.8, 100.0)]);
        assert_eq!(in_time(&late_once, ON), Some(0.5));
    }

    #[test]
    fn without_figures_there_is_no_verdict() {
        let mut found = Vec::new();
        rows(&SectionResults::default(), &mut found);
        assert_eq!(found.len(), 11);
        assert!(found.iter().all(|r| r.verdict == Verdict::Unmeasured));
    }
}
