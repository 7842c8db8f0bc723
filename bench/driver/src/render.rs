//! The page `RESULTS.md`, from the data alone.

use std::fmt::Write;

use crate::machine;
use crate::peers::{RAW_C, UPSHIFT};
use crate::results::{Cell, Results, Run, SectionResults, shown};
use crate::section::Section;
use crate::sections::{assign, conserve, files, preemption, rows, sched};
use crate::verdict::{Verdict, best_peer};

/// What a row of a table is compared by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rank {
    /// CPU time per request, smallest first.
    Cpu,
    /// Requests per second, largest first.
    Rate,
    /// The order measured, without ratios.
    AsMeasured,
}

/// The whole page.
pub(crate) fn page(results: &Results) -> String {
    let mut page = String::from(
        "# Results of the benchmarks\n\n\
         Written by `cargo xtask bench`; every run is in `results/`, the method is in `README.md`. Values are \
         medians over the rounds with (smallest–largest). Differences below 5 % mean nothing on a virtual machine.\n",
    );
    summary(results, &mut page);
    missing(results, &mut page);
    for section in Section::ALL {
        if let Some(found) = results.sections.get(section.name()) {
            write_section(section, found, &mut page);
        }
    }
    page
}

fn summary(results: &Results, page: &mut String) {
    let rows = rows(results);
    let count = |verdict| rows.iter().filter(|r| r.verdict == verdict).count();
    let _ = write!(
        page,
        "\n## What was to be reached\n\n{} reached, {} within noise of it, **{} not reached**, {} not measured.\n\n\
         | target | measured | verdict |\n|---|---|---|\n",
        count(Verdict::Reached),
        count(Verdict::Noise),
        count(Verdict::Missed),
        count(Verdict::Unmeasured),
    );
    for row in rows {
        let verdict = match row.verdict {
            Verdict::Reached => "reached",
            Verdict::Noise => "missed by less than 5 % (noise)",
            Verdict::Missed => "**not reached**",
            Verdict::Unmeasured => "not measured",
        };
        let _ = writeln!(page, "| {} | {} | {verdict} |", row.target, row.measured);
    }
}

/// The sections without figures, and how to get them.
fn missing(results: &Results, page: &mut String) {
    let is_missing = |section: &Section| !results.sections.contains_key(section.name());
    let names: Vec<&str> = Section::ALL
        .into_iter()
        .filter(is_missing)
        .map(Section::name)
        .collect();
    if !names.is_empty() {
        let _ = writeln!(
            page,
            "\nNo figures of a commit that can be checked out: {}. `cargo xtask bench --only {}` measures them.",
            names.join(", "),
            names.join(",")
        );
    }
}

fn write_section(section: Section, found: &SectionResults, page: &mut String) {
    let (title, rank) = match section {
        Section::Plaintext => ("Plaintext, HTTP/1.1 keep-alive", Rank::Cpu),
        Section::Pipelined => ("Plaintext, 16 requests in flight per connection", Rank::Cpu),
        Section::Matrix => ("Matrix server, closed loop", Rank::Rate),
        Section::Single => ("One connection, closed loop", Rank::Rate),
        Section::Vcpus => ("More vCPUs than CPUs", Rank::AsMeasured),
        Section::Levels => ("Eight levels at overload", Rank::AsMeasured),
        Section::Preemption => ("Long requests among short ones", Rank::AsMeasured),
        Section::Processes => ("An urgent server beside a batch process", Rank::AsMeasured),
        Section::Assign => (
            "Unmodified servers beside a batch process",
            Rank::AsMeasured,
        ),
        Section::Sched => ("Processes under policies in user space", Rank::AsMeasured),
        Section::Serve => ("Web servers", Rank::AsMeasured),
        Section::Files => ("Files", Rank::AsMeasured),
        Section::Cpp => ("Servers in C++", Rank::Cpu),
        Section::Micro => ("Microbenchmarks", Rank::AsMeasured),
        Section::Conserve => (
            "Beside a worker that computes, while another one idles",
            Rank::AsMeasured,
        ),
        Section::Multi => ("Microbenchmarks on two workers", Rank::AsMeasured),
    };
    let _ = write!(page, "\n## {title}\n\n");
    let mark = if found.commit.ends_with(machine::DIRTY) {
        " **(a tree that differs from its commit: these figures cannot be repeated)**"
    } else {
        ""
    };
    let _ = writeln!(
        page,
        "Commit {}{mark}; {}; {}\n",
        found.commit,
        found.when,
        found.machine.join("; ")
    );
    let _ = writeln!(page, "Versions: {}\n", found.versions.join("; "));
    if section == Section::Preemption {
        page.push_str(&preemption::summary::table(found));
    }
    let tables = match section {
        Section::Files => Some(files::tables(found)),
        Section::Assign => Some(assign::table(found)),
        _ => None,
    };
    page.push_str(tables.as_deref().unwrap_or_default());
    let cases = found.cases().into_iter();
    for case in cases.filter(|_| tables.is_none()) {
        let by_class = section == Section::Processes
            || (section == Section::Preemption && case != preemption::cases::COST);
        if by_class {
            classes(found, case, page);
            continue;
        }
        table(found, case, rank, page);
    }
    match section {
        Section::Sched => page.push_str(&sched::table(found)),
        Section::Conserve => page.push_str(&conserve::table(found)),
        _ if found.figures.is_empty() => {}
        _ => figures(found, page),
    }
    list("Commands", &found.commands, page);
    list("Left out or repeated", &found.notes, page);
}

fn list(title: &str, lines: &[String], page: &mut String) {
    if lines.is_empty() {
        return;
    }
    let _ = writeln!(
        page,
        "<details><summary>{title} ({})</summary>\n",
        lines.len()
    );
    for line in lines {
        let _ = writeln!(page, "- {line}");
    }
    let _ = writeln!(page, "\n</details>\n");
}

fn table(found: &SectionResults, case: &str, rank: Rank, page: &mut String) {
    let mut cells: Vec<&Cell> = found.cells.iter().filter(|c| c.case == case).collect();
    let key: fn(&Run) -> f64 = match rank {
        Rank::Cpu => Run::cpu,
        Rank::Rate | Rank::AsMeasured => |run| -run.per_second,
    };
    if rank != Rank::AsMeasured {
        let value = |cell: &Cell| cell.median(key).unwrap_or(f64::INFINITY);
        cells.sort_by(|a, b| value(a).total_cmp(&value(b)));
    }
    let best = best_peer(found, case, key).map(|(_, value)| value.abs());
    let raw = found.cell(case, RAW_C);
    let raw = raw.and_then(|c| c.median(key)).map(f64::abs);
    let _ = write!(
        page,
        "### {case}\n\n\
         | server | req/s k | p50 µs | p99 µs | p99.9 µs | server CPU µs/req | user | sys | server busy | client busy \
         | × best peer | × raw C | runs |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for cell in cells {
        let ratio = |of: Option<f64>| match (rank, cell.median(key), of) {
            (Rank::AsMeasured, _, _) => "–".to_owned(),
            (_, Some(own), Some(of)) if of > 0.0 => format!("{:.2}", own.abs() / of),
            _ => "–".to_owned(),
        };
        let name = match cell.peer.as_str() {
            UPSHIFT => "**upshift**",
            other => other,
        };
        let plain = |of: fn(&Run) -> f64, digits: usize| {
            cell.mean(of)
                .map_or("–".into(), |value| format!("{value:.digits$}"))
        };
        let _ = writeln!(
            page,
            "| {name} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            shown(cell.spread(|r| r.per_second / 1e3), 1),
            shown(cell.spread(|r| r.honest(r.p50, 0.5)), 0),
            shown(cell.spread(|r| r.honest(r.p99, 0.99)), 0),
            shown(cell.spread(|r| r.honest(r.p999, 0.999)), 0),
            shown(cell.spread(Run::cpu), 2),
            plain(|r| r.user, 2),
            plain(|r| r.sys, 2),
            plain(|r| r.server_busy, 2),
            plain(|r| r.client_busy, 2),
            ratio(best),
            ratio(raw),
            cell.runs.len(),
        );
    }
    page.push('\n');
}

/// A table of latencies by class.
fn classes(found: &SectionResults, case: &str, page: &mut String) {
    let _ = write!(
        page,
        "### {case}\n\n\
         | server: class | served /s | p50 µs | p99 µs | p99.9 µs | waiting | server CPU µs/req | server busy | client late µs | runs |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
    );
    for cell in found.cells.iter().filter(|c| c.case == case) {
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            cell.peer,
            shown(cell.spread(|r| r.per_second), 0),
            shown(cell.spread(|r| r.honest(r.p50, 0.5)), 0),
            shown(cell.spread(|r| r.honest(r.p99, 0.99)), 0),
            shown(cell.spread(|r| r.honest(r.p999, 0.999)), 0),
            shown(cell.spread(|r| r.unanswered.0 as f64), 0),
            shown(cell.spread(Run::cpu), 2),
            shown(cell.spread(|r| r.server_busy), 2),
            shown(cell.spread(|r| r.send_lag), 0),
            cell.runs.len(),
        );
    }
    page.push('\n');
}

fn figures(found: &SectionResults, page: &mut String) {
    let (mut benches, mut peers): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    for figure in &found.figures {
        if !benches.contains(&figure.bench.as_str()) {
            benches.push(&figure.bench);
        }
        if !peers.contains(&figure.peer.as_str()) {
            peers.push(&figure.peer);
        }
    }
    let _ = writeln!(page, "ns per operation; `bytes-per-task` in bytes.\n");
    let _ = writeln!(page, "| runtime | {} |", benches.join(" | "));
    let _ = writeln!(page, "|---{}|", "|---".repeat(benches.len()));
    for peer in peers {
        let values = benches.iter().map(|&bench| {
            let of = |f: &&crate::results::Figure| f.bench == bench && f.peer == peer;
            found.figures.iter().find(of).map_or("–".into(), |f| {
                format!("{:.1} ({:.1}–{:.1})", f.ns, f.min, f.max)
            })
        });
        let values: Vec<String> = values.collect();
        let _ = writeln!(page, "| {peer} | {} |", values.join(" | "));
    }
    page.push('\n');
}
