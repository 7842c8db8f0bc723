//! The sections: their runs, tables and goals; a file or folder for each kind.

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

use upshift_report::Plot;

use crate::machine;
use crate::options::Options;
use crate::peers::{Built, RAW_C};
use crate::results::{Results, Run, SectionResults};
use crate::section::Section;
use crate::table::{cells, mean, plain, spread, text};
use crate::verdict::{Row, best_peer};

/// Measures one section; `None` if none of its programs could be built.
pub(crate) fn run(section: Section, options: &Options, built: &Built) -> Option<SectionResults> {
    eprintln!("\n== {} ==", section.name());
    let mut options = options.clone();
    options.rounds = options.rounds_of(section);
    options.time = options.time_of(section);
    let options = &options;
    let mut results = SectionResults {
        commit: machine::commit(),
        machine: machine::describe(),
        versions: machine::versions(),
        ..SectionResults::default()
    };
    for (id, why) in &built.skipped {
        results.notes.push(format!("{id} was not built: {why}"));
    }
    let list = |flag: &str, names: &[String]| match names {
        [] => String::new(),
        names => format!(" {flag} {}", names.join(",")),
    };
    results.commands.push(format!(
        "cargo xtask bench --only {}{}{} --rounds {} --seconds {}",
        section.name(),
        list("--peers", &options.peers),
        list("--rows", &options.rows),
        options.rounds,
        options.time.as_secs_f64()
    ));
    let results = &mut results;
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
        Section::Micro => micro::run(results, built),
        Section::Conserve => conserve::run(results, options, built),
        Section::Multi => micro::run_multi(results, options, built),
    }
    if results.cells.is_empty() && results.figures.is_empty() {
        eprintln!("nothing measured in {}", section.name());
        return None;
    }
    results.when = machine::now();
    Some(std::mem::take(results))
}

/// Returns all rows of the measured sections, in order.
pub(crate) fn rows(results: &Results) -> Vec<Row> {
    let of = |section: Section| Some(goals(section)(results.sections.get(section.name())?));
    Section::ALL.into_iter().filter_map(of).flatten().collect()
}

/// Returns the goals of a section, with their verdicts.
fn goals(section: Section) -> fn(&SectionResults) -> Vec<Row> {
    match section {
        Section::Plaintext => closed::plaintext,
        Section::Pipelined => closed::pipelined,
        Section::Matrix => closed::matrix,
        Section::Single => closed::single,
        Section::Vcpus => levels::vcpus,
        Section::Levels => levels::levels,
        Section::Papers => papers::rows,
        Section::Preemption => preemption::targets::rows,
        Section::Processes => processes::rows,
        Section::Assign => assign::rows,
        Section::Sched => sched::rows,
        Section::Serve => serve::rows,
        Section::Files => files::rows,
        Section::Cpp => cpp::rows,
        Section::Micro => micro::rows,
        Section::Conserve => conserve::rows,
        Section::Multi => micro::multi_rows,
    }
}

/// Returns the figures of `docs/evaluation.md` that can be drawn, each with its file name.
pub(crate) fn plots(results: &Results) -> Vec<(&'static str, Plot)> {
    type Figure = (Section, &'static str, fn(&SectionResults) -> Plot);
    let drawn: [Figure; 3] = [
        (Section::Serve, "urgent.svg", serve::plot),
        (Section::Levels, "levels.svg", levels::plot),
        (Section::Assign, "servers.svg", assign::plot),
    ];
    let plot =
        |(section, file, plot): Figure| Some((file, plot(results.sections.get(section.name())?)));
    drawn.into_iter().filter_map(plot).collect()
}

/// Formats the tables of a section in Markdown.
pub(crate) fn tables(section: Section, found: &SectionResults) -> String {
    let each = |table: &dyn Fn(&str) -> String| -> String {
        found.cases().into_iter().map(table).collect()
    };
    match section {
        Section::Plaintext | Section::Pipelined | Section::Cpp => {
            each(&|case| servers(found, case, Some(Run::cpu)))
        }
        Section::Matrix | Section::Single => {
            each(&|case| servers(found, case, Some(|run| -run.per_second)))
        }
        Section::Vcpus | Section::Levels => each(&|case| servers(found, case, None)),
        Section::Serve => serve::alternatives(found) + &each(&|case| servers(found, case, None)),
        Section::Papers => papers::tables(found),
        Section::Preemption => preemption::tables(found),
        Section::Processes => each(&|case| classes(found, case)),
        Section::Assign => each(&|case| assign::table(found, case)),
        Section::Files => each(&|case| files::table(found, case)),
        Section::Sched => sched::table(found),
        Section::Conserve => conserve::table(found),
        Section::Micro | Section::Multi => micro::table(found),
    }
}

/// Formats the servers of a load: sorted by a quantity of which less is better, beside the best
/// peer and raw C, or in the order of the first round.
fn servers(found: &SectionResults, case: &str, key: Option<fn(&Run) -> f64>) -> String {
    let mut all: Vec<_> = found.of_case(case, |_| true).collect();
    if let Some(key) = key {
        let value = |cell: &crate::results::Cell| cell.median(key).unwrap_or(f64::INFINITY);
        all.sort_by(|a, b| value(a).total_cmp(&value(b)));
    }
    let best = key.and_then(|key| Some(best_peer(found, case, key)?.1));
    let raw = key.and_then(|key| found.median(case, RAW_C, key));
    let against = |head, base: Option<f64>| {
        text(head, move |cell| {
            let ratio = || Some(cell.median(key?)? / base.filter(|base| *base != 0.0)?);
            plain(ratio(), 2)
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
        against("× best peer", best),
        against("× raw C", raw),
    ];
    cells(case, "server", all, &columns)
}

/// Formats latencies by class of request.
fn classes(found: &SectionResults, case: &str) -> String {
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
        found.of_case(case, |_| true),
        &columns,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::Verdict;

    #[test]
    fn without_figures_nothing_is_claimed() {
        assert!(rows(&Results::default()).is_empty());
        for section in Section::ALL {
            let rows = goals(section)(&SectionResults::default());
            assert!(rows.iter().all(|r| r.verdict == Verdict::Unmeasured));
        }
    }
}
