//! What preemption was to reach, and whether it did: rows of the summary.
//!
//! A goal that holds in every mix is judged by the mix in which it is missed most; the best one is named beside it.

use super::cases::{self, MILLIS, Mix};
use super::{ALONE, NO_LONG, OFF, ON, PLAIN, TRICK, class_row};
use crate::results::{Run, SectionResults};
use crate::verdict::{Row, Verdict, at_most, row};

/// A short request is served in time when its p99 is below this many times its service time.
const SLOWDOWN: f64 = 20.0;
/// With rights, and without.
const MODES: [(&str, &str); 2] = [(ON, ""), (PLAIN, ", without rights")];

/// A percentile of a row of the page.
pub(super) type Quantile = fn(&Run) -> f64;

/// The median over the rounds of a percentile of a class of a server, µs.
pub(super) fn latency(
    section: &SectionResults,
    case: &str,
    server: &str,
    class: &str,
    quantile: Quantile,
) -> Option<f64> {
    section.median(case, &class_row(server, class), quantile)
}

/// All rows of the section.
pub(crate) fn rows(section: &SectionResults) -> Vec<Row> {
    let mut all = Vec::new();
    for (on, how) in MODES {
        micros(section, on, how, &mut all);
        millis(section, on, how, &mut all);
        without_harm(section, on, how, &mut all);
        pings(section, on, how, &mut all);
    }
    all
}

/// A measured value and what it is held against.
struct Ratio {
    what: String,
    value: f64,
    base: f64,
}

impl Ratio {
    fn get(&self) -> f64 {
        self.value / self.base
    }

    fn words(&self, unit: &str) -> String {
        format!(
            "{:.2} × ({:.1} against {:.1} {unit})",
            self.get(),
            self.value,
            self.base
        )
    }
}

/// The worst of some ratios decides; without all of them there is no verdict.
fn worst(target: String, ratios: Option<Vec<Ratio>>, limit: f64, unit: &str) -> Row {
    let sorted = ratios.map(|mut ratios| {
        ratios.sort_by(|a, b| a.get().total_cmp(&b.get()));
        ratios
    });
    let found = sorted.as_deref().and_then(|ratios| {
        let (best, worst) = (ratios.first()?, ratios.last()?);
        let mut text = worst.words(unit);
        if ratios.len() > 1 {
            let good = ratios.iter().filter(|r| r.get() <= limit).count();
            text = format!(
                "worst {text}, {}; best {:.2} ×, {}; {good} of {}",
                worst.what,
                best.get(),
                best.what,
                ratios.len()
            );
        }
        Some((text, at_most(worst.get(), limit)))
    });
    row(target, found)
}

fn micros(section: &SectionResults, on: &str, how: &str, rows: &mut Vec<Row>) {
    // The load, the class that counts, and the load whose short requests are not disturbed.
    let one = Mix::ALL.map(|mix| (cases::micros(mix), mix, cases::micros(mix.without_long())));
    let two = Mix::TWO.map(|mix| (cases::two(mix), mix, cases::two(mix)));
    let all: Vec<_> = one.into_iter().chain(two).collect();
    for (words, quantile, against, limit) in [
        ("p50 ≤ 1.15 × off", Run::p50 as Quantile, OFF, 1.15),
        (
            "p99 ≤ 1.3 × what it is without long requests",
            Run::p99,
            NO_LONG,
            1.3,
        ),
        ("p99.9 ≤ 0.5 × off", Run::p999, OFF, 0.5),
    ] {
        let ratios = all.iter().map(|(case, mix, quiet)| {
            let base = if against == NO_LONG { quiet } else { case };
            Some(Ratio {
                what: case.clone(),
                value: latency(section, case, on, mix.short(), quantile)?,
                base: latency(section, base, against, mix.short(), quantile)?,
            })
        });
        let target =
            format!("preemption{how}, 0.5 µs / 0.5 % of 500 µs, one and two vCPUs: short {words}");
        rows.push(worst(target, ratios.collect(), limit, "µs"));
    }
}

fn millis(section: &SectionResults, on: &str, how: &str, rows: &mut Vec<Row>) {
    let short = cases::Kind::Millis.short().as_secs_f64() * 1e6;
    let p99 = |load, mix, server| {
        latency(
            section,
            &cases::millis(load, mix),
            server,
            "short",
            Run::p99,
        )
    };
    let ratios = MILLIS.into_iter().map(|(load, mix)| {
        Some(Ratio {
            what: cases::millis(load, mix),
            value: p99(load, mix, on)?,
            base: short,
        })
    });
    let mut row = worst(
        format!(
            "preemption{how}, 25 µs / 0.5 % of 25 ms: short p99 < 20 × their service time up to load 0.85"
        ),
        ratios.collect(),
        SLOWDOWN,
        "µs",
    );
    let (load, mix) = MILLIS[1];
    let others = [OFF, TRICK, "go", "tokio-mt2"]
        .into_iter()
        .filter_map(|server| {
            let p99 = p99(load, mix, server)?;
            Some(format!("{server} {:.0} ×", p99 / short))
        });
    let others: Vec<String> = others.collect();
    if !others.is_empty() {
        row.measured += &format!("; at {load}: {}", others.join(", "));
    }
    rows.push(row);
}

fn without_harm(section: &SectionResults, on: &str, how: &str, rows: &mut Vec<Row>) {
    let p50 = |server| latency(section, cases::EXPONENTIAL, server, "short", Run::p50);
    let one = |value: Option<f64>, base: Option<f64>| {
        let (value, base) = value.zip(base)?;
        let what = String::new();
        Some(vec![Ratio { what, value, base }])
    };
    rows.push(worst(
        format!("preemption{how}, {}: p50 ≤ off / 0.9", cases::EXPONENTIAL),
        one(p50(on), p50(OFF)),
        1.0 / 0.9,
        "µs",
    ));
    let served = |server| {
        let cell = section.cell(cases::FLOOD, &class_row(server, "short"))?;
        cell.median(|run| run.per_second)
    };
    rows.push(row(
        format!("preemption{how}, {}: throughput ≥ 0.9 × off", cases::FLOOD),
        served(on).zip(served(OFF)).map(|(on, off)| {
            let text = format!("{:.2} × ({on:.0} against {off:.0} per s)", on / off);
            (text, at_most(0.9, on / off))
        }),
    ));
    let cpu = |server| section.cell(cases::COST, server)?.median(Run::cpu);
    rows.push(worst(
        format!("preemption{how}, nothing overruns: CPU per request ≤ 1.05 × off"),
        one(cpu(on), cpu(OFF)),
        1.05,
        "µs",
    ));
}

fn pings(section: &SectionResults, on: &str, how: &str, rows: &mut Vec<Row>) {
    let case = cases::PINGS;
    let waiting = |server| {
        let cell = section.cell(case, &class_row(server, "pings"))?;
        Some(cell.spread(|run| run.unanswered.0 as f64)?.max)
    };
    rows.push(row(
        format!("preemption{how}, {case}: every ping answered"),
        waiting(on).map(|on| {
            let off = waiting(OFF).map_or("–".into(), |off| format!("{off:.0}"));
            let verdict = if on == 0.0 {
                Verdict::Reached
            } else {
                Verdict::Missed
            };
            (format!("{on:.0} unanswered; {off} when off"), verdict)
        }),
    ));
    let p99 = |server| latency(section, case, server, "pings", Run::p99);
    let ratio = p99(on).zip(p99(ALONE)).map(|(value, base)| {
        let what = String::new();
        vec![Ratio { what, value, base }]
    });
    rows.push(worst(
        format!("preemption{how}, {case}: p99 ≤ 2 × that of an idle vCPU kept awake"),
        ratio,
        2.0,
        "µs",
    ));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Cell;

    fn cell(case: String, server: &str, class: &str, latency: f64) -> Cell {
        Cell {
            case,
            peer: class_row(server, class),
            runs: vec![Run {
                p50: latency,
                p99: latency,
                p999: latency,
                ..Run::default()
            }],
        }
    }

    /// Everything is 100 µs, but for what `of` says of the server that is on.
    fn measured(of: impl Fn(&str) -> f64) -> SectionResults {
        let mut section = SectionResults::default();
        let one = Mix::ALL.map(|mix| (cases::micros(mix), mix));
        let two = Mix::TWO.map(|mix| (cases::two(mix), mix));
        for (case, mix) in one.into_iter().chain(two) {
            section
                .cells
                .push(cell(case.clone(), ON, mix.short(), of(&case)));
            for server in [OFF, NO_LONG] {
                section
                    .cells
                    .push(cell(case.clone(), server, mix.short(), 100.0));
            }
        }
        section
    }

    #[test]
    fn the_worst_mix_decides() {
        let good = rows(&measured(|_| 40.0));
        assert_eq!(good[0].verdict, Verdict::Reached);
        assert_eq!(good[2].verdict, Verdict::Reached);
        let less_urgent = cases::micros(Mix::LessUrgent);
        let bad = rows(&measured(
            |case| if case == less_urgent { 150.0 } else { 40.0 },
        ));
        for row in &bad[..3] {
            assert_eq!(row.verdict, Verdict::Missed, "{}", row.target);
            assert!(row.measured.contains("all less urgent"), "{}", row.measured);
            assert!(row.measured.contains("6 of 7"), "{}", row.measured);
        }
    }

    #[test]
    fn a_mix_that_was_not_measured_leaves_no_verdict() {
        let mut section = measured(|_| 40.0);
        let case = cases::two(Mix::Apart);
        section
            .cells
            .retain(|cell| cell.case != case || cell.peer != class_row(ON, "short"));
        assert_eq!(rows(&section)[0].verdict, Verdict::Unmeasured);
    }

    #[test]
    fn without_figures_there_is_no_verdict() {
        let found = rows(&SectionResults::default());
        assert_eq!(found.len(), 18);
        assert!(found.iter().all(|r| r.verdict == Verdict::Unmeasured));
    }
}
