//! Burns CPU time until the duration has passed or a signal arrives.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use upshift::{Level, Runtime, yield_if_needed};
use upshift_load::scenario::BurnReport;
use upshift_load::{Burner, machine};

use super::args::BurnArgs;
use crate::choice::Model;

/// CPU time burnt between two checks for the end or for more urgent work.
const PIECE: Duration = Duration::from_micros(100);

/// State that all workers share.
#[derive(Debug)]
struct Burn {
    burner: Burner,
    /// Number of burnt pieces.
    pieces: AtomicU64,
    stop: Arc<AtomicBool>,
}

impl Burn {
    /// Burns one piece. Returns false when the workers must stop.
    fn burn_piece(&self) -> bool {
        self.burner.burn(PIECE.as_nanos() as u64);
        self.pieces.fetch_add(1, Relaxed);
        !self.stop.load(Relaxed)
    }
}

pub(crate) fn burn(args: &BurnArgs) -> Result<()> {
    let cpus = if args.pin.is_empty() {
        machine::allowed_cpus()
    } else {
        args.pin.clone()
    };
    if args.nice != 0 {
        rustix::process::setpriority_process(None, args.nice).with_context(|| {
            format!(
                "cannot set the nice value {}: values below 0 require CAP_SYS_NICE",
                args.nice
            )
        })?;
    }
    let workers = args.workers.unwrap_or(2 * cpus.len());
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, stop.clone())
            .context("cannot handle SIGTERM and Ctrl-C")?;
    }
    let burn = Arc::new(Burn {
        burner: Burner::calibrate(),
        pieces: AtomicU64::new(0),
        stop: stop.clone(),
    });
    let deadline = args.duration.map(|time| Instant::now() + time);
    if deadline.is_some() {
        thread::spawn(move || {
            while deadline.is_some_and(|end| Instant::now() < end) {
                thread::sleep(Duration::from_millis(5));
            }
            stop.store(true, Relaxed);
        });
    }
    let started = Instant::now();
    println!("burning");
    io::stdout().flush().context("cannot print")?;
    match args.model {
        Model::Thread => run_threads(&burn, workers, &cpus)?,
        Model::Coroutine => run_coroutines(&burn, workers, cpus.clone(), args)?,
    }
    let report = BurnReport {
        seconds: started.elapsed().as_secs_f64(),
        work: burn.pieces.load(Relaxed) as f64 * PIECE.as_secs_f64(),
        cpus: cpus.len(),
    };
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        println!(
            "{:.2} s of CPU time in {:.2} s on {} CPUs: {:.1} %",
            report.work,
            report.seconds,
            report.cpus,
            100.0 * report.work / report.seconds / report.cpus as f64
        );
    }
    Ok(())
}

fn run_threads(burn: &Arc<Burn>, workers: usize, cpus: &[usize]) -> Result<()> {
    machine::pin(cpus).context("cannot pin to these CPUs")?;
    let threads: Vec<_> = (0..workers)
        .map(|_| {
            let burn = burn.clone();
            thread::Builder::new().spawn(move || while burn.burn_piece() {})
        })
        .collect::<io::Result<_>>()
        .context("cannot start a thread")?;
    for thread in threads {
        // A loop of arithmetic does not panic.
        let _ = thread.join();
    }
    Ok(())
}

fn run_coroutines(
    burn: &Arc<Burn>,
    workers: usize,
    cpus: Vec<usize>,
    args: &BurnArgs,
) -> Result<()> {
    let level = Level::new(args.level).context("invalid level")?;
    let runtime = Runtime::builder()
        .vcpus(cpus.len())
        .pin(cpus)
        .board(args.board.into())
        .main_level(level)
        .name("burn")
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(async {
        let workers: Vec<_> = (0..workers)
            .map(|_| {
                let burn = burn.clone();
                upshift::spawn(
                    async move {
                        while burn.burn_piece() {
                            yield_if_needed().await;
                        }
                    },
                    level,
                )
            })
            .collect();
        for worker in workers {
            // The worker is never cancelled.
            let _ = worker.await;
        }
    });
    Ok(())
}
