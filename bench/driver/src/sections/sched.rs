//! The section `sched`: policies over processes, measured by a program of its own (`bench/sched`), and what was to be reached.

use crate::figures;
use crate::options::Options;
use crate::peers::Built;
use crate::results::{Figure, SectionResults, medians};
use crate::verdict::{NOISE, Row, Verdict, at_most, row};

const UPSHIFT: &str = "upshift sched";
const MACHINE: &str = "machine";

/// Runs the program once for each round.
pub(crate) fn run(results: &mut SectionResults, options: &Options, built: &Built) {
    let Some(program) = built.sched() else {
        return;
    };
    let seconds = options.time.as_secs_f64().to_string();
    let mut all: Vec<Figure> = Vec::new();
    for round in 0..options.rounds {
        eprintln!("round {}", round + 1);
        if let Err(why) = figures::figures(&program, &seconds, None, &mut all) {
            eprintln!("  {why}");
            results.notes.push(format!("round {}: {why}", round + 1));
        }
    }
    results.figures = medians(&all);
    let file = program.file.file_name().unwrap_or_default();
    let command = format!("`{} {seconds}`, {} rounds", file.display(), options.rounds);
    results.commands.push(command);
}

/// One row a quantity, one column a scheduler.
pub(crate) fn table(found: &SectionResults) -> String {
    let mut names: [Vec<&str>; 2] = [Vec::new(), Vec::new()];
    for figure in &found.figures {
        for (names, name) in names.iter_mut().zip([&figure.bench, &figure.peer]) {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
    }
    let [benches, peers] = names;
    let mut page = format!("| quantity | {} |\n", peers.join(" | "));
    page += &format!("|---|{}\n", "---|".repeat(peers.len()));
    for bench in benches {
        let cell = |peer: &&str| {
            let of = |f: &&Figure| f.bench == bench && f.peer == **peer;
            found.figures.iter().find(of).map_or("–".into(), |f| {
                format!("{:.2} ({:.2} to {:.2})", f.ns, f.min, f.max)
            })
        };
        let cells: Vec<String> = peers.iter().map(cell).collect();
        page += &format!("| {bench} | {} |\n", cells.join(" | "));
    }
    page + "\n"
}

/// What was to be reached.
pub(crate) fn rows(section: &SectionResults, rows: &mut Vec<Row>) {
    let of = |bench: &str, peer: &str| {
        let is = |f: &&Figure| f.bench == bench && f.peer == peer;
        section.figures.iter().find(is).map(|f| f.ns)
    };
    let mut limit = |target: String, value: Option<f64>, limit: Option<f64>, unit: &str| {
        let found = value.zip(limit).map(|(value, limit)| {
            let text = format!("{value:.2} {unit} (at most {limit:.2})");
            (text, at_most(value, limit))
        });
        rows.push(row(target, found));
    };
    for count in [2, 8] {
        for slice in [5000, 200] {
            let case = format!("{count} × {slice} µs");
            let value = |what: &str| of(&format!("{case}: {what}"), UPSHIFT);
            let share = value("largest deviation of a share, points");
            limit(
                format!("sched rr, {case}: shares within 1 %"),
                share,
                Some(1.0),
                "points",
            );
            let stray = value("ran out of turn, %");
            limit(
                format!("sched rr, {case}: one at a time"),
                stray,
                Some(1.0),
                "%",
            );
            let switch = value("scheduler, a switch, median, µs");
            let elevation = of("elevation: two switches, µs", MACHINE).map(|us| 1.3 * us);
            limit(
                format!("sched rr, {case}: a switch ≤ 1.3 × the elevation cost"),
                switch,
                elevation,
                "µs",
            );
            if slice == 5000 {
                let lost = value("time in which none of them ran, %");
                limit(
                    format!("sched rr, {case}: loss ≤ 2 %"),
                    lost,
                    Some(2.0),
                    "%",
                );
            }
        }
    }
    limit(
        "sched table: entries begin within the timer floor".into(),
        of("timetable: an entry begins late by, median, µs", UPSHIFT),
        of("timer floor, µs", MACHINE),
        "µs",
    );
    let share = of("2 × 5 ms and an ordinary process: its share, %", UPSHIFT);
    rows.push(row(
        "sched rr: an ordinary process keeps ≥ 4 % of the CPU",
        share.map(|share| {
            let verdict = match share {
                share if share >= 4.0 => Verdict::Reached,
                share if share >= 4.0 * (1.0 - NOISE) => Verdict::Noise,
                _ => Verdict::Missed,
            };
            (format!("{share:.2} %"), verdict)
        }),
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut all = Vec::new();
        rows(&section, &mut all);
        assert_eq!(all[0].verdict, Verdict::Reached);
        assert_eq!(all[1].verdict, Verdict::Unmeasured);
    }
}
