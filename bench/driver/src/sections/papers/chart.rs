//! Reproduces the throughput chart of the published slides: plaintext servers by number of
//! requests, for C connections and a server on L CPUs. The load comes from `ab` (a connection for
//! each request, as published) and from our client (persistent connections, for the duration of a
//! run).

use std::process::Command;

use upshift_load::child::{Child, pin};
use upshift_load::cpu::{Reading, cpu_time_of_ended_children};
use upshift_report::Table;

use super::Selection;
use crate::machine::{LoadMonitor, Usage};
use crate::measure::{Drive, Load as Closed, Measured};
use crate::options::Options;
use crate::peers::{
    BuiltPrograms, GO_HTTP, KURO, Program, Programs, SMOL, THREADS, TOKIO, TOKIO_MT, UPSHIFT,
    UPSHIFT_CPP,
};
use crate::results::{Run, SectionResults};
use crate::rounds;
use crate::section::Section;
use crate::sections::closed::{checked_servers, page};
use crate::server::Server;
use crate::table::format_value;

/// Numbers of concurrent connections (C) and of CPUs of the server (L).
pub(super) const SHAPES: [(usize, usize); 4] = [(100, 1), (100, 2), (1000, 1), (1000, 2)];
/// Numbers of requests, as published.
pub(super) const REQUESTS: [usize; 4] = [2_000, 6_000, 10_000, 20_000];

/// Servers, each with its label in the tables.
pub(super) const SERVERS: [(&str, &str); 7] = [
    (UPSHIFT, "upshift"),
    (UPSHIFT_CPP, "upshift, C++"),
    (KURO, "Kuro's design"),
    ("tokio", "tokio"),
    (SMOL, "smol (async-std's successor)"),
    (GO_HTTP, "Go, net/http"),
    (THREADS, "threads"),
];

fn name((connections, cpus): (usize, usize)) -> String {
    format!("c{connections}-l{cpus}")
}

pub(super) fn row_names() -> Vec<String> {
    SHAPES.map(name).into()
}

/// Returns the name of the case in which `ab` sends `requests` requests.
pub(super) fn ab_case((connections, cpus): (usize, usize), requests: usize) -> String {
    format!("C = {connections}, L = {cpus}, ab, {requests} requests")
}

fn client_case((connections, cpus): (usize, usize)) -> String {
    format!("C = {connections}, L = {cpus}, our client")
}

fn programs(built: &BuiltPrograms, servers: &Programs, cpus: usize) -> Programs {
    let program = |server: &str| {
        let name = match (server, cpus) {
            ("tokio", 1) => TOKIO,
            ("tokio", _) => TOKIO_MT,
            (other, _) => other,
        };
        let (_, program) = servers.iter().find(|(id, _)| id == name)?;
        if cpus == 1 {
            return Some(program.clone());
        }
        let count = cpus.to_string();
        let with_option = |option: &str| {
            let mut program = program.clone();
            program.args.extend([option.to_owned(), count.clone()]);
            program
        };
        Some(match name {
            UPSHIFT => built.upshift(&["plaintext-server", "--vcpus", &count, "--pin", "0,1"])?,
            UPSHIFT_CPP => Program::new(program.file.clone(), &["plaintext", "--vcpus", &count]),
            KURO => with_option("--vcpus"),
            THREADS => program.clone(),
            _ => with_option("--workers"),
        })
    };
    let entry = |(server, _): (&str, &str)| Some((server.to_owned(), program(server)?));
    SERVERS.into_iter().filter_map(entry).collect()
}

pub(super) fn run(
    results: &mut SectionResults,
    options: &Options,
    built: &BuiltPrograms,
    selection: &Selection<'_>,
) {
    let servers = checked_servers(results, built, Section::Papers, false);
    let has_ab = Command::new("ab").arg("-V").output().is_ok();
    if has_ab {
        let command = "`ab -q -n REQUESTS -c CONNECTIONS URL`".to_owned();
        if !results.commands.contains(&command) {
            results.commands.push(command);
        }
    } else {
        results.note("ab is not installed: apt-get install -y apache2-utils".into());
    }
    for shape in SHAPES
        .into_iter()
        .filter(|&shape| selection.has(&name(shape)))
    {
        if options.quick && shape.0 != 100 && options.rows.is_empty() {
            continue;
        }
        let (connections, cpus) = shape;
        let programs = programs(built, &servers, cpus);
        for (name, program) in programs
            .iter()
            .filter(|_| cpus > 1 && connections == SHAPES[0].0)
        {
            results.note_command(&format!("{name}, L = {cpus}"), program);
        }
        for requests in REQUESTS.into_iter().filter(|_| has_ab) {
            if options.quick && requests != REQUESTS[0] {
                continue;
            }
            let load = Ab {
                requests,
                connections,
                cpus,
            };
            let entries = rounds::entries(&programs, |_| Some(load));
            let case = ab_case(shape, requests);
            rounds::run(results, &case, &entries, options);
        }
        let mut load = Closed::closed(page("/", &[], 1), connections, options);
        load.is_pinned = cpus == 1;
        let entries = rounds::entries(&programs, |_| Some(load.clone()));
        rounds::run(results, &client_case(shape), &entries, options);
    }
}

/// A run of `ab`. A server with one CPU is pinned to CPU 0, and `ab` to CPU 1.
#[derive(Clone, Copy)]
struct Ab {
    requests: usize,
    connections: usize,
    cpus: usize,
}

impl Drive for Ab {
    fn measure(&self, program: &Program, _round: usize) -> Result<Measured, String> {
        let is_pinned = self.cpus == 1;
        let server = Server::start(program, &["127.0.0.1:0".into()], is_pinned.then_some(0))?;
        let mut command = Command::new("ab");
        let numbers = [self.requests, self.connections].map(|number| number.to_string());
        command.args(["-q", "-n", &numbers[0], "-c", &numbers[1]]);
        command.arg(format!("http://{}/", server.addresses[0]));
        if is_pinned {
            pin(&mut command, 1);
        }
        let used = || Reading::for_process(server.pid()).map_err(|e| e.to_string());
        let (monitor, child_time_before, before) =
            (LoadMonitor::start(), cpu_time_of_ended_children(), used()?);
        let mut child = Child::start(&mut command).map_err(|e| format!("cannot start ab: {e}"))?;
        let text = child.rest();
        let status = child.wait().map_err(|e| e.to_string())?;
        let cpu = before.used_until(&used()?);
        let Usage { time, busy, steal } = monitor.stop();
        if !status.success() {
            return Err(format!("ab ended with {status}"));
        }
        let measured_time = (cpu_time_of_ended_children().saturating_sub(child_time_before)
            + cpu.total())
        .as_secs_f64();
        let us_per_request =
            |part: std::time::Duration| part.as_secs_f64() * 1e6 / self.requests as f64;
        // A run of a few milliseconds is shorter than the clock tick by which the time of other
        // programs is counted.
        let [foreign, steal] = if self.requests < 10_000 {
            [0.0; 2]
        } else {
            [
                (busy[0] + busy[1] - measured_time / time.as_secs_f64()) / 2.0,
                steal,
            ]
        };
        let all = Run {
            user: us_per_request(cpu.user),
            sys: us_per_request(cpu.sys),
            server_busy: cpu.total().as_secs_f64() / time.as_secs_f64(),
            foreign: foreign.max(0.0),
            steal,
            ..parse_ab(&text, self.requests)?
        };
        Ok(Measured {
            all,
            groups: Vec::new(),
        })
    }
}

fn parse_ab(text: &str, requests: usize) -> Result<Run, String> {
    let number = |head: &str| -> Option<f64> {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(head));
        line?.split_whitespace().next()?.parse().ok()
    };
    let complete = number("Complete requests:").ok_or("ab printed no figures")?;
    let failed =
        number("Failed requests:").unwrap_or(0.0) + number("Non-2xx responses:").unwrap_or(0.0);
    if failed > 0.0 || complete < requests as f64 {
        return Err(format!("ab: {complete} requests complete, {failed} failed"));
    }
    let us = |head| number(head).unwrap_or(0.0) * 1e3;
    Ok(Run {
        per_second: number("Requests per second:").ok_or("ab printed no rate")?,
        replies: requests as u64,
        p50: us("50%"),
        p99: us("99%"),
        ..Run::default()
    })
}

/// Formats a table of each shape: a row for each server, a column for each number of requests.
pub(super) fn tables(section: &SectionResults) -> String {
    SHAPES
        .into_iter()
        .map(|shape| table(section, shape))
        .collect()
}

fn table(section: &SectionResults, shape: (usize, usize)) -> String {
    let (connections, cpus) = shape;
    let title = format!(
        "### Plaintext, C = {connections} connections, L = {cpus}\n\nThousands of requests per second. Under `ab` by number of requests, \
         with a connection for each; under our client on connections that stay open{}",
        if cpus == 1 {
            "."
        } else {
            ". Server and client share the two CPUs."
        }
    );
    let mut heads = vec!["<server".to_owned()];
    heads.extend(REQUESTS.map(|requests| format!("ab, {requests}")));
    heads.extend(["our client".to_owned(), "server CPU µs, ab".to_owned()]);
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let mut table = Table::new(title, &heads);
    let last = ab_case(shape, REQUESTS[REQUESTS.len() - 1]);
    for (server, label) in SERVERS {
        let rate = |case: &str| {
            let rate = section.median(case, server, |run| run.per_second / 1e3);
            format_value(rate, 1)
        };
        let mut cells: Vec<String> = REQUESTS
            .map(|requests| rate(&ab_case(shape, requests)))
            .into();
        cells.push(rate(&client_case(shape)));
        cells.push(format_value(section.median(&last, server, Run::cpu), 1));
        if cells.iter().any(|cell| cell != "–") {
            table.row(std::iter::once(label.to_owned()).chain(cells));
        }
    }
    if table.rows.is_empty() {
        return String::new();
    }
    table.markdown()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns results in which the rates of Kuro's design and of Go are multiples of the rate of
    /// all other servers.
    pub(in crate::sections::papers) fn measured(kuro: f64, go: f64) -> SectionResults {
        let mut section = SectionResults::default();
        for shape in SHAPES {
            let cases = REQUESTS.map(|requests| ab_case(shape, requests));
            for case in cases.into_iter().chain([client_case(shape)]) {
                for (server, _) in SERVERS {
                    let factor = match server {
                        KURO => kuro,
                        GO_HTTP => go,
                        _ => 1.0,
                    };
                    let run = Run {
                        per_second: 20_000.0 * factor,
                        ..Run::default()
                    };
                    section.record(&case, server, run);
                }
            }
        }
        section
    }

    const OUTPUT: &str = "\
Concurrency Level:      100
Time taken for tests:   0.100 seconds
Complete requests:      2000
Failed requests:        0
Requests per second:    20012.21 [#/sec] (mean)
Percentage of the requests served within a certain time (ms)
  50%      4
  99%     11
";

    #[test]
    fn output_of_ab_is_parsed() {
        let run = parse_ab(OUTPUT, 2000).unwrap();
        assert_eq!((run.per_second, run.p50, run.p99), (20012.21, 4e3, 11e3));
        assert!(parse_ab(OUTPUT, 2001).is_err());
        let failed = OUTPUT.replace("requests:        0", "requests:        3");
        assert!(parse_ab(&failed, 2000).unwrap_err().contains("3 failed"));
        let refused = format!("{OUTPUT}Non-2xx responses:      2000\n");
        assert!(parse_ab(&refused, 2000).is_err());
        assert!(parse_ab("", 1).is_err());
    }

    #[test]
    fn the_table_has_a_row_per_server_and_a_column_per_number_of_requests() {
        let tables = tables(&measured(1.5, 0.5));
        assert!(
            tables.contains("| Kuro's design | 30.0 | 30.0 | 30.0 | 30.0 | 30.0 |"),
            "{tables}"
        );
        assert!(tables.contains("C = 1000 connections, L = 2"));
    }
}
