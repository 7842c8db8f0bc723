//! Web servers whose pages take 500 µs now and then, asked for short ones by `wrk`, by `h2load` and by our own client.
//!
//! The long pages are asked for beside that, in an open loop at a rate of their own, by our client, so that each class has its
//! latencies. All clients share CPU 1; ours has precedence there, and needs little of it.

use std::process::{Command, Output};
use std::time::Duration;

use upshift_load::child::pin;
use upshift_load::{Group, Pace, Plan, run as drive};

use super::{AROUND, WARM_UP, class_row};
use crate::measure::{Drive, Measured, observe};
use crate::options::{Options, bench_dir};
use crate::peers::Program;
use crate::results::Run;
use crate::sections::closed::page;
use crate::server::Server;

/// Some µs.
const SHORT: &str = "/matrix?n=4";
/// Some 500 µs.
const LONG: &str = "/matrix?n=96";
/// Long pages per second: some twentieth of a CPU.
const LONG_RATE: f64 = 100.0;
/// Short pages per second of the open loop.
const RATE: f64 = 5_000.0;
/// The priority of our client.
const CLIENT: u8 = 45;

/// What asks for short pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tool {
    Wrk,
    H2load,
    /// Our own client.
    Open,
}

impl Tool {
    pub(super) const ALL: [Tool; 3] = [Tool::Wrk, Tool::H2load, Tool::Open];

    pub(super) fn case(self) -> &'static str {
        match self {
            Tool::Wrk => {
                "HTTP, wrk, 32 connections in a closed loop, beside 100 requests of 500 µs a second"
            }
            Tool::H2load => {
                "HTTP, h2load, 32 connections in a closed loop, beside 100 requests of 500 µs a second"
            }
            Tool::Open => "HTTP, open loop of 5 k/s, beside 100 requests of 500 µs a second",
        }
    }
}

/// One run.
#[derive(Clone)]
pub(super) struct Web {
    tool: Tool,
    time: Duration,
    keep_disturbed: bool,
}

impl Web {
    pub(super) fn new(tool: Tool, options: &Options) -> Web {
        // The tools count in seconds.
        let time = Duration::from_secs(options.time.as_secs().clamp(1, 2));
        Web {
            tool,
            time,
            // What the tools use of their CPU looks like that of others.
            keep_disturbed: options.quick || tool != Tool::Open,
        }
    }

    pub(super) fn takes(&self) -> Duration {
        AROUND + WARM_UP + self.time
    }

    fn plan(&self, server: &Server, path: &str, connections: usize, per_second: f64) -> Plan {
        let group = Group::new(server.addresses[0], connections, path);
        let mut plan = Plan::new(vec![group], page(path, &[], 1), self.time);
        plan.pace = Pace::OpenRate { per_second };
        plan.warmup = WARM_UP;
        plan.patience = plan.warmup + plan.duration + Duration::from_secs(10);
        plan.pin = Some(1);
        plan.fifo = Some(CLIENT);
        plan.server_pid = Some(server.pid());
        plan
    }

    fn short(&self, server: &Server) -> Result<Run, String> {
        let url = format!("http://{}{SHORT}", server.addresses[0]);
        let seconds = self.time.as_secs().to_string();
        match self.tool {
            Tool::Wrk => {
                let script = bench_dir().join("peers/wrk/report.lua");
                let mut command = Command::new("wrk");
                command.args(["-t1", "-c32", "-d", &seconds, "-s"]);
                wrk(&finish(command.arg(script).arg(url))?)
            }
            Tool::H2load => {
                let log = std::env::temp_dir().join(format!("upshift-h2load-{}", server.pid()));
                let mut command = Command::new("h2load");
                command.args(["--h1", "-t1", "-c32", "-D", &seconds]);
                let done = finish(command.arg("--log-file").arg(&log).arg(url));
                let lines = std::fs::read_to_string(&log).map_err(|e| e.to_string());
                let _ = std::fs::remove_file(log);
                h2load(&done.and(lines)?, self.time)
            }
            Tool::Open => {
                let plan = self.plan(server, SHORT, 32, RATE);
                Ok(observe(server, true, None, || drive(&plan))?.all)
            }
        }
    }
}

impl Drive for Web {
    fn measure(&self, program: &Program, _round: usize) -> Result<Measured, String> {
        let server = Server::start(program, &["127.0.0.1:0".into()], Some(0))?;
        let long = self.plan(&server, LONG, 4, LONG_RATE);
        std::thread::scope(|scope| {
            let long = scope.spawn(|| observe(&server, true, None, || drive(&long)));
            let short = self.short(&server);
            let mut measured = long.join().map_err(|_| "the client panicked")??;
            let short = Run {
                server_busy: measured.all.server_busy,
                foreign: measured.all.foreign,
                ..short?
            };
            measured.groups = vec![short.clone(), measured.all];
            measured.all = short;
            Ok(measured)
        })
    }

    fn keep_disturbed(&self) -> bool {
        self.keep_disturbed
    }

    fn rows(&self, name: &str, measured: Measured) -> Vec<(String, Run)> {
        let names = ["short", "long"].map(|class| class_row(name, class));
        names.into_iter().zip(measured.groups).collect()
    }
}

fn finish(command: &mut Command) -> Result<String, String> {
    pin(command, 1);
    let name = command.get_program().to_string_lossy().into_owned();
    let Output { status, stdout, .. } = command
        .output()
        .map_err(|e| format!("cannot start {name} ({e}): `cargo xtask setup` installs it"))?;
    if !status.success() {
        return Err(format!("{name} failed: {status}"));
    }
    Ok(String::from_utf8_lossy(&stdout).into_owned())
}

/// What `report.lua` prints: replies, µs, errors, and latencies in µs.
fn wrk(text: &str) -> Result<Run, String> {
    let line = text.lines().find_map(|line| line.strip_prefix("report "));
    let values: Option<Vec<f64>> = line
        .into_iter()
        .flat_map(str::split_whitespace)
        .map(|word| word.parse().ok())
        .collect();
    let Some([replies, micros, errors, p50, p99, p999]) = values.as_deref() else {
        return Err("wrk did not run its script".into());
    };
    Ok(Run {
        per_second: replies / micros * 1e6,
        p50: *p50,
        p99: *p99,
        p999: *p999,
        errors: *errors as u64,
        first_error: (*errors > 0.0).then(|| "wrk counted errors".into()),
        ..Run::default()
    })
}

/// Lines of a time, a status and a latency in µs.
fn h2load(log: &str, time: Duration) -> Result<Run, String> {
    let words = log.lines().map(|line| {
        let mut words = line.split_whitespace().skip(1);
        Some((words.next()? == "200", words.next()?.parse::<f64>().ok()?))
    });
    let replies: Option<Vec<(bool, f64)>> = words.collect();
    let replies = replies
        .filter(|replies| !replies.is_empty())
        .ok_or("h2load logged nothing that can be read")?;
    let errors = replies.iter().filter(|(ok, _)| !ok).count() as u64;
    let mut latencies: Vec<f64> = replies.iter().map(|(_, micros)| *micros).collect();
    latencies.sort_by(f64::total_cmp);
    let quantile = |q: f64| latencies[((latencies.len() - 1) as f64 * q) as usize];
    Ok(Run {
        per_second: latencies.len() as f64 / time.as_secs_f64(),
        p50: quantile(0.5),
        p99: quantile(0.99),
        p999: quantile(0.999),
        errors,
        first_error: (errors > 0).then(|| "h2load logged a status other than 200".into()),
        ..Run::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_tools_print_is_read() {
        let run = wrk("Running\nreport 2000 1000000 0 120 450 900\n").unwrap();
        assert_eq!((run.per_second, run.p99, run.errors), (2000.0, 450.0, 0));
        assert!(wrk("Requests/sec: 3").is_err());
        let run = h2load(
            "1\t200\t100\n2\t200\t300\n3\t503\t200\n",
            Duration::from_secs(1),
        )
        .unwrap();
        assert_eq!((run.per_second, run.p50, run.errors), (3.0, 200.0, 1));
        assert!(h2load("", Duration::from_secs(1)).is_err());
    }
}
