//! The evaluation of the papers: the matrix server in four models, in tables of markdown.
//!
//! `KC`/`KT`: calls that wait are coroutines of the kernel, or kernel threads (a kernel with the
//! feature `kernel-threads`). `UC`/`UT`: the server has three coroutines for each connection, or
//! three threads. Time counts instructions, so every figure repeats exactly. One tick of the
//! clock is 100 instructions, a millisecond is a million.

use std::process::ExitCode;
use std::time::Duration;

use crate::build::{self, Image};
use crate::qemu::{self, Machine, Network};

const LIMIT: Duration = Duration::from_secs(300);

/// How long is measured, in milliseconds: in a closed loop, and in an open one.
const CLOSED: u32 = 200;
const OPEN: u32 = 1_000;

/// One way to build kernel and server.
struct Model<'a> {
    name: &'static str,
    image: &'a Image,
    server: &'static str,
}

/// A line of the program.
struct Point {
    who: String,
    count: u64,
    mean: u64,
    p99: u64,
    deviation: u64,
    pages: u64,
}

/// What is asked of a machine.
#[derive(Clone, Copy)]
struct Load {
    connections: u32,
    n: u32,
    levels: u32,
    period: u32,
    millis: u32,
    harts: u32,
}

/// Measures and prints; with `quick` fewer points.
pub(crate) fn run(quick: bool) -> Result<ExitCode, String> {
    let threads = build::with_kernel_threads()?;
    let coroutines = build::image()?;
    let models = [
        ("KCUC", &coroutines, "coroutines"),
        ("KCUT", &coroutines, "threads"),
        ("KTUC", &threads, "coroutines"),
        ("KTUT", &threads, "threads"),
    ];
    let models = models.map(|(name, image, server)| Model {
        name,
        image,
        server,
    });
    let (connections, orders): (&[u32], &[u32]) = match quick {
        true => (&[1, 16, 64], &[1, 20]),
        false => (&[1, 2, 4, 8, 16, 32, 64, 96, 128], &[1, 8, 12, 20]),
    };
    for &n in orders {
        closed(&models, connections, n)?;
    }
    for period in [100, 50] {
        open(&models, connections, period)?;
    }
    memory(&models)?;
    for model in [&models[0], &models[3]] {
        for harts in [1, 2, 4] {
            priorities(model, harts)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn heading(models: &[Model<'_>], title: &str) {
    println!("\n{title}\n");
    let names: String = models
        .iter()
        .map(|model| format!(" {} |", model.name))
        .collect();
    println!("| connections |{names}");
    println!("|---|{}", "---|".repeat(models.len()));
}

/// Each connection asks as soon as it is answered.
fn closed(models: &[Model<'_>], connections: &[u32], n: u32) -> Result<(), String> {
    heading(
        models,
        &format!("Instructions per request, {n} × {n}, closed loop, one hart:"),
    );
    for &connections in connections {
        let load = Load {
            connections,
            n,
            levels: 1,
            period: 0,
            millis: CLOSED,
            harts: 1,
        };
        let cells = cells(models, load, |point| {
            (u64::from(CLOSED) * 1_000_000 / point.count.max(1)).to_string()
        });
        println!("| {connections} |{cells}");
    }
    Ok(())
}

/// Each connection asks at set times.
fn open(models: &[Model<'_>], connections: &[u32], period: u32) -> Result<(), String> {
    heading(
        models,
        &format!(
            "Requests answered in a second; latency in µs (mean, p99), 20 × 20, every {period} ms, \
             one hart:"
        ),
    );
    for &connections in connections {
        let load = Load {
            connections,
            n: 20,
            levels: 1,
            period,
            millis: OPEN,
            harts: 1,
        };
        let cells = cells(models, load, |point| {
            format!("{}; {}, {}", point.count, point.mean, point.p99)
        });
        println!("| {connections} |{cells}");
    }
    Ok(())
}

/// A cell for each model.
fn cells(models: &[Model<'_>], load: Load, cell: impl Fn(&Point) -> String) -> String {
    let mut cells = String::new();
    for model in models {
        let text = match measure(model, load) {
            Ok(points) => cell(&points[0]),
            Err(error) => {
                eprintln!("{}: {error}", model.name);
                "fails".to_owned()
            }
        };
        cells += &format!(" {text} |");
    }
    cells
}

/// What connections take of memory.
fn memory(models: &[Model<'_>]) -> Result<(), String> {
    const FEW: u32 = 16;
    const MANY: u32 = 64;
    println!("\nMemory of a connection, both of its ends, its buffers and the client included:\n");
    println!("| model | bytes | connections in 26 MiB |\n|---|---|---|");
    for model in models {
        let pages = |connections| {
            let load = Load {
                connections,
                n: 1,
                levels: 1,
                period: 0,
                millis: 20,
                harts: 1,
            };
            measure(model, load).map(|points| points[0].pages)
        };
        let bytes = pages(MANY)?.saturating_sub(pages(FEW)?) * 4096 / u64::from(MANY - FEW);
        let most = (26 << 20) / bytes.max(1);
        println!("| {} | {bytes} | {most} |", model.name);
    }
    Ok(())
}

/// Connections of eight levels, more than one hart can serve.
fn priorities(model: &Model<'_>, harts: u32) -> Result<(), String> {
    let load = Load {
        connections: 128,
        n: 20,
        levels: 8,
        period: 25,
        millis: OPEN,
        harts,
    };
    println!(
        "\n{}, 128 connections of 8 levels, 20 × 20, every {} ms, harts: {harts}\n",
        model.name, load.period
    );
    println!("| level | answered in a second | mean, µs | p99 | standard deviation |");
    println!("|---|---|---|---|---|");
    for point in measure(model, load)?.iter().skip(1) {
        println!(
            "| {} | {} | {} | {} | {} |",
            point.who, point.count, point.mean, point.p99, point.deviation
        );
    }
    Ok(())
}

/// Boots a machine and reads what it has measured: all, then each level.
fn measure(model: &Model<'_>, load: Load) -> Result<Vec<Point>, String> {
    let Load {
        connections,
        n,
        levels,
        period,
        millis,
        harts,
    } = load;
    let server = model.server;
    let machine = Machine {
        cpu: "",
        smp: harts,
        icount: true,
        network: Network::No,
        arguments: format!(
            "init=matrix with={server},{connections},{n},{levels},{period},{millis},{harts}"
        ),
    };
    let outcome = qemu::run(model.image, &machine, LIMIT)?;
    let points: Vec<Point> = outcome.output.lines().filter_map(point).collect();
    match outcome.status {
        Some(0) if !points.is_empty() => Ok(points),
        _ => Err(format!("{}\n`{}`", outcome.output, machine.arguments)),
    }
}

/// A line of the program: model and load, who, then numbers.
fn point(line: &str) -> Option<Point> {
    let words: Vec<&str> = line.strip_prefix("matrix: ")?.split(' ').collect();
    let number = |at: usize| words.get(at)?.parse().ok();
    Some(Point {
        who: (*words.get(5)?).to_owned(),
        count: number(6)?,
        mean: number(8)?,
        p99: number(10)?,
        deviation: number(11)?,
        pages: number(12)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_other_things_are_no_points() {
        let right = point("matrix: threads 16 8 1 0 all 1011 1011718 1561 1538 1902 123 951");
        assert!(right.is_some_and(|point| point.count == 1011 && point.pages == 951));
        assert!(point("matrix: threads,1: no memory left").is_none());
        assert!(point("test x ... ok").is_none());
    }
}
