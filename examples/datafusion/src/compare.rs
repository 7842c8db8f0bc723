//! Compares all modes in interleaved rounds, with a server process for each mode and round.

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::load::{self, Measurements};
use crate::mode::Mode;

struct Server {
    process: Child,
    address: SocketAddr,
}

impl Server {
    fn start(mode: Mode) -> Result<Server, Box<dyn Error>> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(["serve", mode.name()])
            .stdout(Stdio::piped())
            .spawn()?;
        let output = process.stdout.take().expect("piped above");
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let address = line
            .trim()
            .strip_prefix("listening on ")
            .unwrap_or_default();
        let address = address
            .parse()
            .map_err(|_| format!("{}: {line:?}", mode.name()));
        match address {
            Ok(address) => Ok(Server { process, address }),
            Err(error) => {
                process.kill()?;
                Err(error.into())
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have ended by itself.
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

/// Measures all modes. For each mode, prints the medians over the rounds, and the ratio of the
/// mode's p99 to tokio's p99 in the same round.
pub(crate) fn run(rounds: u64, length: Duration) -> Result<(), Box<dyn Error>> {
    let mut measurements: [Vec<Measurements>; Mode::ALL.len()] =
        std::array::from_fn(|_| Vec::new());
    let mut report = None;
    for _ in 0..rounds {
        for (mode, measurements) in Mode::ALL.into_iter().zip(&mut measurements) {
            let server = Server::start(mode)?;
            let mut connection = TcpStream::connect(server.address)?;
            let body = load::get(&mut connection, "/reports")?;
            if *report.get_or_insert_with(|| body.clone()) != body {
                return Err(format!("{}: the report differs", mode.name()).into());
            }
            measurements.push(load::run(server.address, length)?);
        }
    }
    println!("| mode | p50 µs | p99 µs (range) | p99 / tokio's | reports/s |");
    println!("|---|---|---|---|---|");
    for (mode, rounds) in Mode::ALL.into_iter().zip(&measurements) {
        let micros = |percent| {
            let latency =
                |measurements: &Measurements| measurements.percentile(percent).as_micros() as f64;
            rounds.iter().map(latency).collect::<Vec<_>>()
        };
        let p99 = micros(99);
        let min = p99.iter().copied().fold(f64::INFINITY, f64::min);
        let max = p99.iter().copied().fold(0.0, f64::max);
        let tokio = measurements[0]
            .iter()
            .map(|measurements| measurements.percentile(99).as_micros() as f64);
        let ratios = p99.iter().zip(tokio).map(|(ours, tokio)| ours / tokio);
        println!(
            "| `{}` | {:.0} | {:.0} ({min:.0}–{max:.0}) | {:.3} | {:.1} |",
            mode.name(),
            median(micros(50)),
            median(p99.clone()),
            median(ratios.collect()),
            median(
                rounds
                    .iter()
                    .map(|measurements| measurements.reports)
                    .collect()
            ),
        );
    }
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}
