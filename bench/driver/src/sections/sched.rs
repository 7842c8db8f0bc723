//! The section `sched`: policies in user space that schedule processes. A separate program
//! (`bench/sched`) measures them; this file defines the goals and judges the published claims.

use crate::claim::{self, Claim, Finding};
use crate::figures;
use crate::goal::{Goal, Values, at_least, at_most};
use crate::options::Options;
use crate::peers::{BuiltPrograms, SCHED};
use crate::results::{Figure, SectionResults};
use crate::table::{cross_table, quantities_and_runtimes};

const UPSHIFT: &str = "upshift sched";
const TRICK: &str = "trick.c's algorithm";
const SCRIPT: &str = "trick.sh's algorithm";
const MACHINE: &str = "machine";

/// Published slices, in µs.
const SLICES: [u32; 3] = [50, 20, 5];

pub(crate) fn run(results: &mut SectionResults, options: &Options, built: &BuiltPrograms) {
    let Some(program) = built.programs(SCHED).pop() else {
        return;
    };
    let seconds = options.time.as_secs_f64().to_string();
    figures::measure(results, options, &program, &seconds, None);
}

/// Formats the published claims, and the figures with a row per quantity and a column per
/// scheduler.
pub(crate) fn table(section_results: &SectionResults) -> String {
    let [benches, peers] = quantities_and_runtimes(section_results);
    let claims = claim::table("### Published claims", claims(section_results)).markdown();
    claims
        + &cross_table("quantity", &benches, &peers, |bench, peer| {
            let Figure { ns, min, max, .. } = section_results.figure(bench, peer)?;
            Some(format!("{ns:.2} ({min:.2} to {max:.2})"))
        })
}

/// Returns the claims that were published for the priority elevation trick, judged by the figures
/// of its own algorithms.
fn claims(section: &SectionResults) -> Vec<Claim> {
    const SOURCE: &str = "priority elevation trick";
    let figure = |bench: String, peer: &str| Some(section.figure(&bench, peer)?.ns);
    let turns = |case: &str, peer| {
        let deviation = figure(
            format!("{case}: largest deviation of a share, points"),
            peer,
        )?;
        let lost_percent = figure(format!("{case}: time in which none of them ran, %"), peer)?;
        let text =
            format!("shares off by {deviation:.1} points, {lost_percent:.1} % of the time lost");
        Some((text, Finding::reproduced_if(deviation <= 5.0)))
    };
    let slice = |micros: u32| {
        let case = format!("2 × {micros} µs");
        let turn = figure(format!("{case}: a turn, median, µs"), TRICK)?;
        let lost_percent = figure(format!("{case}: time in which none of them ran, %"), TRICK)?;
        let text = format!("a turn takes {turn:.1} µs; {lost_percent:.0} % of the time lost");
        let is_kept = (0.5..=1.5).contains(&(turn / f64::from(micros)));
        Some((text, Finding::reproduced_if(is_kept)))
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

pub(crate) fn goals(section: &SectionResults) -> Vec<Goal> {
    let values = |bench: &str, peer: &str| section.figure_values(bench, peer);
    let elevation = values("elevation: two switches, µs", MACHINE);
    let mut goals = Vec::new();
    for (count, slice) in [(2, 5000), (2, 200), (8, 5000), (8, 200)] {
        let case = format!("{count} × {slice} µs");
        let own = |quantity: &str| values(&format!("{case}: {quantity}"), UPSHIFT);
        let shares = own("largest deviation of a share, points");
        let out_of_turn = own("ran out of turn, %");
        let switch = own("scheduler, a switch, median, µs");
        let title = |text: &str| format!("round robin, {case}: {text}");
        goals.push(at_most(title("shares within 1 %"), 1.0, "points").cell(
            "",
            shares,
            Values::limit(1.0),
        ));
        goals.push(at_most(title("one at a time"), 1.0, "%").cell(
            "",
            out_of_turn,
            Values::limit(1.0),
        ));
        goals.push(
            at_most(title("a switch ≤ 1.3 × the elevation cost"), 1.3, "µs").cell(
                "",
                switch,
                elevation.clone(),
            ),
        );
        if slice == 5000 {
            let lost_percent = own("time in which none of them ran, %");
            goals.push(at_most(title("loss ≤ 2 %"), 1.0, "%").cell(
                "",
                lost_percent,
                Values::limit(2.0),
            ));
        }
    }
    let lateness = values("timetable: an entry begins late by, median, µs", UPSHIFT);
    let min_quantum = values("timer floor, µs", MACHINE);
    goals.push(
        at_most("table: entries begin within the timer floor", 1.0, "µs").cell(
            "",
            lateness,
            min_quantum,
        ),
    );
    let share = values("2 × 5 ms and an ordinary process: its share, %", UPSHIFT);
    goals.push(
        at_least(
            "round robin: an ordinary process keeps ≥ 4 % of the CPU",
            1.0,
            "%",
        )
        .cell("", share, Values::limit(4.0)),
    );
    goals
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::goal::Verdict;

    #[test]
    fn rounds_become_medians_and_goals() {
        let mut section = SectionResults::default();
        for ns in [3.0, 0.5, 0.7] {
            section.add_figure(Figure {
                bench: "2 × 5000 µs: largest deviation of a share, points".into(),
                peer: UPSHIFT.into(),
                ns,
                min: ns,
                max: ns,
                rounds: Vec::new(),
            });
        }
        assert_eq!(section.figures.len(), 1);
        assert!(table(&section).contains("0.70 (0.50 to 3.00)"));
        let all = goals(&section);
        assert_eq!(all[0].verdict(), Verdict::Reached);
        assert_eq!(all[1].verdict(), Verdict::Unmeasured);
    }
}
