//! What preemption was to reach, and whether it did: rows of the summary.
//!
//! A goal that holds in every mix is judged by the mix in which it is missed most; the best one is named beside it.

use super::cases::{self, MILLIS, Mix};
use super::{ALONE, NO_LONG, OFF, ON, PLAIN, TRICK, class_row};
use crate::results::{Run, SectionResults};
use crate::table::plain;
use crate::verdict::{Row, Verdict, at_most, ratio, row, within};

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
    let of = |(on, how): (&str, &str)| {
        let mut rows = micros(section, on, how);
        rows.push(millis(section, on, how));
        rows.extend(without_harm(section, on, how));
        rows.extend(pings(section, on, how));
        rows
    };
    MODES.into_iter().flat_map(of).collect()
}

/// A load, what was measured, and what it is held against.
type Pair = (String, f64, f64);

/// The worst of some ratios decides; without all of them there is no verdict.
fn worst(pairs: impl Iterator<Item = Option<Pair>>, limit: f64) -> Option<(String, Verdict)> {
    let mut pairs: Vec<Pair> = pairs.collect::<Option<_>>()?;
    let times = |pair: &Pair| pair.1 / pair.2;
    pairs.sort_by(|a, b| times(a).total_cmp(&times(b)));
    let (best, worst) = (pairs.first()?, pairs.last()?);
    let (text, verdict) = ratio(Some(worst.1), Some(worst.2), limit, (1, " µs"))?;
    let good = pairs.iter().filter(|pair| times(pair) <= limit).count();
    let text = format!(
        "worst {text}, {}; best {:.2} ×, {}; {good} of {}",
        worst.0,
        times(best),
        best.0,
        pairs.len()
    );
    Some((text, verdict))
}

fn micros(section: &SectionResults, on: &str, how: &str) -> Vec<Row> {
    // The load, the class that counts, and the load whose short requests are not disturbed.
    let one = Mix::ALL.map(|mix| (cases::micros(mix), mix, cases::micros(mix.without_long())));
    let two = Mix::TWO.map(|mix| (cases::two(mix), mix, cases::two(mix)));
    let goal = |words: &str, quantile: Quantile, against: &str, limit| {
        let pairs = one.iter().chain(&two).map(|(case, mix, quiet)| {
            let base = if against == NO_LONG { quiet } else { case };
            let value = latency(section, case, on, mix.short(), quantile)?;
            let base = latency(section, base, against, mix.short(), quantile)?;
            Some((case.clone(), value, base))
        });
        let target =
            format!("preemption{how}, 0.5 µs / 0.5 % of 500 µs, one and two vCPUs: short {words}");
        row(target, worst(pairs, limit))
    };
    let quiet = "p99 ≤ 1.3 × what it is without long requests";
    vec![
        goal("p50 ≤ 1.15 × off", Run::p50, OFF, 1.15),
        goal(quiet, Run::p99, NO_LONG, 1.3),
        goal("p99.9 ≤ 0.5 × off", Run::p999, OFF, 0.5),
    ]
}

fn millis(section: &SectionResults, on: &str, how: &str) -> Row {
    let short = cases::Kind::Millis.short().as_secs_f64() * 1e6;
    let p99 = |case: &str, server| latency(section, case, server, "short", Run::p99);
    let pairs = MILLIS.into_iter().map(|(load, mix)| {
        let case = cases::millis(load, mix);
        let value = p99(&case, on)?;
        Some((case, value, short))
    });
    let mut row = row(
        format!(
            "preemption{how}, 25 µs / 0.5 % of 25 ms: short p99 < 20 × their service time up to load 0.85"
        ),
        worst(pairs, SLOWDOWN),
    );
    let (load, mix) = MILLIS[1];
    let case = cases::millis(load, mix);
    let others = [OFF, TRICK, "go", "tokio-mt2"].into_iter();
    let others =
        others.filter_map(|server| Some(format!("{server} {:.0} ×", p99(&case, server)? / short)));
    let others: Vec<String> = others.collect();
    if !others.is_empty() {
        row.measured += &format!("; at {load}: {}", others.join(", "));
    }
    row
}

fn without_harm(section: &SectionResults, on: &str, how: &str) -> [Row; 3] {
    let [exponential, flood] = [cases::EXPONENTIAL, cases::FLOOD];
    let p50 = |server| latency(section, exponential, server, "short", Run::p50);
    let served = |server| latency(section, flood, server, "short", |run| run.per_second);
    let cpu = |server| section.median(cases::COST, server, Run::cpu);
    [
        row(
            format!("preemption{how}, {exponential}: p50 ≤ off / 0.9"),
            ratio(p50(on), p50(OFF), 1.0 / 0.9, (1, " µs")),
        ),
        row(
            format!("preemption{how}, {flood}: throughput ≥ 0.9 × off"),
            served(on).zip(served(OFF)).map(|(on, off)| {
                let text = format!("{:.2} × ({on:.0} against {off:.0} per s)", on / off);
                (text, at_most(0.9, on / off))
            }),
        ),
        row(
            format!("preemption{how}, nothing overruns: CPU per request ≤ 1.05 × off"),
            ratio(cpu(on), cpu(OFF), 1.05, (1, " µs")),
        ),
    ]
}

fn pings(section: &SectionResults, on: &str, how: &str) -> [Row; 2] {
    let case = cases::PINGS;
    let waiting = |server| {
        let cell = section.cell(case, &class_row(server, "pings"))?;
        Some(cell.spread(|run| run.unanswered.0 as f64)?.max)
    };
    let p99 = |server| latency(section, case, server, "pings", Run::p99);
    [
        row(
            format!("preemption{how}, {case}: every ping answered"),
            waiting(on).map(|on| {
                let text = format!("{on:.0} unanswered; {} when off", plain(waiting(OFF), 0));
                (text, within(on == 0.0))
            }),
        ),
        row(
            format!("preemption{how}, {case}: p99 ≤ 2 × that of an idle vCPU kept awake"),
            ratio(p99(on), p99(ALONE), 2.0, (1, " µs")),
        ),
    ]
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
