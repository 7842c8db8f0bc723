//! Part 2: a few long requests among many short ones, with preemption off and on.
//!
//! One vCPU; one request in 200 burns 25 ms of CPU, the others 25 µs, all at the same level.
//! Without preemption a request that arrives during a long request waits until the long request
//! ends. A run without long requests shows the room for gains and the overhead of a request on this
//! machine. The overhead determines the rate that loads the server to 70 %.

use std::time::Duration;

use anyhow::Result;
use upshift_load::scenario::{LONG_SHARE, UNSET_TARGET};
use upshift_load::{GroupReport, Plan, Report};

use super::part::{Line, Part, Row};
use super::stage::Stage;
use upshift_report::number::integer;

const SHORT: Duration = Duration::from_micros(25);
const LONG: Duration = Duration::from_millis(25);
const LEVEL: u8 = 32;
/// Load of the server, overhead included.
const LOAD: f64 = 0.7;
/// Requests per second that would load a server without overhead to 70 %.
const RATE_WITHOUT_OVERHEAD: f64 = 4_700.0;

pub(super) fn run(stage: &mut Stage) -> Result<Part> {
    let awake = stage.keep_awake();
    let measure = |name: &str, preempt: &str, plan: Plan| {
        let server = stage.server("spin-server", &[LEVEL], &["--preempt", preempt])?;
        let plan = plan.with_target(server.addresses[0]);
        let report = stage.measure(name, &server, plan)?;
        server.stop(stage)?;
        anyhow::Ok(report)
    };
    let short = Plan::spin(
        UNSET_TARGET,
        (1.0 - LONG_SHARE) * RATE_WITHOUT_OVERHEAD,
        SHORT,
        stage.time(2500),
    );
    let alone = measure("no long requests", "off", short)?;
    let per_second = rate(alone.server_cpu());
    let mixed = Plan::spin(UNSET_TARGET, per_second, SHORT, stage.time(5000));
    let mixed = mixed.with_long_requests(LONG, LEVEL, LONG_SHARE);
    let off = measure("preemption off", "off", mixed.clone())?;
    let on = measure("preemption on", "on", mixed)?;
    drop(awake);
    Ok(part(
        per_second,
        stage.missing_privilege.as_deref(),
        [&alone, &off, &on],
    ))
}

/// Returns the requests per second that load a server to [`LOAD`], given the CPU time of a short
/// request in µs.
fn rate(short_us: f64) -> f64 {
    let [short, long] = [SHORT, LONG].map(|time| time.as_secs_f64() * 1e6);
    // An unknown time, or a time below the service time, means no overhead.
    let short_us = short_us.max(short);
    let mean = short_us + LONG_SHARE * (long - short);
    (LOAD * 1e6 / mean).round()
}

fn part(per_second: f64, missing_privilege: Option<&str>, [alone, off, on]: [&Report; 3]) -> Part {
    let mut lines = Vec::new();
    let pairs = on.groups.iter().zip(&off.groups);
    for ((with, without), name) in pairs.zip(["short requests", "long requests"]) {
        let mut compare = |percentile: &str, figure: fn(&GroupReport) -> f64| {
            let title = format!("{name}, {percentile}");
            let pair = ((with, "with preemption"), (without, "without"));
            lines.push(Line::compare(&title, pair.0, pair.1, figure));
        };
        compare("p50", |group| group.p50);
        if name.starts_with("short") {
            compare("p99", GroupReport::p99_with_unanswered);
        }
    }
    if let Some(missing_privilege) = missing_privilege {
        lines.push(Line::note(format!(
            "long requests are suspended later: {missing_privilege}"
        )));
    }
    let runs = [
        ("no long requests", alone, 2),
        ("preemption off", off, 1),
        ("preemption on", on, 0),
    ];
    let row = |class: usize| {
        runs.iter().filter_map(move |(name, report, colour)| {
            Some(match class {
                0 => Row::new(*name, report.groups.first()?, *colour),
                _ => Row {
                    colour: None,
                    ..Row::new(format!("{name}: long"), report.groups.get(class)?, 0)
                },
            })
        })
    };
    Part {
        title: "2. Long requests among short ones".into(),
        intro: format!(
            "A server on one vCPU gets {} requests per second, as from independent clients: {:.0} % load. A request costs 25 µs \
             of CPU, but one in 200 costs 25 ms; all have the same level, and the server does not know beforehand which are \
             long. With preemption, a long request is suspended in the middle of its poll while others wait. The plot \
             shows the short ones.",
            integer(per_second),
            100.0 * LOAD,
        ),
        lines,
        rows: row(0).chain(row(1)).collect(),
        palette: 'c',
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::part::Verdict;
    use crate::demo::sample;

    #[test]
    fn the_rate_accounts_for_the_overhead_of_a_request() {
        assert!((rate(f64::NAN) - RATE_WITHOUT_OVERHEAD).abs() < 50.0);
        assert_eq!(rate(10.0), rate(25.0));
        // With long requests of 25 ms, a request takes 250 µs on average: 2,800 requests per
        // second are 60 % of the rate without overhead.
        assert!(rate(125.0) < 0.65 * RATE_WITHOUT_OVERHEAD);
    }

    #[test]
    fn short_and_long_requests_have_separate_verdicts() {
        let off = sample(&[[50.0, 30_000.0, 40_000.0], [30_000.0; 3]]);
        let on = sample(&[[40.0, 90.0, 200.0], [60_000.0; 3]]);
        let part = part(
            4000.0,
            Some("no SCHED_FIFO"),
            [&sample(&[[30.0; 3]]), &off, &on],
        );
        let verdicts: Vec<_> = part.lines.iter().map(|line| line.verdict).collect();
        use Verdict::{Better, Note, Worse};
        assert_eq!(verdicts, [Better, Better, Worse, Note]);
        assert_eq!(part.rows.len(), 5);
    }
}
