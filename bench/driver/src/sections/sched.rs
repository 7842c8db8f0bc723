//! The section `sched`: policies over processes, measured by a separate program (`bench/sched`),
//! the goals, and the published claims.

use crate::figures;
use crate::options::Options;
use crate::peers::{Built, SCHED};
use crate::results::{Figure, SectionResults, medians};
use crate::table::{cross, names};
use crate::verdict::{self, Claim, Finding, Row, at_most, row};

const UPSHIFT: &str = "upshift sched";
const TRICK: &str = "trick.c's algorithm";
const SCRIPT: &str = "trick.sh's algorithm";
const MACHINE: &str = "machine";

/// Published slices, in µs.
const SLICES: [u32; 3] = [50, 20, 5];

/// Runs the program once per round.
pub(crate) fn run(results: &mut SectionResults, options: &Options, built: &Built) {
    let Some((_, program)) = built.of(SCHED).pop() else {
        return;
    };
    let seconds = options.time.as_secs_f64().to_string();
    let mut all: Vec<Figure> = Vec::new();
    for round in 1..=options.rounds {
        eprintln!("round {round}");
        if let Err(why) = figures::figures(&program, &seconds, None, &mut all) {
            results.note(format!("round {round}: {why}"));
        }
    }
    results.figures = medians(&all);
    let file = program.file.file_name().unwrap_or_default();
    let command = format!("`{} {seconds}`, {} rounds", file.display(), options.rounds);
    results.commands.push(command);
}

/// Formats the published claims, with a row per quantity and a column per scheduler.
pub(crate) fn table(found: &SectionResults) -> String {
    let [benches, peers] = names(found);
    let claims = verdict::claims("### Published claims", claims(found)).markdown();
    claims
        + &cross("quantity", &benches, &peers, |bench, peer| {
            let Figure { ns, min, max, .. } = found.figure(bench, peer)?;
            Some(format!("{ns:.2} ({min:.2} to {max:.2})"))
        })
}

/// Returns the claims of the priority elevation trick, judged by the figures of its own algorithms.
fn claims(section: &SectionResults) -> Vec<Claim> {
    const SOURCE: &str = "priority elevation trick";
    let of = |bench: String, peer: &str| Some(section.figure(&bench, peer)?.ns);
    let turns = |case: &str, peer| {
        let off = of(
            format!("{case}: largest deviation of a share, points"),
            peer,
        )?;
        let lost = of(format!("{case}: time in which none of them ran, %"), peer)?;
        let text = format!("shares off by {off:.1} points, {lost:.1} % of the time lost");
        Some((text, Finding::of(off <= 5.0)))
    };
    let slice = |micros: u32| {
        let case = format!("2 × {micros} µs");
        let turn = of(format!("{case}: a turn, median, µs"), TRICK)?;
        let lost = of(format!("{case}: time in which none of them ran, %"), TRICK)?;
        let text = format!("a turn takes {turn:.1} µs; {lost:.0} % of the time lost");
        let is_kept = (0.5..=1.5).contains(&(turn / f64::from(micros)));
        Some((text, Finding::of(is_kept)))
    };
    let mut claims = vec![
        Claim::new(
            SOURCE,
            "a script of chrt and taskset lets two processes take turns (trick.sh)",
            turns("2 × 100000 µs", SCRIPT),
        ),
        Claim::new(
            SOURCE,
            "one program lets up to eight processes take turns (trick.c)",
            turns("8 × 5000 µs", TRICK),
        ),
    ];
    let words = ["slices of 50 µs", "slices of 20 µs", "slices of 5 µs"];
    claims.extend(
        words
            .into_iter()
            .zip(SLICES)
            .map(|(words, micros)| Claim::new(SOURCE, words, slice(micros))),
    );
    claims
}

/// Returns the goals.
pub(crate) fn rows(section: &SectionResults) -> Vec<Row> {
    let of = |bench: &str, peer: &str| Some(section.figure(bench, peer)?.ns);
    let goal = |target: String, value: Option<f64>, limit: Option<f64>, unit: &str| {
        let found = value.zip(limit).map(|(value, limit)| {
            let text = format!("{value:.2} {unit} (at most {limit:.2})");
            (text, at_most(value, limit))
        });
        row(target, found)
    };
    let elevation = of("elevation: two switches, µs", MACHINE).map(|us| 1.3 * us);
    let mut rows = Vec::new();
    for (count, slice) in [(2, 5000), (2, 200), (8, 5000), (8, 200)] {
        let case = format!("{count} × {slice} µs");
        for (quantity, words, limit, unit) in [
            (
                "largest deviation of a share, points",
                "shares within 1 %",
                Some(1.0),
                "points",
            ),
            ("ran out of turn, %", "one at a time", Some(1.0), "%"),
            (
                "scheduler, a switch, median, µs",
                "a switch ≤ 1.3 × the elevation cost",
                elevation,
                "µs",
            ),
            (
                "time in which none of them ran, %",
                "loss ≤ 2 %",
                Some(2.0),
                "%",
            ),
        ] {
            if slice == 5000 || words != "loss ≤ 2 %" {
                let value = of(&format!("{case}: {quantity}"), UPSHIFT);
                rows.push(goal(
                    format!("sched rr, {case}: {words}"),
                    value,
                    limit,
                    unit,
                ));
            }
        }
    }
    rows.push(goal(
        "sched table: entries begin within the timer floor".into(),
        of("timetable: an entry begins late by, median, µs", UPSHIFT),
        of("timer floor, µs", MACHINE),
        "µs",
    ));
    let share = of("2 × 5 ms and an ordinary process: its share, %", UPSHIFT);
    rows.push(row(
        "sched rr: an ordinary process keeps ≥ 4 % of the CPU",
        share.map(|share| (format!("{share:.2} %"), at_most(4.0 / share, 1.0))),
    ));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::Verdict;

    #[test]
    fn rounds_become_medians_and_rows() {
        let figure = |ns: f64| Figure {
            bench: "2 × 5000 µs: largest deviation of a share, points".into(),
            peer: UPSHIFT.into(),
            ns,
            min: ns,
            max: ns,
        };
        let section = SectionResults {
            figures: medians(&[figure(3.0), figure(0.5), figure(0.7)]),
            ..SectionResults::default()
        };
        assert_eq!(section.figures.len(), 1);
        assert!(table(&section).contains("0.70 (0.50 to 3.00)"));
        let all = rows(&section);
        assert_eq!(all[0].verdict, Verdict::Reached);
        assert_eq!(all[1].verdict, Verdict::Unmeasured);
    }
}
