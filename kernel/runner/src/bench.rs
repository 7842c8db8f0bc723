//! Benchmarks of the kernel. Most figures are numbers of instructions, taken on a QEMU machine
//! whose clock counts instructions (`-icount`). A few figures use the host's clock.
//!
//! A figure is a line `figure: NAME: NUMBER` of a program or of the kernel's own measurements.
//! Lines of the same name are repetitions.

use std::process::ExitCode;
use std::time::Duration;

use crate::build::{self, Image};
use crate::qemu::{self, Machine};

/// Time of one round through the ring of pipes on QEMU, in milliseconds, as published for another
/// system (`ring.rs` of the user programs).
const PUBLISHED_RING: f64 = 1097.0;
/// Configurations in which the cost of a request is measured: the number of connections, and the
/// order n of the n × n matrices.
const REQUESTS: [(u32, u32); 2] = [(1, 1), (16, 8)];
/// Time for which requests are counted, in virtual milliseconds. Under `-icount` a virtual
/// millisecond is a million instructions.
const MILLIS: u32 = 100;
/// Index, in the line `matrix: …`, of the word that holds the time of a request in nanoseconds. An
/// instruction takes one nanosecond.
const NANOS: usize = 17;
/// Number of runs of the ring by the host's clock.
const RINGS: usize = 5;
/// Time limit of a machine.
const LIMIT: Duration = Duration::from_secs(120);

/// The numbers of one name, in ascending order.
struct Figure {
    name: String,
    numbers: Vec<u64>,
}

pub(crate) fn run(isolated: bool) -> Result<ExitCode, String> {
    let image = if isolated {
        build::isolated()?
    } else {
        build::image()?
    };
    println!("release profile as shipped: overflow checks on; one hart; instructions");
    println!("{:<52} {:>10} {:>10}", "", "min", "median");
    let kernel = boot(&image, true, "selftest=figures")?;
    let programs = boot(&image, true, "init=figures")?;
    for figure in figures(&(kernel + &programs)) {
        let (name, numbers) = (figure.name, figure.numbers);
        println!(
            "{name:<52} {:>10} {:>10}",
            numbers[0],
            numbers[numbers.len() / 2]
        );
    }
    for (connections, n) in REQUESTS {
        let name = format!("request of the matrix server, {connections} x, {n} x {n}");
        let cost = request(&image, connections, n)?;
        println!("{name:<52} {cost:>10} {cost:>10}");
    }
    ring(&image)
}

/// Returns the number of instructions per request to the matrix server, including those of the
/// clients. The server uses coroutines. Each client sends its next request when it has the reply,
/// and all requests have the same level.
fn request(image: &Image, connections: u32, n: u32) -> Result<u64, String> {
    let arguments = format!("init=matrix with=coroutines,{connections},{n},1,0,{MILLIS},1");
    let output = boot(image, true, &arguments)?;
    let mut lines = output.lines();
    let nanos = lines.find_map(|line| line.strip_prefix("matrix: ")?.split(' ').nth(NANOS));
    let nanos = nanos.and_then(|nanos| nanos.parse().ok());
    nanos.ok_or_else(|| format!("{output}\nthe server reports no cost of a request"))
}

fn ring(image: &Image) -> Result<ExitCode, String> {
    // A tick is 100 instructions under `-icount`, and always 100 ns.
    let instructions = ticks_of_round(&boot(image, true, "init=ring")?)? * 100;
    let mut times = Vec::new();
    for _ in 0..RINGS {
        let ticks = ticks_of_round(&boot(image, false, "init=ring")?)?;
        times.push(ticks as f64 / 10_000.0);
    }
    times.sort_by(f64::total_cmp);
    println!("\nring of pipes, 3,600 coroutines, one round: {instructions} instructions");
    println!(
        "by the clock, one hart: min {:.1} ms, median {:.1} ms of {RINGS} (published: \
         {PUBLISHED_RING:.0} ms)",
        times[0],
        times[RINGS / 2]
    );
    Ok(ExitCode::SUCCESS)
}

fn ticks_of_round(output: &str) -> Result<u64, String> {
    let mut words = output
        .lines()
        .filter_map(|line| line.strip_prefix("ring: one round "));
    let ticks = words.next().and_then(|line| line.split(' ').next());
    ticks
        .and_then(|ticks| ticks.parse().ok())
        .ok_or_else(|| format!("{output}\nthe ring has completed no round"))
}

fn boot(image: &Image, icount: bool, arguments: &str) -> Result<String, String> {
    let machine = Machine {
        icount,
        ..Machine::new(1, arguments)
    };
    let outcome = qemu::run(image, &machine, LIMIT)?;
    match outcome.status {
        Some(0) => Ok(outcome.output),
        status => Err(format!(
            "{}\n`{arguments}` has ended with {status:?}",
            outcome.output
        )),
    }
}

/// Returns the figures of an output, in the order in which their names first appear.
fn figures(output: &str) -> Vec<Figure> {
    let mut figures: Vec<Figure> = Vec::new();
    let lines = output
        .lines()
        .filter_map(|line| line.strip_prefix("figure: "));
    for (name, number) in lines.filter_map(|line| line.rsplit_once(": ")) {
        let Ok(number) = number.trim().parse() else {
            continue;
        };
        match figures.iter_mut().find(|figure| figure.name == name) {
            Some(figure) => figure.numbers.push(number),
            None => figures.push(Figure {
                name: name.to_owned(),
                numbers: vec![number],
            }),
        }
    }
    for figure in &mut figures {
        figure.numbers.sort_unstable();
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_have_one_name() {
        let figures = figures("x\nfigure: a: 3\nfigure: b: 1\nfigure: a: 2\nfigure: a: ?\n");
        assert_eq!(figures.len(), 2);
        assert_eq!(figures[0].numbers, [2, 3]);
        assert_eq!(figures[1].name, "b");
    }

    #[test]
    fn a_ring_that_stops_is_an_error() {
        assert_eq!(ticks_of_round("ring: one round 70 ticks\n"), Ok(70));
        assert!(ticks_of_round("ring: 3600 coroutines").is_err());
    }
}
