//! The page `RESULTS.md`, from the data alone.

use std::fmt::Write;

use crate::machine;
use crate::results::{Results, SectionResults};
use crate::section::Section;
use crate::sections;
use crate::verdict::{self, Verdict};

/// Formats the whole page.
pub(crate) fn page(results: &Results) -> String {
    let mut page = String::from(
        "# Results of the benchmarks\n\n\
         Written by `cargo xtask bench`; every run is in `results/`, the method is in `README.md`. Values are \
         medians over the rounds with (smallest–largest). Differences below 5 % mean nothing on a virtual machine.\n\n",
    );
    page += &summary(results);
    let is_missing = |section: &Section| !results.sections.contains_key(section.name());
    let missing = Section::ALL.into_iter().filter(is_missing);
    let missing: Vec<&str> = missing.map(Section::name).collect();
    if !missing.is_empty() {
        let _ = writeln!(
            page,
            "No figures of a commit that can be checked out: {}. `cargo xtask bench --only {}` measures them.\n",
            missing.join(", "),
            missing.join(",")
        );
    }
    for section in Section::ALL {
        if let Some(found) = results.sections.get(section.name()) {
            page += &of_section(section, found);
        }
    }
    page
}

fn summary(results: &Results) -> String {
    let rows = sections::rows(results);
    let count = |verdict| rows.iter().filter(|r| r.verdict == verdict).count();
    let title = format!(
        "## What was to be reached\n\n{} reached, {} within noise of it, **{} not reached**, {} not measured.",
        count(Verdict::Reached),
        count(Verdict::Noise),
        count(Verdict::Missed),
        count(Verdict::Unmeasured),
    );
    verdict::table(title, rows).markdown()
}

fn of_section(section: Section, found: &SectionResults) -> String {
    let mark = if found.commit.ends_with(machine::DIRTY) {
        " **(a tree that differs from its commit: these figures cannot be repeated)**"
    } else {
        ""
    };
    format!(
        "## {}\n\nCommit {}{mark}; {}; {}\n\nVersions: {}\n\n{}{}{}",
        section.title(),
        found.commit,
        found.when,
        found.machine.join("; "),
        found.versions.join("; "),
        sections::tables(section, found),
        list("Commands", &found.commands),
        list("Left out or repeated", &found.notes)
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
