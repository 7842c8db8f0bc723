//! Judges the published claims about these figures, each beside our figure.
//!
//! A claim is judged by its wording, since the published numbers were measured on other machines.

use upshift_load::scenario::LEVELS;

use super::chart::{REQUESTS, SERVERS, SHAPES, ab_case};
use super::curve::{CURVE, Curve, PUBLISHED, SMALL, knee};
use super::idle::{self, IDLE};
use super::levels::{HEAVY, case as levels_case};
use super::load::level_row;
use crate::claim::{self, Claim, Finding};
use crate::goal::NOISE;
use crate::peers::{GO_HTTP, KURO, THREADS, TOKIO, UPSHIFT};
use crate::results::{Run, SectionResults};

/// Sources of the claims: the English paper, the Chinese paper with the data of its repository, and
/// the slides.
const EN: &str = "SharedScheduler (en)";
const ZH: &str = "SharedScheduler (zh)";
const SLIDES: &str = "slides";

/// Reason why a published number of connections does not apply to this machine.
const FASTER_CPUS: &str =
    "today's CPUs need microseconds for a request, those of the publications milliseconds";

pub(super) fn table(section: &SectionResults) -> String {
    claim::table("### Published claims", all(section)).markdown()
}

fn all(section: &SectionResults) -> Vec<Claim> {
    [
        curves(section),
        levels(section),
        idle(section),
        chart(section),
    ]
    .concat()
}

/// Returns the ratio of the value for threads to the value for coroutines, at a number of
/// connections.
fn ratio(
    section: &SectionResults,
    curve: Curve,
    connections: usize,
    quantity: fn(&Run) -> f64,
) -> Option<f64> {
    let case = curve.case(connections);
    Some(section.ratio(&case, THREADS, UPSHIFT, quantity)?.value)
}

fn rate(run: &Run) -> f64 {
    run.per_second
}

fn mean(run: &Run) -> f64 {
    run.mean
}

fn curves(section: &SectionResults) -> Vec<Claim> {
    let last = PUBLISHED[PUBLISHED.len() - 1];
    let last_point = |curve: Curve| {
        let points = curve.connections().filter_map(|connections| {
            Some((connections, ratio(section, curve, connections, rate)?))
        });
        points.last()
    };
    let largest_ratio = CURVE
        .connections()
        .filter_map(|connections| Some((connections, ratio(section, CURVE, connections, mean)?)))
        .max_by(|a, b| a.1.total_cmp(&b.1));
    vec![
        Claim::new(
            EN,
            "with few connections the latency of threads is similar or slightly lower",
            ratio(section, CURVE, 1, mean).map(|times| {
                let text = format!("one connection, mean: threads {times:.2} × coroutines");
                (text, Finding::reproduced_if(times <= 1.0 + NOISE))
            }),
        ),
        Claim::new(
            EN,
            "as connections increase, the latency of threads rises far above that of coroutines (75 × at 128)",
            largest_ratio.map(|(connections, times)| {
                let text =
                    format!("largest ratio of means {times:.1} × at {connections} connections");
                (text, Finding::reproduced_if(times >= 2.0))
            }),
        ),
        Claim::new(
            EN,
            "throughput of coroutines grows linearly up to 128 connections",
            section
                .median(&CURVE.case(last), UPSHIFT, rate)
                .map(|answered| {
                    let offered = CURVE.offered(last);
                    let text = format!("{answered:.0} of {offered:.0} requests/s at 128");
                    (text, Finding::reproduced_if(answered >= 0.99 * offered))
                }),
        ),
        Claim::new(
            EN,
            "threads with 20 × 20 matrices are at their limit at about 64 connections",
            limit(section, CURVE),
        ),
        Claim::new(
            ZH,
            "threads answer more with few connections (0.49 × at one)",
            ratio(section, SMALL, 1, rate).map(|times| {
                let text =
                    format!("one connection: threads {times:.2} × coroutines; both answer all");
                (text, Finding::reproduced_if(times > 1.0 + NOISE))
            }),
        ),
        Claim::new(
            ZH,
            "the throughput of threads no longer grows from about 8 connections on",
            limit(section, SMALL),
        ),
        Claim::new(
            ZH,
            "at scale coroutines answer 1.5 to 2.9 × as much (its data: 5.2 × at 64)",
            last_point(SMALL).map(|(connections, times)| {
                let times = 1.0 / times;
                let text = format!("{times:.2} × at {connections} connections");
                (text, Finding::reproduced_if(times >= 1.5))
            }),
        ),
        Claim::new(
            ZH,
            "threads fail at 96 connections (data of its repository)",
            last_point(SMALL).map(|(connections, _)| {
                let text = format!("threads serve {connections}; the notes say where they stop");
                (text, Finding::reproduced_if(connections <= 96))
            }),
        ),
    ]
}

/// Returns the text and the finding on the numbers of connections from which threads, and
/// coroutines, leave requests unanswered.
fn limit(section: &SectionResults, curve: Curve) -> Option<(String, Finding)> {
    let [threads, coroutines] = [THREADS, UPSHIFT].map(|peer| knee(section, curve, peer));
    let describe = |[last, first]: [Option<usize>; 2]| match (last, first) {
        (last, Some(first)) => format!("between {} and {first}", last.unwrap_or(0)),
        (Some(last), None) => format!("above {last}"),
        (None, None) => "not measured".into(),
    };
    threads.iter().flatten().next()?;
    let text = format!(
        "limit of threads {} connections, of coroutines {}",
        describe(threads),
        describe(coroutines)
    );
    Some((text, Finding::NotComparable(FASTER_CPUS)))
}

fn levels(section: &SectionResults) -> Vec<Claim> {
    let median = |cpus: usize, level: u8, figure: fn(&Run) -> f64| {
        section.median(&levels_case(HEAVY, cpus), &level_row(level), figure)
    };
    let [top, bottom] = [LEVELS[0], LEVELS[LEVELS.len() - 1]];
    let by_level = |figure| LEVELS.map(|level| median(1, level, figure));
    let ordered = || {
        let p50: Option<Vec<f64>> = by_level(Run::p50).into_iter().collect();
        let p50 = p50?;
        let is_ordered = p50.windows(2).all(|two| two[0] <= two[1] * (1.0 + NOISE));
        let rates = median(1, top, rate)?.max(1.0) / median(1, bottom, rate)?.max(1.0);
        let text = format!(
            "median {:.1} ms at level {top} to {:.1} ms at level {bottom}; throughput {rates:.1} ×",
            p50[0] / 1e3,
            p50[p50.len() - 1] / 1e3
        );
        Some((text, Finding::reproduced_if(is_ordered && rates >= 1.0)))
    };
    let pair = |level, figure| Some([median(1, level, figure)?, median(2, level, figure)?]);
    vec![
        Claim::new(
            EN,
            "with too few CPUs, only connections of urgent levels keep throughput and latency",
            ordered(),
        ),
        Claim::new(
            EN,
            "with more CPUs, less urgent levels gain",
            pair(bottom, rate).map(|[one, two]| {
                let text = format!("level {bottom}: {one:.0}/s with 1 CPU, {two:.0}/s with 2");
                (text, Finding::reproduced_if(two > one))
            }),
        ),
        Claim::new(
            EN,
            "with more CPUs the most urgent level becomes slightly slower (data: 251 ms with 3, 331 with 4)",
            pair(top, mean).map(|[one, two]| {
                let text = format!("level {top}, mean: {one:.0} µs with 1 CPU, {two:.0} with 2");
                (text, Finding::reproduced_if(two > one * (1.0 + NOISE)))
            }),
        ),
    ]
}

fn idle(section: &SectionResults) -> Vec<Claim> {
    let p99 = |idle| idle::median(section, idle, UPSHIFT, Run::p99);
    let max_idle = idle::largest_measured(section, UPSHIFT);
    let p99s = max_idle.and_then(|max_idle| Some((max_idle, p99(max_idle)?, p99(0)?)));
    let bytes_per_connection = |peer| {
        let count = IDLE[1];
        idle::median(section, count, peer, |run| run.resident + run.kernel)
    };
    vec![
        Claim::new(
            ZH,
            "active connections are answered in time among tens of thousands of idle ones (no figure)",
            p99s.map(|(max_idle, beside, without)| {
                let text = format!("p99 {beside:.0} µs beside {max_idle}, {without:.0} without");
                (text, Finding::reproduced_if(beside <= 1.5 * without))
            }),
        ),
        Claim::new(
            ZH,
            "the same memory holds twice as many connections of coroutines (385 against 186)",
            bytes_per_connection(THREADS).zip(bytes_per_connection(UPSHIFT)).map(|(threads, own)| {
                let kib = [threads, own].map(|bytes| bytes / 1024.0);
                let text = format!(
                    "{:.1} × ({:.1} KiB a connection on threads, {:.1} on coroutines; tokio {:.1})",
                    threads / own,
                    kib[0],
                    kib[1],
                    bytes_per_connection(TOKIO).unwrap_or(f64::NAN) / 1024.0
                );
                (text, Finding::reproduced_if(threads / own >= 2.0))
            }),
        ),
    ]
}

fn chart(section: &SectionResults) -> Vec<Claim> {
    let shape = SHAPES[0];
    let rate_of = |server: &str, requests| section.median(&ab_case(shape, requests), server, rate);
    let lead = SHAPES
        .into_iter()
        .filter(|&(_, cpus)| cpus == 1)
        .flat_map(|shape| REQUESTS.map(|requests| (shape, requests)))
        .filter_map(|(shape, requests)| {
            let rate_of = |server| section.median(&ab_case(shape, requests), server, rate);
            Some((rate_of(KURO)? / rate_of(THREADS)?, shape.0, requests))
        })
        .max_by(|a, b| a.0.total_cmp(&b.0));
    let last = REQUESTS[REQUESTS.len() - 1];
    let mut rates: Vec<(f64, &str)> = SERVERS
        .into_iter()
        .filter_map(|(server, _)| Some((rate_of(server, last)?, server)))
        .collect();
    rates.sort_by(|a, b| b.0.total_cmp(&a.0));
    let rates_text: Vec<String> = rates
        .iter()
        .map(|(rate, server)| format!("{server} {:.1}", rate / 1e3))
        .collect();
    let ends = rates.first().zip(rates.last());
    vec![
        Claim::new(
            SLIDES,
            "Kuro answers up to 78 % more than threads",
            lead.map(|(times, connections, requests)| {
                let text = format!(
                    "L = 1: at most {:+.0} %, at C = {connections} and {requests} requests",
                    100.0 * (times - 1.0)
                );
                (text, Finding::reproduced_if(times >= 1.78 * (1.0 - NOISE)))
            }),
        ),
        Claim::new(
            SLIDES,
            "Emma and Kuro have the highest throughput, Go the lowest (its Go server sent no bytes)",
            ends.filter(|_| rates.len() == SERVERS.len())
                .map(|(first, last)| {
                    let text = format!("C = 100, L = 1, k/s: {}", rates_text.join(", "));
                    let is_same_order = first.1 == KURO && last.1 == GO_HTTP;
                    (text, Finding::reproduced_if(is_same_order))
                }),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sections::papers::{chart, curve, idle, levels};

    /// Returns figures for all claims. The array holds the factor of the latency on two CPUs, the
    /// p99 beside idle connections in µs, and the rates of Kuro's design and of Go, as multiples.
    fn measured(
        coroutines: f64,
        threads: f64,
        [two_cpus, beside, kuro, go]: [f64; 4],
    ) -> SectionResults {
        let mut section = curve::tests::measured(coroutines, threads, 3.0);
        section
            .cells
            .extend(levels::tests::measured(two_cpus).cells);
        section.cells.extend(idle::tests::measured(beside).cells);
        section.cells.extend(chart::tests::measured(kuro, go).cells);
        section
    }

    /// Returns a letter for each claim: **r**eproduced, **c**ontradicted, **n**ot comparable, or
    /// `-` without figures.
    fn verdicts(section: &SectionResults) -> String {
        let letter = |claim: &Claim| match claim.finding {
            Finding::Reproduced => 'r',
            Finding::Contradicted => 'c',
            Finding::NotComparable(_) => 'n',
            Finding::Unmeasured => '-',
        };
        all(section).iter().map(letter).collect()
    }

    #[test]
    fn claims_follow_the_figures() {
        let as_published = measured(200e3, 30e3, [1.2, 110.0, 1.8, 0.5]);
        assert_eq!(verdicts(&as_published), "crrncnrcrcrrrrr");
        let otherwise = measured(1e3, 200e3, [0.5, 900.0, 1.0, 1.5]);
        assert_eq!(verdicts(&otherwise), "crcncnccrrccrcc");
        assert!(
            verdicts(&SectionResults::default())
                .chars()
                .all(|c| c == '-')
        );
    }

    #[test]
    fn a_claim_that_is_not_comparable_names_the_reason() {
        let table = table(&measured(200e3, 30e3, [1.2, 110.0, 1.8, 0.5]));
        assert!(table.contains(FASTER_CPUS), "{table}");
    }
}
