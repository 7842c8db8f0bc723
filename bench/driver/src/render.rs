//! Renders `RESULTS.md` and the goals in `docs/evaluation.md` from the saved results.

use std::fmt::Write;

use crate::goal;
use crate::machine;
use crate::results::{Results, SectionResults};
use crate::section::Section;
use crate::sections;

/// Returns `RESULTS.md`: the goals, then a part for each section.
pub(crate) fn page(results: &Results) -> String {
    let mut page = String::from(
        "# Results of the benchmarks\n\n\
         Written by `cargo xtask bench`; every run is in `results/`, the method is in `README.md`. Values are \
         medians over the rounds with (smallest–largest). Differences below 5 % mean nothing on a virtual machine.\n\n",
    );
    let _ = writeln!(page, "## Goals\n\n{}\n", goals(results));
    let is_missing = |section: &Section| !results.sections.contains_key(section.name());
    let missing = Section::ALL.into_iter().filter(is_missing);
    let missing: Vec<&str> = missing.map(Section::name).collect();
    if !missing.is_empty() {
        let _ = writeln!(
            page,
            "Not measured yet: {}. Run `cargo xtask bench --only {}` to measure them.\n",
            missing.join(", "),
            missing.join(",")
        );
    }
    for section in Section::ALL {
        if let Some(section_results) = results.sections.get(section.name()) {
            page += &section_page(section, section_results);
        }
    }
    page
}

/// Markers in `docs/evaluation.md` between which the goals stand.
const MARKERS: [&str; 2] = ["<!-- goals: begin -->", "<!-- goals: end -->"];

/// Returns `page` with the goals between its markers.
///
/// # Errors
/// The page lacks a marker.
pub(crate) fn with_goals(page: &str, results: &Results) -> Result<String, String> {
    let missing = || {
        format!(
            "docs/evaluation.md lacks `{}` or `{}`",
            MARKERS[0], MARKERS[1]
        )
    };
    let (before, rest) = page.split_once(MARKERS[0]).ok_or_else(missing)?;
    let (_, after) = rest.split_once(MARKERS[1]).ok_or_else(missing)?;
    let goals = goals(results);
    Ok(format!(
        "{before}{}\n\n{goals}\n{}{after}",
        MARKERS[0], MARKERS[1]
    ))
}

/// Formats the goals of all sections: a row for each section, then one for each goal.
fn goals(results: &Results) -> String {
    let goals = sections::goals(results);
    format!(
        "{}\n\nA ratio is that of the medians, above 1 where Upshift is behind, with the 95 % interval of a\n\
         bootstrap over the rounds; where a goal has several cells the worst decides.\n\n{}\n\n{}",
        goal::verdict_counts(&goals),
        goal::summary(&goals).trim_end(),
        goal::table(&goals).trim_end(),
    )
}

fn section_page(section: Section, section_results: &SectionResults) -> String {
    let mark = if section_results.commit.ends_with(machine::DIRTY) {
        " **(measured with uncommitted changes: these figures cannot be reproduced)**"
    } else {
        ""
    };
    let mut flaws = Vec::new();
    if section_results.is_disturbed() {
        let (disturbed, runs) = section_results.disturbed_runs();
        flaws.push(format!("disturbed: {disturbed} of {runs} runs"));
    }
    if !section_results.missing.is_empty() {
        flaws.push(format!("without {}", section_results.missing.join(", ")));
    }
    let flaws = if flaws.is_empty() {
        String::new()
    } else {
        format!(" ({})", flaws.join("; "))
    };
    format!(
        "## {}{flaws}\n\nCommit {}{mark}; {}; {}\n\nVersions: {}\n\n{}{}{}",
        section.title(),
        section_results.commit,
        section_results.when,
        section_results.machine.join("; "),
        section_results.versions.join("; "),
        sections::tables(section, section_results),
        list("Commands", &section_results.commands),
        list("Left out or disturbed", &section_results.notes)
    )
}

fn list(title: &str, lines: &[String]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let items: String = lines.iter().map(|line| format!("- {line}\n")).collect();
    let count = lines.len();
    format!("<details><summary>{title} ({count})</summary>\n\n{items}\n</details>\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(disturbed: usize, missing: &[&str]) -> Results {
        let section_results = SectionResults {
            commit: "abc".into(),
            runs: 10,
            disturbed,
            missing: missing.iter().map(|&peer| peer.to_owned()).collect(),
            ..SectionResults::default()
        };
        Results {
            sections: [("multi".to_owned(), section_results)].into(),
        }
    }

    #[test]
    fn a_title_names_missing_peers_and_disturbance() {
        assert!(page(&measured(1, &[])).contains("## Microbenchmarks on two workers\n"));
        let flawed = page(&measured(3, &["go", "smol"]));
        let title =
            "## Microbenchmarks on two workers (disturbed: 3 of 10 runs; without go, smol)\n";
        assert!(flawed.contains(title), "{flawed}");
    }

    #[test]
    fn goals_replace_the_text_between_the_markers() {
        let page = format!("a\n{}stale{}\nb\n", MARKERS[0], MARKERS[1]);
        let results = measured(0, &[]);
        let page = with_goals(&page, &results).unwrap();
        assert!(page.starts_with("a\n<!--") && page.ends_with("-->\nb\n"));
        assert!(!page.contains("stale") && page.contains("| multi | two workers, yield"));
        assert_eq!(with_goals(&page, &results), Ok(page.clone()));
        assert!(with_goals("a", &results).is_err());
    }
}
