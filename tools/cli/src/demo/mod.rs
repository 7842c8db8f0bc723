//! `upshift demo`: a short version of the benchmarks in three parts. Each result line gets a
//! verdict, and the demo ends by writing one HTML report.
//!
//! | module | concern |
//! |---|---|
//! | `args`, `run` | the flags; runs the parts, and repeats a part that other programs disturbed |
//! | `stage` | places the processes on CPUs, ends all child processes, and measures |
//! | `levels`, `preemption`, `processes` | the parts |
//! | `part` | the result of a part (its runs, and lines with verdicts), and how it is printed |
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

/// Creates a report of several classes, each given by its p50, p99 and p99.9.
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
