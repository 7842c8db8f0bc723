//! What was to be reached, and whether it was: the summary at the top of the page.

use crate::peers::{NO_RUNTIME, RAW_C, UPSHIFT};
use crate::results::{Cell, Results, Run, SectionResults};
use crate::sections::{
    ALONE_CASE, LEVELS, MATRIX, ONE_LEVEL_CASE, ORDERS, OVERLOAD_CASE, PLAINTEXT, Section,
    VCPUS_CASE, level_row, matrix_case, plaintext_case, single_case, vcpus_row,
};
use crate::{
    assign, conserve, cpp, files, multi, preemption, processes_targets, sched, serve_targets,
};

/// Differences below this share mean nothing on a virtual machine.
pub(crate) const NOISE: f64 = 0.05;

/// How a target came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// At least as good as the target.
    Reached,
    /// Missed by less than [`NOISE`].
    Noise,
    /// Missed.
    Missed,
    /// There are no figures.
    Unmeasured,
}

/// One row of the summary.
#[derive(Debug)]
pub(crate) struct Row {
    /// What is asked.
    pub(crate) target: String,
    /// What was measured.
    pub(crate) measured: String,
    /// How it came out.
    pub(crate) verdict: Verdict,
}

/// Smaller is better: `value` against `limit`.
pub(crate) fn at_most(value: f64, limit: f64) -> Verdict {
    if value <= limit {
        Verdict::Reached
    } else if value <= limit * (1.0 + NOISE) {
        Verdict::Noise
    } else {
        Verdict::Missed
    }
}

/// A row; without a finding it is not measured.
pub(crate) fn row(target: impl Into<String>, found: Option<(String, Verdict)>) -> Row {
    let (measured, verdict) = found.unwrap_or(("–".into(), Verdict::Unmeasured));
    Row {
        target: target.into(),
        measured,
        verdict,
    }
}

/// The best of the runtimes that are not ours; `best` orders cells, smallest first.
pub(crate) fn best_peer<'a>(
    section: &'a SectionResults,
    case: &str,
    of: impl Fn(&Run) -> f64,
) -> Option<(&'a Cell, f64)> {
    section
        .cells
        .iter()
        .filter(|c| c.case == case && !c.peer.starts_with(UPSHIFT))
        .filter(|c| !NO_RUNTIME.contains(&c.peer.as_str()))
        .filter_map(|c| Some((c, c.median(&of)?)))
        .min_by(|a, b| a.1.total_cmp(&b.1))
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
        Section::Plaintext => plaintext,
        Section::Pipelined => pipelined,
        Section::Matrix => matrix,
        Section::Single => single,
        Section::Vcpus => vcpus,
        Section::Levels => levels,
        Section::Preemption => preemption::targets::rows,
        Section::Processes => processes_targets::rows,
        Section::Assign => assign::rows,
        Section::Sched => sched::rows,
        Section::Serve => serve_targets::rows,
        Section::Files => files::rows,
        Section::Cpp => cpp::rows,
        Section::Micro => micro,
        Section::Conserve => conserve::rows,
        Section::Multi => multi::rows,
    }
}

fn plaintext(section: &SectionResults, rows: &mut Vec<Row>) {
    for connections in PLAINTEXT {
        let case = plaintext_case(connections);
        let ours = section.cell(&case, UPSHIFT);
        let cpu = ours.and_then(|c| c.median(Run::cpu));
        let best = best_peer(section, &case, Run::cpu);
        let raw = section.cell(&case, RAW_C).and_then(|c| c.median(Run::cpu));
        let at = format!("plaintext, {case}:");
        rows.push(row(
            format!("{at} no runtime below us (CPU/request)"),
            cpu.zip(best).map(|(us, (peer, best))| {
                let text = format!("{us:.2} µs; best peer {} {best:.2}", peer.peer);
                (text, at_most(us, best))
            }),
        ));
        rows.push(row(
            format!("{at} ≤ 1.04 × raw C"),
            cpu.zip(raw).map(|(us, raw)| {
                let text = format!("{:.3} × ({us:.2} against {raw:.2} µs)", us / raw);
                (text, at_most(us / raw, 1.04))
            }),
        ));
        rows.push(row(
            format!("{at} user part ≤ 0.25 µs"),
            ours.and_then(|c| c.mean(|r| r.user))
                .map(|user| (format!("{user:.2} µs"), at_most(user, 0.25))),
        ));
    }
}

fn pipelined(section: &SectionResults, rows: &mut Vec<Row>) {
    let cell = section.cell(&plaintext_case(64), UPSHIFT);
    let cpu = cell.and_then(|c| c.median(Run::cpu));
    rows.push(row(
        "pipelined × 16, 64 connections: ≤ 0.32 µs CPU/request",
        cpu.map(|us| (format!("{us:.3} µs"), at_most(us, 0.32))),
    ));
}

fn matrix(section: &SectionResults, rows: &mut Vec<Row>) {
    for n in ORDERS {
        for connections in MATRIX {
            let case = matrix_case(n, connections);
            let ours = section.cell(&case, UPSHIFT);
            let rate = ours.and_then(|c| c.median(|r| r.per_second));
            let best = best_peer(section, &case, |r| -r.per_second);
            rows.push(row(
                format!("matrix, {case}: ≥ best peer"),
                rate.zip(best).map(|(us, (peer, best))| {
                    let best = -best;
                    let text = format!("{:.1} k/s; {} {:.1}", us / 1e3, peer.peer, best / 1e3);
                    (text, at_most(best, us))
                }),
            ));
            let p99 = ours.and_then(|c| c.median(|r| r.p99));
            let theirs = best.and_then(|(c, _)| Some((c, c.median(|r| r.p99)?)));
            rows.push(row(
                format!("matrix, {case}: p99 ≤ that of the best peer"),
                p99.zip(theirs).map(|(us, (peer, p99))| {
                    let text = format!("{us:.0} µs; {} {p99:.0}", peer.peer);
                    (text, at_most(us, p99))
                }),
            ));
        }
    }
    let case = matrix_case(8, 512);
    let rate = |peer| {
        let cell = section.cell(&case, peer)?;
        cell.median(|r| r.per_second)
    };
    rows.push(row(
        format!("matrix, {case}: ≥ 3.5 × threads"),
        rate(UPSHIFT)
            .zip(rate("threads"))
            .map(|(us, threads)| (format!("{:.2} ×", us / threads), at_most(3.5, us / threads))),
    ));
}

fn single(section: &SectionResults, rows: &mut Vec<Row>) {
    for n in ORDERS {
        let case = single_case(n);
        let rate = |peer| {
            let cell = section.cell(&case, peer)?;
            cell.median(|r| r.per_second)
        };
        rows.push(row(
            format!("closed loop, {case}: not slower than threads"),
            rate(UPSHIFT).zip(rate("threads")).map(|(us, threads)| {
                let text = format!("{us:.0} against {threads:.0} per s");
                (text, at_most(threads, us))
            }),
        ));
    }
}

fn vcpus(section: &SectionResults, rows: &mut Vec<Row>) {
    let rate = |n| {
        let cell = section.cell(VCPUS_CASE, &vcpus_row(n))?;
        cell.median(|r| r.per_second)
    };
    rows.push(row(
        "2.5 × more vCPUs than CPUs: ≤ 1.2 × slower",
        rate(2)
            .zip(rate(5))
            .map(|(two, five)| (format!("{:.2} ×", two / five), at_most(two / five, 1.2))),
    ));
}

fn levels(section: &SectionResults, rows: &mut Vec<Row>) {
    let p99 = |case, level| {
        let cell = section.cell(case, &level_row(level))?;
        cell.median(|r| r.honest(r.p99, 0.99))
    };
    let top = p99(OVERLOAD_CASE, LEVELS[0]).zip(p99(ALONE_CASE, LEVELS[0]));
    rows.push(row(
        "8 levels, overload: p99 of the top level ≤ 1.5 × alone",
        top.map(|(loaded, alone)| {
            let text = format!(
                "{:.2} × ({loaded:.0} against {alone:.0} µs)",
                loaded / alone
            );
            (text, at_most(loaded / alone, 1.5))
        }),
    ));
    let by_level: Option<Vec<f64>> = LEVELS.iter().map(|&l| p99(OVERLOAD_CASE, l)).collect();
    rows.push(row(
        "8 levels, overload: latency (p99) monotone by level",
        by_level.map(|p99| {
            let text: Vec<String> = p99.iter().map(|us| format!("{:.1}", us / 1e3)).collect();
            let verdicts = p99.windows(2).map(|two| at_most(two[0], two[1]));
            let worst = verdicts.max_by_key(|&v| v as u8);
            let text = format!("{} ms", text.join(" · "));
            (text, worst.unwrap_or(Verdict::Unmeasured))
        }),
    ));
    let total = |case| section.cell(case, "total")?.median(|r| r.per_second);
    rows.push(row(
        "8 levels, overload: total throughput within 3 % of one level",
        total(OVERLOAD_CASE)
            .zip(total(ONE_LEVEL_CASE))
            .map(|(eight, one)| {
                let text = format!("{:+.1} %", 100.0 * (eight / one - 1.0));
                // More is no miss; the 3 % is itself a margin, so noise is not added to it.
                let reached = eight >= 0.97 * one;
                (
                    text,
                    if reached {
                        Verdict::Reached
                    } else {
                        Verdict::Missed
                    },
                )
            }),
    ));
}

/// Name of the figure, words, limit, unit.
const MICRO: [(&str, &str, f64, &str); 9] = [
    ("yield-2", "yield between two coroutines", 30.0, "ns"),
    ("spawn-join", "spawn + join, one", 75.0, "ns"),
    ("spawn-join-1000", "spawn + join, batch of 1000", 75.0, "ns"),
    ("timer", "timer create + cancel", 100.0, "ns"),
    (
        "channel-hop",
        "channel wake on the same vCPU, per hop",
        150.0,
        "ns",
    ),
    (
        "cross-wake",
        "wake of a vCPU on another CPU, per hop",
        2000.0,
        "ns",
    ),
    (
        "bytes-per-task",
        "memory, 1 M idle coroutines of 24 bytes",
        120.0,
        "B",
    ),
    ("reprio", "reprio of a queued coroutine", 40.0, "ns"),
    ("need-preempt", "need_preempt", 2.0, "ns"),
];

fn micro(section: &SectionResults, rows: &mut Vec<Row>) {
    for (bench, words, limit, unit) in MICRO {
        let of = |f: &&crate::results::Figure| f.bench == bench;
        let ours = section
            .figures
            .iter()
            .filter(of)
            .find(|f| f.peer == UPSHIFT);
        let peers = section
            .figures
            .iter()
            .filter(of)
            .filter(|f| f.peer != UPSHIFT);
        let best = peers.min_by(|a, b| a.ns.total_cmp(&b.ns));
        rows.push(row(
            format!("{words}: ≤ {limit} {unit}"),
            ours.map(|us| {
                let peer = best.map_or(String::new(), |b| {
                    format!("; best peer {} {:.1}", b.peer, b.ns)
                });
                (format!("{:.1} {unit}{peer}", us.ns), at_most(us.ns, limit))
            }),
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_miss_below_the_noise_is_told_apart() {
        assert_eq!(at_most(1.0, 1.0), Verdict::Reached);
        assert_eq!(at_most(1.04, 1.0), Verdict::Noise);
        assert_eq!(at_most(1.06, 1.0), Verdict::Missed);
    }

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
