//! What each section runs, and what it was to reach: a file for each, or a folder.

pub(crate) mod assign;
pub(crate) mod closed;
pub(crate) mod conserve;
mod cpp;
pub(crate) mod files;
mod levels;
mod micro;
mod multi;
pub(crate) mod preemption;
mod processes;
pub(crate) mod sched;
mod serve;

use crate::machine;
use crate::options::Options;
use crate::peers::Built;
use crate::results::{Results, SectionResults};
use crate::section::Section;
use crate::verdict::Row;

/// Measures one section; `None` if nothing that it measures could be built.
pub(crate) fn run(section: Section, options: &Options, built: &Built) -> Option<SectionResults> {
    eprintln!("\n== {} ==", section.name());
    let mut results = SectionResults {
        commit: machine::commit(),
        machine: machine::describe(),
        versions: machine::versions(),
        ..SectionResults::default()
    };
    for (id, why) in &built.skipped {
        results.notes.push(format!("{id} was not built: {why}"));
    }
    let peers = match options.peers.is_empty() {
        true => String::new(),
        false => format!(" --peers {}", options.peers.join(",")),
    };
    results.commands.push(format!(
        "cargo xtask bench --only {}{peers} --rounds {} --seconds {}",
        section.name(),
        options.rounds_of(section),
        options.time_of(section).as_secs_f64()
    ));
    match section {
        Section::Plaintext | Section::Pipelined | Section::Matrix | Section::Single => {
            closed::run(section, &mut results, options, built);
        }
        Section::Vcpus => levels::run_vcpus(&mut results, options, built),
        Section::Levels => levels::run_levels(&mut results, options, built),
        Section::Preemption => {
            let mut options = options.clone();
            options.rounds = options.rounds_of(section);
            options.time = options.time_of(section);
            preemption::run(&mut results, &options, built);
        }
        Section::Processes => processes::run(&mut results, options, built),
        Section::Assign => assign::run(&mut results, options, built),
        Section::Sched => sched::run(&mut results, options, built),
        Section::Serve => serve::run(&mut results, options, built),
        Section::Files => files::run(&mut results, options, built),
        Section::Cpp => cpp::run(&mut results, options, built),
        Section::Micro => micro::run(&mut results, built),
        Section::Conserve => conserve::run(&mut results, options, built),
        Section::Multi => multi::run(&mut results, options, built),
    }
    if results.cells.is_empty() && results.figures.is_empty() {
        eprintln!("nothing measured in {}", section.name());
        return None;
    }
    results.when = machine::now();
    Some(results)
}

/// All rows of the sections that were measured, in their order.
pub(crate) fn rows(results: &Results) -> Vec<Row> {
    let mut rows = Vec::new();
    for section in Section::ALL {
        if let Some(found) = results.sections.get(section.name()) {
            rows_of(section)(found, &mut rows);
        }
    }
    rows
}

fn rows_of(section: Section) -> fn(&SectionResults, &mut Vec<Row>) {
    match section {
        Section::Plaintext => closed::plaintext_rows,
        Section::Pipelined => closed::pipelined_rows,
        Section::Matrix => closed::matrix_rows,
        Section::Single => closed::single_rows,
        Section::Vcpus => levels::vcpus_rows,
        Section::Levels => levels::levels_rows,
        Section::Preemption => preemption::targets::rows,
        Section::Processes => processes::targets::rows,
        Section::Assign => assign::rows,
        Section::Sched => sched::rows,
        Section::Serve => serve::targets::rows,
        Section::Files => files::rows,
        Section::Cpp => cpp::rows,
        Section::Micro => micro::rows,
        Section::Conserve => conserve::rows,
        Section::Multi => multi::rows,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::Verdict;

    #[test]
    fn without_figures_nothing_is_claimed() {
        assert!(rows(&Results::default()).is_empty());
        for section in Section::ALL {
            let mut rows = Vec::new();
            rows_of(section)(&SectionResults::default(), &mut rows);
            assert!(rows.iter().all(|r| r.verdict == Verdict::Unmeasured));
        }
    }
}
