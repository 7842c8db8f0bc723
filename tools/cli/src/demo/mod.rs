//! `upshift demo`: the benchmarks' quick run of three parts, judged line by line, with one HTML
//! file at the end.
//!
//! | module | concern |
//! |---|---|
//! | `args`, `run` | the flags; the parts in their order, each repeated once if it was disturbed |
//! | `stage` | placement on CPUs, child processes that never outlive the demo, one measurement |
//! | `levels`, `preemption`, `processes` | the parts |
//! | `part` | the result of a part: runs, lines with verdicts; on the terminal |
//! | `page` | the report as HTML |

mod args;
mod levels;
mod page;
mod part;
mod preemption;
mod processes;
mod run;
mod stage;

pub(crate) use args::DemoArgs;
pub(crate) use run::demo;

/// Creates a report of several classes, each given as p50, p99, p99.9.
#[cfg(test)]
pub(crate) fn sample(classes: &[[f64; 3]]) -> upshift_load::Report {
    let group = |&[p50, p99, p999]: &[f64; 3]| upshift_load::GroupReport {
        label: "short".into(),
        connections: 32,
        requests: 1000,
        per_second: 1000.0,
        errors: 0,
        first_error: None,
        mean: p50,
        jitter: 0.0,
        p50,
        p90: p50,
        p95: p50,
        p99,
        p999,
        max: p999,
        unanswered: 0,
        oldest_unanswered: 0.0,
        send_lag_p99: 1.0,
        curve: vec![(0.5, p50), (0.99, p99)],
    };
    let groups: Vec<_> = classes.iter().map(group).collect();
    upshift_load::Report {
        seconds: 1.0,
        total: groups[0].clone(),
        groups,
        server_cpu_us: None,
        client_cpu_us: None,
    }
}
