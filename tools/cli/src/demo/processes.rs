//! Part 3: an urgent server, and a batch process that takes all the time of every CPU, without and
//! with the daemon.
//!
//! The server answers 1,000 requests per second at level 2 on one CPU; the batch has two coroutines
//! per CPU that compute at level 40 without end. To the kernel the two processes are equal. With
//! the daemon, both publish their levels, and the server runs first whenever it has work.

use anyhow::{Context, Result};
use upshift_load::scenario::{self, BurnReport, CLIENT_PRIORITY, URGENT_LEVEL};
use upshift_load::{GroupReport, Report};

use super::part::{Line, Part, Row};
use super::stage::{Interrupted, Stage};

struct Run {
    name: &'static str,
    load: Report,
    batch: Option<BurnReport>,
}

impl Run {
    /// Returns the batch's share of the CPU time that server and client left, 0 to 1.
    fn batch_share(&self) -> Option<f64> {
        let batch = self.batch.as_ref()?;
        let cpu_us_per_request = self.load.server_cpu() + self.load.client_cpu_us?;
        let used_cpus = cpu_us_per_request * self.load.total.per_second / 1e6;
        let share = batch.work / batch.seconds / (batch.cpus as f64 - used_cpus);
        Some(share).filter(|share| share.is_finite())
    }
}

pub(super) fn run(stage: &mut Stage) -> Result<Part> {
    let alone = measure(stage, "nothing else", false, false)?;
    let without = measure(stage, "a batch process", true, false)?;
    let with = match measure(stage, "a batch process, and the daemon", true, true) {
        Ok(run) => Ok(run),
        Err(error) if error.is::<Interrupted>() => return Err(error),
        Err(error) => Err(format!("no run with the daemon: {error:#}")),
    };
    Ok(part(
        stage.missing_privilege.as_deref(),
        alone,
        without,
        with,
    ))
}

fn measure(
    stage: &mut Stage,
    name: &'static str,
    with_batch: bool,
    with_daemon: bool,
) -> Result<Run> {
    let awake = (!with_batch).then(|| stage.keep_awake());
    let daemon = with_daemon.then(|| stage.start_daemon()).transpose()?;
    let run = load(
        stage,
        name,
        with_batch,
        if with_daemon { "required" } else { "off" },
    );
    let stopped = stage.stop_daemon(daemon);
    drop(awake);
    let run = run?;
    stopped.map(|()| run)
}

fn load(stage: &Stage, name: &'static str, with_batch: bool, board: &str) -> Result<Run> {
    let server = stage.server("spin-server", &[URGENT_LEVEL], &["--board", board])?;
    let batch = ["burn", "--json", "--board", board].map(str::to_owned);
    let batch = with_batch
        .then(|| stage.start_program(&batch, 1))
        .transpose()?;
    let mut plan = scenario::urgent(stage.time(3500)).with_target(server.addresses[0]);
    plan.fifo = stage.missing_privilege.is_none().then_some(CLIENT_PRIORITY);
    let load = stage.measure(name, &server, plan)?;
    let batch = batch
        .map(|(batch, _)| {
            let text = batch.stop(stage)?;
            serde_json::from_str(&text).with_context(|| format!("the batch printed `{text}`"))
        })
        .transpose()?;
    server.stop(stage)?;
    Ok(Run { name, load, batch })
}

fn part(
    missing_privilege: Option<&str>,
    alone: Run,
    without: Run,
    with: Result<Run, String>,
) -> Part {
    let mut lines = Vec::new();
    match &with {
        Err(why) => lines.push(Line::missing(why)),
        Ok(with) => {
            let [alone, without, group] = [&alone, &without, with].map(|run| &run.load.total);
            for (other, name) in [(without, "without"), (alone, "with no batch process")] {
                let this = (group, "with the daemon");
                lines.push(Line::compare(
                    "p99",
                    this,
                    (other, name),
                    GroupReport::p99_with_unanswered,
                ));
            }
            if let Some(share) = with.batch_share() {
                lines.push(Line::note(format!(
                    "With the daemon the batch process got {:.0} % of the CPU time that server and client left.",
                    100.0 * share
                )));
            }
        }
    }
    if let Some(missing_privilege) = missing_privilege {
        lines.push(Line::note(format!(
            "the daemon could only ask the batch process to yield, and the client waited for its CPU: {missing_privilege}"
        )));
    }
    let colours = [2, 1, 0].into_iter();
    let runs = [Some(alone), Some(without), with.ok()]
        .into_iter()
        .flatten();
    Part {
        title: "3. An urgent server beside a batch process".into(),
        intro: "Two processes. A server on one CPU gets 1,000 requests per second of 100 µs, at level 2. A batch process \
                computes on every CPU at level 40 and never waits. In the last run both have joined `upshift daemon`, \
                which gives the CPU to the process with the most urgent coroutine; the kernel is a stock one."
            .into(),
        lines,
        rows: runs
            .zip(colours)
            .map(|(run, colour)| Row::new(run.name, &run.load.total, colour))
            .collect(),
        palette: 'c',
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::part::Verdict;
    use crate::demo::sample;

    fn run(name: &'static str, p99: f64, work: f64) -> Run {
        let mut load = sample(&[[30.0, p99, 2.0 * p99]]);
        load.server_cpu_us = Some((100.0, 10.0));
        load.client_cpu_us = Some(90.0);
        Run {
            name,
            load,
            batch: Some(BurnReport {
                seconds: 2.0,
                work,
                cpus: 2,
            }),
        }
    }

    #[test]
    fn the_share_of_the_batch_refers_to_the_remaining_cpu_time() {
        // 1,000 requests per second of 200 µs leave 1.8 of two CPUs.
        let share = run("batch", 50.0, 3.6).batch_share().unwrap();
        assert!((share - 1.0).abs() < 1e-9);
    }

    #[test]
    fn the_daemon_has_verdicts_and_a_missing_privilege_is_noted() {
        let [alone, without] = [run("nothing", 50.0, 0.0), run("batch", 9000.0, 3.0)];
        let measured = part(None, alone, without, Ok(run("daemon", 90.0, 1.8)));
        let verdicts: Vec<_> = measured.lines.iter().map(|line| line.verdict).collect();
        assert_eq!(verdicts, [Verdict::Better, Verdict::Worse, Verdict::Note]);
        assert!(measured.lines[2].text.contains(" 50 %"));

        let [alone, without] = [run("nothing", 50.0, 0.0), run("batch", 9000.0, 3.0)];
        let failed = part(Some("no right"), alone, without, Err("no socket".into()));
        assert_eq!((failed.lines.len(), failed.rows.len()), (2, 2));
        assert!(failed.lines[1].text.contains("no right"));
    }
}
