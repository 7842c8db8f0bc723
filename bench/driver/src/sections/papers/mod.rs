//! The section `papers`: measures the figures that were published for SharedScheduler (two papers)
//! and for Kuro (slides), in the published form, as far as they can be measured on Linux. Each
//! published claim gets a verdict.
//!
//! | file | content |
//! |---|---|
//! | `curve` | coroutines against threads by number of connections, at fixed send times |
//! | `levels` | 128 connections at eight levels, on one CPU and on two |
//! | `idle` | 100 busy connections beside up to 50,000 idle ones, and memory per idle connection |
//! | `chart` | plaintext by number of requests, under `ab` and under our client |
//! | `claims` | the published claims |
//!
//! `load` defines the load of the first three figures. `limits` measures memory, and checks the
//! kernel's limits for threads. `--rows` selects a curve (`n20-100`), `levels`, a number of idle
//! connections (`idle-50k`), or the connections and CPUs of a chart (`c100-l1`).

mod chart;
mod claims;
mod curve;
mod idle;
mod levels;
mod limits;
mod load;

use crate::goal::Goal;
use crate::options::Options;
use crate::peers::BuiltPrograms;
use crate::results::SectionResults;
use crate::section::Section;

/// Returns the names of all rows, in the order of measurement.
fn row_names() -> Vec<String> {
    [
        curve::row_names(),
        vec![levels::NAME.to_owned()],
        idle::row_names(),
        chart::row_names(),
    ]
    .concat()
}

/// Rows that `--rows` selects; all rows if the list is empty.
struct Selection<'a>(&'a [String]);

impl Selection<'_> {
    fn has(&self, name: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|row| row == name)
    }

    /// Whether rows were selected.
    fn is_partial(&self) -> bool {
        !self.0.is_empty()
    }

    fn has_any(&self, names: &[String]) -> bool {
        names.iter().any(|name| self.has(name))
    }
}

pub(crate) fn run(results: &mut SectionResults, options: &Options, built: &BuiltPrograms) {
    let names = row_names();
    for name in &options.rows {
        if !names.contains(name) {
            let names = names.join(", ");
            results.note(format!("there is no row {name}; the rows are {names}"));
        }
    }
    let selection = Selection(&options.rows);
    if selection.has_any(&curve::row_names()) || selection.has_any(&idle::row_names()) {
        let servers = super::closed::checked_servers(results, built, Section::Papers, true);
        curve::run(results, options, &servers, &selection);
        idle::run(results, options, &servers, &selection);
    }
    if selection.has(levels::NAME) {
        levels::run(results, options, built);
    }
    if selection.has_any(&chart::row_names()) {
        chart::run(results, options, built, &selection);
    }
}

/// Formats the tables of the section: the verdicts, then the figures.
pub(crate) fn tables(section: &SectionResults) -> String {
    [
        claims::table(section),
        curve::tables(section),
        levels::tables(section),
        idle::table(section),
        chart::tables(section),
    ]
    .concat()
}

pub(crate) fn goals(section: &SectionResults) -> Vec<Goal> {
    [
        curve::goals(section),
        levels::goals(section),
        idle::goals(section),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_rows_are_distinct() {
        let names = row_names();
        for name in &names {
            assert_eq!(names.iter().filter(|other| *other == name).count(), 1);
        }
        assert!(Selection(&[]).has_any(&names));
        let one = [names[0].clone()];
        assert!(Selection(&one).has(&names[0]) && !Selection(&one).has(&names[1]));
    }

    #[test]
    fn without_figures_there_is_only_the_table_of_the_claims() {
        let empty = SectionResults::default();
        let all = tables(&empty);
        assert_eq!(all, claims::table(&empty));
        assert!(!all.contains("reproduced"), "{all}");
    }
}
