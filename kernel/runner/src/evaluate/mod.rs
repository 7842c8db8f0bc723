//! Repeats the evaluation of the SharedScheduler papers: measures a server that squares matrices,
//! in four models, with coroutines or threads in the kernel and in the server. A file contains
//! every measured point, and tables and plots are drawn from the file.
//!
//! Where time counts instructions, every figure repeats exactly: a tick of the clock is 100
//! instructions, a millisecond is a million. Several harts take turns in that mode, so a
//! millisecond of a machine with n harts is n milliseconds of the simulated clock. Points of this
//! commit that the file already contains are not measured again.
//!
//! `plan` lists the points, `point` is a point and its lines, `file` reads and writes all points,
//! `page` and `plot` write the document, `published` contains the papers' own figures, `saturation`
//! draws the papers' figures with slower clocks, and `profile` divides the instructions of a
//! request by source.

mod file;
mod page;
mod plan;
mod plot;
mod point;
mod profile;
mod published;
mod saturation;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::time::Duration;

use crate::build::{self, Image};
use crate::qemu::{self, Machine};
use file::File;
use point::{Load, MODELS, Point};

/// Time limit of a machine whose time counts instructions, on a busy host.
const LIMIT: Duration = Duration::from_secs(600);
/// Maximum number of threads of all programs: enough for three per connection at 500 connections,
/// although the server's share is only a fraction of the machine's.
const THREADS: u32 = 4096;
/// Names of the files of profiles and of spin loops.
const PROFILE: &str = "profile.csv";
const SPINNING: &str = "spinning.csv";
/// Number of machines that run concurrently, where time counts instructions.
const PARALLEL_MACHINES: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Selection {
    /// All points of machines whose time counts instructions.
    All,
    /// A few of these points.
    Quick,
    /// Points of the papers' figures, with clocks so slow that connections request more than the
    /// harts can answer.
    Saturation,
    /// The instructions of a request by source; if true, also the most expensive functions.
    Profile(bool),
    /// Tables and plots of the existing points; no measurement.
    Draw,
}

/// Measures the points that are missing in `folder`, then draws.
pub(crate) fn run(selection: Selection, folder: &Path) -> Result<ExitCode, String> {
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let plans = match selection {
        Selection::All => vec![
            (plan::saturation(), Source::Saturation),
            (plan::all(), Source::Instructions),
        ],
        Selection::Quick => vec![(plan::quick(), Source::Instructions)],
        Selection::Saturation => vec![(plan::saturation(), Source::Saturation)],
        Selection::Profile(_) | Selection::Draw => Vec::new(),
    };
    for (plan, source) in plans {
        let failed = measure_all(&plan, &points_in(folder, source))?;
        println!("{} points, {failed} failed", plan.len());
    }
    let is_verbose = selection == Selection::Profile(true);
    if matches!(selection, Selection::All | Selection::Profile(_)) {
        profile::run(&folder.join(PROFILE), &folder.join(SPINNING), is_verbose)?;
    }
    draw(folder)?;
    Ok(ExitCode::SUCCESS)
}

/// A file of points.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    /// Points with a clock of one instruction per nanosecond.
    Instructions,
    /// Points with slower clocks.
    Saturation,
}

fn points_in(folder: &Path, source: Source) -> PathBuf {
    folder.join(match source {
        Source::Instructions => "points.csv",
        Source::Saturation => "points-saturation.csv",
    })
}

/// Folders of the sources that a machine and its clients are built from.
const SOURCES: [&str; 4] = ["kernel", "scheduler", "linux/macros", "tools"];

/// Returns the commit that changed the sources last, with the suffix `-dirty` if they differ from
/// it. Later commits measure the same machine.
fn commit() -> String {
    let git = |words: &[&str]| {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let words = [&["-C", root], words, &["--"], &SOURCES].concat();
        let output = Command::new("git").args(words).output();
        output.map_or(String::new(), |output| {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        })
    };
    let commit = git(&["log", "-1", "--format=%h"]);
    let changes = git(&["status", "--porcelain"]);
    match (commit.is_empty(), changes.is_empty()) {
        (true, _) => "unknown".to_owned(),
        (_, true) => commit,
        _ => commit + "-dirty",
    }
}

/// Measures the points that are missing in the file. Returns the number of failures.
fn measure_all(plan: &[Load], file: &Path) -> Result<usize, String> {
    let mut known = File::parse(&fs::read_to_string(file).unwrap_or_default());
    known.begin(&commit());
    let threads = build::with_kernel_threads()?;
    let coroutines = build::image()?;
    let missing: Vec<Load> = plan
        .iter()
        .copied()
        .filter(|load| !known.has(*load))
        .collect();
    let total = missing.len();
    let queue = Mutex::new(missing.into_iter().enumerate());
    let output = Mutex::new((known, 0));
    let work = || -> Result<(), String> {
        loop {
            let next = queue.lock().map_or(None, |mut queue| queue.next());
            let Some((at, load)) = next else {
                return Ok(());
            };
            let image = if load.has_kernel_threads() {
                &threads
            } else {
                &coroutines
            };
            let point = measure(image, load)?;
            println!("{} of {total}: {}", at + 1, point.lines().trim_end());
            if let Ok(mut output) = output.lock() {
                output.1 += usize::from(point.figures.is_empty());
                output.0.points.push(point);
                let written = fs::write(file, output.0.text());
                written.map_err(|error| format!("{}: {error}", file.display()))?;
            }
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..PARALLEL_MACHINES).map(|_| scope.spawn(work)).collect();
        let mut ended = workers.into_iter().map(|worker| worker.join());
        ended.try_for_each(|end| end.unwrap_or(Err("a worker panicked".to_owned())))
    })?;
    Ok(output.into_inner().map_or(0, |(_, failed)| failed))
}

/// Returns the word of the program's argument that selects the server of a load.
fn server_of(load: Load) -> &'static str {
    if load.has_threads() {
        "threads"
    } else {
        "coroutines"
    }
}

/// Boots a machine and reads its figures: first of all requests, then of each level. The figures
/// are empty if the machine fails.
fn measure(image: &Image, load: Load) -> Result<Point, String> {
    let stretch = load.stretch();
    let server = server_of(load);
    let words = [
        load.connections,
        load.n,
        load.levels,
        load.period * stretch,
        load.millis * stretch,
        load.harts,
    ];
    let words = words.map(|word| word.to_string()).join(",");
    let arguments = format!("init=matrix with={server},{words} threads={THREADS}");
    let machine = Machine {
        icount: true,
        shift: load.shift,
        ..Machine::new(load.harts, &arguments)
    };
    let outcome = qemu::run(image, &machine, LIMIT)?;
    let figures: Vec<_> = outcome
        .output
        .lines()
        .filter_map(|line| point::parse_program_line(line, stretch))
        .collect();
    let is_complete = outcome.status == Some(0) && figures.len() as u32 == 1 + load.levels;
    if !is_complete {
        let (end, arguments) = (&outcome.end, &machine.arguments);
        eprintln!(
            "{}: {end}: {arguments}\n{}",
            MODELS[load.model], outcome.output
        );
    }
    Ok(Point {
        load,
        figures: if is_complete { figures } else { Vec::new() },
    })
}

/// Maximum width of a line of a paragraph, in characters.
const COLUMNS: usize = 100;

/// Wraps the lines of paragraphs; tables, plots and headings are kept.
fn wrapped(page: &str) -> String {
    let mut lines = Vec::new();
    for line in page.lines() {
        if line.starts_with(['|', '!', '#']) {
            lines.push(line.to_owned());
            continue;
        }
        let mut rest = String::new();
        for word in line.split(' ') {
            if !rest.is_empty() && rest.chars().count() + 1 + word.chars().count() > COLUMNS {
                lines.push(std::mem::take(&mut rest));
            }
            if !rest.is_empty() {
                rest.push(' ');
            }
            rest += word;
        }
        lines.push(rest);
    }
    lines.join("\n")
}

/// Draws the plots of the existing points, and writes the page next to the folder.
fn draw(folder: &Path) -> Result<(), String> {
    let read = |source| {
        let text = fs::read_to_string(points_in(folder, source)).unwrap_or_default();
        File::parse(&text)
    };
    let (counted, saturated) = (read(Source::Instructions), read(Source::Saturation));
    plot::draw_all(&counted.points, folder)?;
    saturation::draw(&saturated.points, folder)?;
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let mut page = page::page(&name, &counted.points, &saturated.points, &counted.commit);
    let spinning = fs::read_to_string(folder.join(SPINNING)).unwrap_or_default();
    page += &saturation::page(&name, &saturated.points, &saturated.commit, &spinning);
    let profiles = fs::read_to_string(folder.join(PROFILE)).unwrap_or_default();
    page += &profile::draw(&name, &profiles);
    let file = folder.with_extension("md");
    let page = format!("{}\n", wrapped(page.trim_end()));
    fs::write(&file, page).map_err(|error| format!("{}: {error}", file.display()))?;
    println!("{}", file.display());
    Ok(())
}
