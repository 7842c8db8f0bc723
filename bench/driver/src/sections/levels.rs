//! The sections `vcpus` and `levels`: more vCPUs than CPUs, and eight levels at overload.

use upshift_load::Work;
use upshift_load::scenario::{LEVELS, ONE_LEVEL, OVERLOAD, OVERLOAD_SIZE};
use upshift_report::plot::{COLOURS, DARK};
use upshift_report::{Kind, Look, Plot};

use crate::goal::{Goal, at_least, at_most};
use crate::measure::Load;
use crate::options::Options;
use crate::peers::Built;
use crate::results::{Run, SectionResults};
use crate::rounds::{self, Entry};

/// The load of the section `vcpus`.
const VCPUS_CASE: &str = "n = 20, 64 connections, unpinned";
/// Load of a closed loop, which the section `levels` measures first.
const CLOSED_CASE: &str = "closed loop at one level";
/// Load that measures the capacity with full queues. It exceeds that of a closed loop, since
/// waiting replies leave together.
const CAPACITY_CASE: &str = "capacity: twice the closed loop offered, one level";
/// Load of the most urgent level alone.
const ALONE_CASE: &str = "level 0 alone, its share of the load";
/// Load of eight levels above the [capacity](CAPACITY_CASE).
const OVERLOAD_CASE: &str = "8 levels, 130 % of capacity";
/// Same total load at one level.
const ONE_LEVEL_CASE: &str = "the same load at one level";

/// Returns the row's name for a level.
fn level_row(level: u8) -> String {
    format!("level {level}")
}

/// Returns the row's name for a number of vCPUs.
fn vcpus_row(vcpus: usize) -> String {
    format!("upshift --vcpus {vcpus}")
}

/// Runs the section `vcpus`.
pub(super) fn run_vcpus(results: &mut SectionResults, options: &Options, built: &Built) {
    let programs = [2, 5].into_iter().filter_map(|n| {
        let vcpus = n.to_string();
        let program = built.upshift(&["matrix-server", "--vcpus", &vcpus])?;
        Some((vcpus_row(n), program))
    });
    let programs = programs.collect();
    let mut load = Load::closed(Work::Matrix { n: 20 }, 64, options);
    load.pinned = false;
    let entries = rounds::entries(&programs, |_| Some(load.clone()));
    rounds::run(results, VCPUS_CASE, &entries, options);
}

/// Runs the section `levels`.
pub(super) fn run_levels(results: &mut SectionResults, options: &Options, built: &Built) {
    let args = ["matrix-server", "--vcpus", "1", "--pin", "0"];
    let Some(program) = built.upshift(&args) else {
        return;
    };
    let at = |levels: [u8; 8]| levels.map(|l| format!("127.0.0.1:0@{l}")).to_vec();
    let mut load = Load::closed(Work::Matrix { n: OVERLOAD_SIZE }, 16, options);
    load.listen = at(ONE_LEVEL);
    load.loaded = LEVELS.len();
    let entry = |load: &Load| Entry {
        name: "total".to_owned(),
        program: &program,
        load: load.clone(),
    };
    let mut total = |case: &str, load: &Load| {
        rounds::run(results, case, &[entry(load)], options);
        results.median(case, "total", |r| r.per_second)
    };
    let groups = LEVELS.len() as f64;
    let Some(closed) = total(CLOSED_CASE, &load) else {
        return;
    };
    load.rate = Some(2.0 * closed / groups);
    let Some(capacity) = total(CAPACITY_CASE, &load) else {
        return;
    };
    load.rate = Some(OVERLOAD * capacity / groups);
    let mut one_level = load.clone();
    one_level.per_address = Some(|i| format!("group {}", i + 1));
    load.listen = at(LEVELS);
    load.per_address = Some(|i| level_row(LEVELS[i]));
    let mut alone = load.clone();
    alone.loaded = 1;
    rounds::run(results, ALONE_CASE, &[entry(&alone)], options);
    rounds::run(results, OVERLOAD_CASE, &[entry(&load)], options);
    rounds::run(results, ONE_LEVEL_CASE, &[entry(&one_level)], options);
}

/// Returns the goals of the section `vcpus`.
pub(super) fn vcpus(section: &SectionResults) -> Vec<Goal> {
    let rate = |n| section.values(VCPUS_CASE, &vcpus_row(n), |run| run.per_second / 1e3);
    let what = "2.5 × more vCPUs than CPUs: rate ≥ that of as many / 1.2";
    vec![at_least(what, 1.0 / 1.2, "k/s").cell("", rate(5), rate(2))]
}

/// Draws the latency of each level at overload, beside that of all requests at one level.
pub(super) fn plot(section: &SectionResults) -> Plot {
    let x = ("level", Kind::Range);
    let mut plot = Plot::new("latency at 130 % load", x, ("ms", Kind::Log10));
    let of = |level: u8, of: fn(&Run) -> f64| {
        let median = section.median(OVERLOAD_CASE, &level_row(level), of)?;
        Some((f64::from(level), median / 1e3))
    };
    type Quantile = (&'static str, fn(&Run) -> f64);
    let quantiles: [Quantile; 2] = [("p50", Run::p50), ("p99", Run::p99)];
    for ((name, quantile), colour) in quantiles.into_iter().zip(COLOURS) {
        let levels = LEVELS.into_iter();
        let points = levels.filter_map(|level| of(level, quantile));
        plot.add(name, Look::Line, colour, points);
    }
    if let Some(us) = section.median(ONE_LEVEL_CASE, "total", Run::p99) {
        let ends = [LEVELS[0], LEVELS[LEVELS.len() - 1]];
        let line = ends.map(|level| (f64::from(level), us / 1e3));
        plot.add("p99, one level", Look::DashedCurve, DARK, line);
    }
    plot
}

/// Returns the goals of the section `levels`.
pub(super) fn levels(section: &SectionResults) -> Vec<Goal> {
    let p99 = |case, level| section.values(case, &level_row(level), Run::p99);
    let total = |case| section.values(case, "total", |run| run.per_second / 1e3);
    let top = LEVELS[0];
    let monotone = at_most("p99 ≤ that of the next level", 1.0, "µs");
    let monotone = LEVELS.windows(2).fold(monotone, |goal, two| {
        let [own, next] = [two[0], two[1]].map(|level| p99(OVERLOAD_CASE, level));
        goal.cell(level_row(two[0]), own, next)
    });
    vec![
        at_most("p99 of the top level ≤ 1.5 × alone", 1.5, "µs").cell(
            "",
            p99(OVERLOAD_CASE, top),
            p99(ALONE_CASE, top),
        ),
        monotone,
        at_least("throughput ≥ 0.97 × that of one level", 0.97, "k/s")
            .cell("", total(OVERLOAD_CASE), total(ONE_LEVEL_CASE))
            .margin(),
    ]
}
