//! Runs with preemption: where one fails the demo goes on, and the report says which, and why.

use anyhow::Result;
use upshift_elevate::{Priority, Rights};
use upshift_load::scenario::CLIENT_PRIORITY;
use upshift_load::{GroupReport, Report, SpinPlan};

use super::bench::{Bench, keep_going, server_flags, spin_flags};
use upshift_report::plot::{COLOURS, Look, Plot};

use crate::demo::report::Finding;
use crate::load;

/// The report of `measure`, or what the demo's report says instead of it. An interruption is an error.
pub(crate) fn report(measure: impl FnOnce() -> Result<Report>) -> Result<Result<Report, Finding>> {
    Ok(keep_going(measure())?
        .and_then(without_errors)
        .map_err(|why| Finding::failed(format!("The run with preemption failed: {why}."))))
}

/// Adds the latencies of a run as a curve, dashed if the others are held against it (colour 2).
pub(crate) fn add(plot: &mut Plot, name: &str, group: &GroupReport, colour: usize) {
    let look = if colour == 2 {
        Look::DashedCurve
    } else {
        Look::Curve
    };
    plot.add(name, look, COLOURS[colour], group.curve.iter().copied());
}

/// The commands that repeat a run with preemption: the server that listens at `listen`, and the client with `load`.
pub(crate) fn commands(bench: &Bench, listen: &str, quantum: &str, load: &SpinPlan) -> Vec<String> {
    vec![
        "# preemption on; for the other run --preempt off".into(),
        format!(
            "upshift spin-server --listen {listen} {} {} & SERVER=$!; sleep 1",
            spin_flags("on", quantum).join(" "),
            server_flags(&bench.placement.server).join(" ")
        ),
        format!(
            "upshift load spin --connect 127.0.0.1:7000 {}{} --server-pid $SERVER",
            load::flags(load),
            bench.placement.client_flag()
        ),
        "kill $SERVER; wait $SERVER".into(),
    ]
}

/// May this process use SCHED_FIFO? Costs one short-lived thread.
pub(crate) fn may_elevate() -> bool {
    Priority::new(CLIENT_PRIORITY).is_ok_and(|highest| Rights::probe().require(highest).is_ok())
}

/// A report whose connections all held.
fn without_errors(report: Report) -> Result<Report, String> {
    match report.total.errors {
        0 => Ok(report),
        count => Err(format!(
            "{count} connections or replies failed; the first: {}",
            report.total.first_error.as_deref().unwrap_or("no details")
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::sample;

    #[test]
    fn a_report_with_errors_is_no_result() {
        assert!(without_errors(sample(&[[1.0; 3]])).is_ok());
        let mut broken = sample(&[[1.0; 3]]);
        broken.total.errors = 2;
        broken.total.first_error = Some("connection lost".into());
        let why = without_errors(broken).unwrap_err();
        assert!(why.contains("2 connections") && why.contains("connection lost"));
    }

    #[test]
    fn a_run_that_fails_becomes_a_finding() {
        let found = report(|| anyhow::bail!("the server died")).unwrap();
        let text = found.unwrap_err().text;
        assert!(text.contains("the server died"), "{text}");
    }
}
