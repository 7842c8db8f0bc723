//! Profiles the instructions of a request: each block of instructions that QEMU translates and
//! executes is counted by its source, over many requests.
//!
//! `counter` counts blocks in QEMU's log, `sources` reads the debug information, `layers` assigns
//! instructions to layers, `table` writes the file and the tables of the page, and `spin` counts
//! the instructions of spin loops on several harts.

mod counter;
mod layers;
mod sources;
mod spin;
mod table;

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::sync::Mutex;

use super::point::{Load, MODELS};
use super::{PARALLEL_MACHINES, THREADS, commit, file, plan, server_of};
use crate::build::{self, Image};
use crate::qemu::{self, Machine};
use counter::Counter;
use layers::Profile;
use sources::{Code, Sources};
pub(crate) use table::draw;

/// Number of requests before the count.
const WARM_UP: u64 = 256;
/// Number of requests whose instructions are counted.
const COUNTED: u64 = 512;

/// The models that are counted: coroutines on both sides, and threads on both sides.
const COMPARED: [usize; 2] = [0, 3];

fn measure(image: &Image, load: Load, is_verbose: bool) -> Result<Profile, String> {
    let server = server_of(load);
    let (connections, n, millis) = (load.connections, load.n, load.millis);
    let arguments =
        format!("init=matrix with={server},{connections},{n},1,0,{millis},1 threads={THREADS}");
    let machine = Machine {
        icount: true,
        ..Machine::new(1, &arguments)
    };
    let kernel = std::fs::read(&image.kernel)
        .map_err(|error| format!("{}: {error}", image.kernel.display()))?;
    let (program, vdso) = (build::program("matrix")?, build::program("os-vdso")?);
    let mut sources = Sources {
        kernel: Code::new(&kernel)?,
        program: Code::new(&program)?,
        vdso: Code::new(&vdso)?,
        known: HashMap::new(),
    };
    let mut counter = Counter::new(sources::request_address(&sources.program)?);
    let mut child = qemu::command(image, &machine, None)
        .args(["-monitor", "none", "-d", "in_asm,exec,nochain"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(qemu::explain)?;
    let log = child.stderr.take().expect("stderr is piped");
    let mut log = BufReader::with_capacity(1 << 20, log);
    let mut line = String::new();
    let mut is_wanted = true;
    while is_wanted && log.read_line(&mut line).is_ok_and(|count| count > 0) {
        is_wanted = counter.line(line.trim_end());
        line.clear();
    }
    let _ = child.kill();
    let _ = child.wait();
    if is_wanted {
        let requests = counter.requests;
        return Err(format!(
            "{load}: the machine has ended after {requests} requests"
        ));
    }
    Ok(layers::sum(counter, &mut sources, load, is_verbose))
}

/// Returns the loads whose requests are profiled.
fn shapes() -> Vec<Load> {
    let shapes = [(16, 1), (64, 1)];
    let load = |(connections, n)| {
        COMPARED.into_iter().map(move |model| Load {
            model,
            connections,
            n,
            levels: 1,
            period: 0,
            // More than the time that the requests take.
            millis: 2_000,
            harts: 1,
            shift: 0,
        })
    };
    shapes.into_iter().flat_map(load).collect()
}

/// Counts the instructions of spin loops in closed loops on several harts, and writes the file.
fn spinning(images: [&Image; 2], file: &Path) -> Result<(), String> {
    let mut text = format!(
        "{}{}\nmodel,harts,instructions,spinning\n",
        file::COMMIT,
        commit()
    );
    for harts in plan::SCALING_HARTS {
        for (model, image) in COMPARED.into_iter().zip(images) {
            let spin::Spins { all, spinning, .. } =
                spin::measure(image, plan::scaling(model, harts))?;
            let line = format!("{},{harts},{all},{spinning}\n", MODELS[model]);
            print!("{line}");
            text += &line;
        }
    }
    std::fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))
}

/// Counts all loads, and writes the files of layers and of spin loops. With `is_verbose`, also
/// prints the most expensive functions.
pub(crate) fn run(file: &Path, spinning_file: &Path, is_verbose: bool) -> Result<(), String> {
    let threads = build::with_kernel_threads()?;
    let coroutines = build::image()?;
    spinning([&coroutines, &threads], spinning_file)?;
    let queue = Mutex::new(shapes().into_iter());
    let profiles = Mutex::new(Vec::new());
    let work = || -> Result<(), String> {
        while let Some(load) = queue.lock().map_or(None, |mut queue| queue.next()) {
            let image = if load.has_kernel_threads() {
                &threads
            } else {
                &coroutines
            };
            let profile = measure(image, load, is_verbose)?;
            println!("{load}: {}", table::tenths(profile.total()));
            if let Ok(mut profiles) = profiles.lock() {
                profiles.push(profile);
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..PARALLEL_MACHINES).map(|_| scope.spawn(work)).collect();
        let mut ended = workers.into_iter().map(|worker| worker.join());
        ended.try_for_each(|end| end.unwrap_or(Err("a worker panicked".to_owned())))
    })?;
    let mut profiles = profiles.into_inner().unwrap_or_default();
    profiles.sort_by_key(|profile| {
        let load = profile.load;
        (load.n, load.connections, load.model)
    });
    let text = table::write(&profiles);
    std::fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))
}
