//! `upshift demo`: six experiments in a minute and a half, tables on the way, a verdict and one HTML file at the end.
//!
//! | module | concern |
//! |---|---|
//! | `args`, `run` | the flags; the tour |
//! | `children` | child processes that never outlive the demo |
//! | `bench` | placement on CPUs, one measurement |
//! | `progress` | the bar |
//! | `coroutines_vs_threads`, `levels`, `million`, `long_requests`, `endless`, `processes` | the experiments |
//! | `report` | the result as data, on the terminal and as HTML |
//! | `timeline` | a picture of a server at work |
//! | `preempted` | runs with preemption, which may lack the right to it |

mod args;
mod bench;
mod children;
mod coroutines_vs_threads;
mod endless;
mod levels;
mod long_requests;
mod million;
mod preempted;
mod processes;
mod progress;
mod report;
mod run;
mod timeline;

pub(crate) use args::DemoArgs;
pub(crate) use run::demo;

/// For tests: a report of one class after the other, given as p50, p99, p99.9.
#[cfg(test)]
pub(crate) fn sample(classes: &[[f64; 3]]) -> upshift_load::Report {
    let group = |&[p50, p99, p999]: &[f64; 3]| upshift_load::GroupReport {
        label: "short".into(),
        connections: 32,
        requests: 1000,
        per_second: 1000.0,
        errors: 0,
        first_error: None,
        p50,
        p90: p50,
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
