//! Runs the sections, formats their tables, and defines their goals. Each kind of section has a
//! file or a folder.

mod assign;
pub(crate) mod closed;
pub(crate) mod conserve;
mod cpp;
mod files;
mod levels;
mod micro;
mod papers;
mod preemption;
mod processes;
mod sched;
mod serve;

use std::time::Instant;

use upshift_report::Plot;

use crate::goal::{Goal, SectionGoals, best_peer};
use crate::machine;
use crate::options::{MIN_ROUNDS, Options};
use crate::peers::{BuiltPrograms, RAW_C};
use crate::results::{Results, Run, SectionResults};
use crate::section::Section;
use crate::table::{cells, format_value, mean, spread, text};

/// Measures one section; `None` if nothing could be measured.
///
/// Each round measures all cells of the section once. The rounds that would exceed the time limit
/// are skipped, but never the first [`MIN_ROUNDS`].
pub(crate) fn run(
    section: Section,
    options: &Options,
    built: &BuiltPrograms,
) -> Option<SectionResults> {
    eprintln!("\n== {} ==", section.name());
    let mut options = options.clone();
    options.time = options.time_of(section);
    let rounds = options.rounds_of(section);
    let mut results = SectionResults {
        commit: machine::commit(),
        machine: machine::describe(),
        versions: machine::versions(),
        missing: built.missing(section),
        ..SectionResults::default()
    };
    for (id, why) in &built.skipped {
        if results.missing.iter().any(|missing| missing == id) {
            results.notes.push(format!("{id} was not built: {why}"));
        }
    }
    let start = Instant::now();
    if options.has_limit() {
        options.deadline = Some(start + section.limit());
    }
    for round in 0..rounds {
        let elapsed = start.elapsed();
        let expected_end = elapsed + elapsed / round.max(1) as u32;
        if options.has_limit() && round >= MIN_ROUNDS && expected_end > section.limit() {
            let minutes = section.limit().as_secs() / 60;
            results.note(format!(
                "{round} of {rounds} rounds: one more would exceed the limit of {minutes} minutes"
            ));
            break;
        }
        options.round = round;
        one_round(section, &mut results, &options, built);
        results.rounds = round + 1;
    }
    if results.cells.is_empty() && results.figures.is_empty() {
        eprintln!("nothing was measured in {}", section.name());
        return None;
    }
    results.seconds = start.elapsed().as_secs();
    results.is_whole =
        options.peers.is_empty() && options.rows.is_empty() && results.rounds >= MIN_ROUNDS;
    let list = |flag: &str, names: &[String]| match names {
        [] => String::new(),
        names => format!(" {flag} {}", names.join(",")),
    };
    let command = format!(
        "cargo xtask bench --only {}{}{} --rounds {} --seconds {}",
        section.name(),
        list("--peers", &options.peers),
        list("--rows", &options.rows),
        results.rounds,
        options.time.as_secs_f64()
    );
    results.commands.insert(0, command);
    if results.repeated > 0 {
        let SectionResults {
            repeated,
            disturbed,
            runs,
            ..
        } = results;
        results.note(format!(
            "{repeated} disturbed runs were repeated; of {runs} that count {disturbed} are disturbed"
        ));
    }
    results.when = machine::now();
    Some(results)
}

fn one_round(
    section: Section,
    results: &mut SectionResults,
    options: &Options,
    built: &BuiltPrograms,
) {
    match section {
        Section::Plaintext | Section::Pipelined | Section::Matrix | Section::Single => {
            closed::run(section, results, options, built);
        }
        Section::Vcpus => levels::run_vcpus(results, options, built),
        Section::Levels => levels::run_levels(results, options, built),
        Section::Papers => papers::run(results, options, built),
        Section::Preemption => preemption::run(results, options, built),
        Section::Processes => processes::run(results, options, built),
        Section::Assign => assign::run(results, options, built),
        Section::Sched => sched::run(results, options, built),
        Section::Serve => serve::run(results, options, built),
        Section::Files => files::run(results, options, built),
        Section::Cpp => cpp::run(results, options, built),
        Section::Micro => micro::run(results, options, built),
        Section::Conserve => conserve::run(results, options, built),
        Section::Multi => micro::run_multi(results, options, built),
    }
}

/// Returns the goals of all sections, in order. The goals of a section that was not measured are
/// unmeasured, and so are those of disturbed microbenchmarks: which of their rounds were disturbed
/// is not recorded.
pub(crate) fn goals(results: &Results) -> Vec<SectionGoals> {
    let empty = SectionResults::default();
    let section_goals = |section: Section| {
        let section_results = results.sections.get(section.name());
        let mut goals = goals_of(section)(section_results.unwrap_or(&empty));
        if section_results.is_some_and(|section_results| {
            section_results.cells.is_empty() && section_results.is_disturbed()
        }) {
            let void = |goal: &mut Goal| goal.discard_figures("the section was disturbed");
            goals.iter_mut().for_each(void);
        }
        SectionGoals {
            name: section.name(),
            commit: section_results.map(|section_results| section_results.commit.clone()),
            goals,
        }
    };
    Section::ALL.map(section_goals).into()
}

fn goals_of(section: Section) -> fn(&SectionResults) -> Vec<Goal> {
    match section {
        Section::Plaintext => closed::plaintext,
        Section::Pipelined => closed::pipelined,
        Section::Matrix => closed::matrix,
        Section::Single => closed::single,
        Section::Vcpus => levels::vcpus,
        Section::Levels => levels::levels,
        Section::Papers => papers::goals,
        Section::Preemption => preemption::goals,
        Section::Processes => processes::goals,
        Section::Assign => assign::goals,
        Section::Sched => sched::goals,
        Section::Serve => serve::goals,
        Section::Files => files::goals,
        Section::Cpp => cpp::goals,
        Section::Micro => micro::goals,
        Section::Conserve => conserve::goals,
        Section::Multi => micro::multi_goals,
    }
}

/// Returns the plots of `docs/evaluation.md` whose sections have results, each with its file name.
pub(crate) fn plots(results: &Results) -> Vec<(&'static str, Plot)> {
    type Figure = (Section, &'static str, fn(&SectionResults) -> Plot);
    let figures: [Figure; 3] = [
        (Section::Serve, "urgent.svg", serve::plot),
        (Section::Levels, "levels.svg", levels::plot),
        (Section::Assign, "servers.svg", assign::plot),
    ];
    let plot =
        |(section, file, plot): Figure| Some((file, plot(results.sections.get(section.name())?)));
    figures.into_iter().filter_map(plot).collect()
}

pub(crate) fn tables(section: Section, section_results: &SectionResults) -> String {
    let all_cases = |table: &dyn Fn(&str) -> String| -> String {
        section_results.cases().into_iter().map(table).collect()
    };
    match section {
        Section::Plaintext | Section::Pipelined | Section::Cpp => {
            all_cases(&|case| servers(section_results, case, Some(Run::cpu)))
        }
        Section::Matrix | Section::Single => {
            all_cases(&|case| servers(section_results, case, Some(|run| -run.per_second)))
        }
        Section::Vcpus | Section::Levels => all_cases(&|case| servers(section_results, case, None)),
        Section::Serve => {
            serve::alternatives(section_results)
                + &all_cases(&|case| servers(section_results, case, None))
        }
        Section::Papers => papers::tables(section_results),
        Section::Preemption => preemption::tables(section_results),
        Section::Processes => all_cases(&|case| classes(section_results, case)),
        Section::Assign => all_cases(&|case| assign::table(section_results, case)),
        Section::Files => all_cases(&|case| files::table(section_results, case)),
        Section::Sched => sched::table(section_results),
        Section::Conserve => conserve::table(section_results),
        Section::Micro | Section::Multi => micro::table(section_results),
    }
}

/// Formats the servers of a load. With a key (a quantity of which less is better), the servers are
/// sorted by the key and have ratios to the best peer and to raw C. Without a key, they are in the
/// order of the first round.
fn servers(section_results: &SectionResults, case: &str, key: Option<fn(&Run) -> f64>) -> String {
    let mut all: Vec<_> = section_results.cells_of_case(case, |_| true).collect();
    if let Some(key) = key {
        let value = |cell: &crate::results::Cell| cell.median(key).unwrap_or(f64::INFINITY);
        all.sort_by(|a, b| value(a).total_cmp(&value(b)));
    }
    let best = key.and_then(|key| Some(best_peer(section_results, case, key)?.1));
    let raw = key.and_then(|key| section_results.median(case, RAW_C, key));
    let ratio_to = |head, base: Option<f64>| {
        text(head, move |cell| {
            let ratio = || Some(cell.median(key?)? / base.filter(|base| *base != 0.0)?);
            format_value(ratio(), 2)
        })
    };
    let columns = [
        spread("req/s k", 1, |run| run.per_second / 1e3),
        spread("p50 µs", 0, Run::p50),
        spread("p99 µs", 0, Run::p99),
        spread("p99.9 µs", 0, Run::p999),
        spread("server CPU µs/req", 2, Run::cpu),
        mean("user", 2, |run| run.user),
        mean("sys", 2, |run| run.sys),
        mean("server busy", 2, |run| run.server_busy),
        mean("client busy", 2, |run| run.client_busy),
        ratio_to("× best peer", best),
        ratio_to("× raw C", raw),
    ];
    cells(case, "server", all, &columns)
}

/// Formats latencies by class of request.
fn classes(section_results: &SectionResults, case: &str) -> String {
    let columns = [
        spread("served /s", 0, |run| run.per_second),
        spread("p50 µs", 0, Run::p50),
        spread("p99 µs", 0, Run::p99),
        spread("p99.9 µs", 0, Run::p999),
        spread("waiting", 0, |run| run.unanswered.0 as f64),
        spread("server CPU µs/req", 2, Run::cpu),
        spread("server busy", 2, |run| run.server_busy),
        spread("client late µs", 0, |run| run.send_lag),
    ];
    cells(
        case,
        "server: class",
        section_results.cells_of_case(case, |_| true),
        &columns,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::goal::Verdict;
    use crate::results::Figure;

    #[test]
    fn without_figures_all_goals_are_unmeasured() {
        for section in goals(&Results::default()) {
            assert!(section.commit.is_none() && !section.goals.is_empty());
            let mut goals = section.goals.iter();
            assert!(goals.all(|goal| goal.verdict() == Verdict::Unmeasured));
        }
    }

    #[test]
    fn a_disturbed_section_reaches_no_goal() {
        let mut multi = SectionResults {
            runs: 10,
            disturbed: 1,
            ..SectionResults::default()
        };
        for (peer, ns) in [("upshift", 1.0), ("go", 2.0)] {
            multi.add_figure(Figure {
                bench: "yield".into(),
                peer: peer.into(),
                ns,
                min: ns,
                max: ns,
                rounds: Vec::new(),
            });
        }
        let reached = |multi: SectionResults| {
            let sections = [("multi".to_owned(), multi)].into();
            let all = goals(&Results { sections });
            let goals = all.into_iter().flat_map(|section| section.goals);
            goals
                .filter(|goal| goal.verdict() == Verdict::Reached)
                .count()
        };
        let disturbed = SectionResults {
            runs: 10,
            disturbed: 2,
            figures: multi.figures.clone(),
            ..SectionResults::default()
        };
        assert_eq!(reached(multi), 1);
        assert_eq!(reached(disturbed), 0);
    }
}
