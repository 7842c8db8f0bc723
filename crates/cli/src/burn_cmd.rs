//! `upshift burn`: background work that takes all the CPU it gets, and says how much it got done.
//!
//! It stands for a batch job beside a server. Work is counted in CPU time burnt by loops of fixed length, so what is reported
//! is what was done, whatever else ran on the CPUs.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use signal_hook::consts::{SIGINT, SIGTERM};
use upshift::{Level, Runtime, yield_if_needed};
use upshift_load::scenario::{BATCH_LEVEL, Burnt};
use upshift_load::{Burner, machine};

use crate::args::{BoardChoice, Model};
use crate::values;

/// Burnt between two looks at whether to go on, or to give way.
const PIECE: Duration = Duration::from_micros(100);

/// Flags of `upshift burn`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  upshift burn --workers 4 --duration 10s         four coroutines of level 40 on all CPUs
  upshift burn --model thread --workers 4         four threads, until Ctrl-C
  upshift burn --model thread --nice 19           the least share the kernel gives

One line `burning` is printed when it starts. The work is given in seconds of CPU time.")]
pub(crate) struct BurnArgs {
    /// What computes: coroutine (yields to more urgent work), or thread
    #[arg(
        long,
        value_enum,
        default_value = "coroutine",
        hide_possible_values = true
    )]
    model: Model,
    /// How many run at the same time [default: twice the CPUs]
    #[arg(long, value_name = "N", value_parser = values::count)]
    workers: Option<usize>,
    /// CPUs to use, e.g. `0,1` [default: all this process may use]
    #[arg(long, value_name = "CPUS", value_delimiter = ',', value_parser = values::cpu)]
    pin: Vec<usize>,
    /// Priority level of the coroutines: 0 (most urgent) to 63
    #[arg(long, value_name = "LEVEL", default_value_t = BATCH_LEVEL, value_parser = values::level)]
    level: u8,
    /// Join the machine's daemon: off, auto (if there is one), or required (coroutine model)
    #[arg(long, value_enum, default_value = "off", hide_possible_values = true)]
    board: BoardChoice,
    /// Nice value: -20 to 19 (smallest share)
    #[arg(long, value_name = "N", default_value_t = 0, allow_hyphen_values = true, value_parser = values::nice)]
    nice: i32,
    /// Duration, e.g. `10s` [default: until SIGTERM or Ctrl-C]
    #[arg(long, value_name = "TIME", value_parser = upshift_units::positive_duration)]
    duration: Option<Duration>,
    /// Print JSON instead of a sentence
    #[arg(long)]
    json: bool,
}

/// What the workers share.
#[derive(Debug)]
struct Fire {
    burner: Burner,
    /// Pieces done.
    pieces: AtomicU64,
    out: Arc<AtomicBool>,
}

impl Fire {
    fn piece(&self) -> bool {
        self.burner.burn(PIECE.as_nanos() as u64);
        self.pieces.fetch_add(1, Relaxed);
        !self.out.load(Relaxed)
    }
}

/// Burns until the time is over or a signal comes.
pub(crate) fn burn(args: &BurnArgs) -> Result<()> {
    let cpus = if args.pin.is_empty() {
        machine::allowed_cpus()
    } else {
        args.pin.clone()
    };
    if args.nice != 0 {
        rustix::process::setpriority_process(None, args.nice).with_context(|| {
            format!(
                "cannot set the nice value {}: below 0 it takes CAP_SYS_NICE",
                args.nice
            )
        })?;
    }
    let workers = args.workers.unwrap_or(2 * cpus.len());
    let out = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, out.clone())
            .context("cannot handle SIGTERM and Ctrl-C")?;
    }
    let fire = Arc::new(Fire {
        burner: Burner::calibrate(),
        pieces: AtomicU64::new(0),
        out: out.clone(),
    });
    let ends = args.duration.map(|time| Instant::now() + time);
    if ends.is_some() {
        thread::spawn(move || {
            while ends.is_some_and(|end| Instant::now() < end) {
                thread::sleep(Duration::from_millis(5));
            }
            out.store(true, Relaxed);
        });
    }
    let began = Instant::now();
    println!("burning");
    io::stdout().flush().context("cannot print")?;
    match args.model {
        Model::Thread => threads(&fire, workers, &cpus)?,
        Model::Coroutine => coroutines(&fire, workers, cpus.clone(), args)?,
    }
    let burnt = Burnt {
        seconds: began.elapsed().as_secs_f64(),
        work: fire.pieces.load(Relaxed) as f64 * PIECE.as_secs_f64(),
        cpus: cpus.len(),
    };
    if args.json {
        println!("{}", serde_json::to_string(&burnt)?);
    } else {
        println!(
            "{:.2} s of CPU time in {:.2} s on {} CPUs: {:.1} %",
            burnt.work,
            burnt.seconds,
            burnt.cpus,
            100.0 * burnt.work / burnt.seconds / burnt.cpus as f64
        );
    }
    Ok(())
}

fn threads(fire: &Arc<Fire>, workers: usize, cpus: &[usize]) -> Result<()> {
    machine::pin(cpus).context("cannot keep to these CPUs")?;
    let threads: Vec<_> = (0..workers)
        .map(|_| {
            let fire = fire.clone();
            thread::Builder::new().spawn(move || while fire.piece() {})
        })
        .collect::<io::Result<_>>()
        .context("cannot start a thread")?;
    for thread in threads {
        // A loop of arithmetic does not panic.
        let _ = thread.join();
    }
    Ok(())
}

fn coroutines(fire: &Arc<Fire>, workers: usize, cpus: Vec<usize>, args: &BurnArgs) -> Result<()> {
    let level = Level::new(args.level).context("level")?;
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
                let fire = fire.clone();
                upshift::spawn(
                    async move {
                        while fire.piece() {
                            yield_if_needed().await;
                        }
                    },
                    level,
                )
            })
            .collect();
        for worker in workers {
            // It is never cancelled.
            let _ = worker.await;
        }
    });
    Ok(())
}
