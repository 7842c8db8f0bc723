//! Programs that print one line of JSON per figure. Output that precedes a failure or a time-out is
//! kept.

use std::process::Command;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use upshift_load::child::{Child, pin};
use upshift_load::cpu::of_ended_children;

use crate::machine::{LoadMonitor, Watched};
use crate::measure::DISTURBED;
use crate::options::Options;
use crate::peers::{Program, Programs};
use crate::results::{Figure, SectionResults};

/// Time limit for all figures of one program.
const LIMIT: Duration = Duration::from_secs(180);

/// Number of notes after which a section repeats no runs, so that it ends in time.
const MOST_NOTES: usize = 4;

/// Runs a program that prints one line of JSON per figure; `part` is its first argument.
pub(crate) fn figures(
    program: &Program,
    part: &str,
    cpu: Option<usize>,
    figures: &mut Vec<Figure>,
) -> Result<(), String> {
    lines(program, part, cpu, |figure: Figure| {
        eprintln!("  {:<18} {:>10.1}", figure.bench, figure.ns);
        figures.push(figure);
    })
    .map(drop)
}

/// Runs programs on both CPUs in turn, once per round, and returns all printed lines; `say` formats
/// a line for display.
pub(crate) fn in_rounds<T: DeserializeOwned>(
    results: &mut SectionResults,
    options: &Options,
    programs: &Programs,
    part: &str,
    say: impl Fn(&T),
) -> Vec<T> {
    let mut all = Vec::new();
    for round in 0..options.rounds {
        for (name, program) in programs {
            let name = format!("round {}: {name}", round + 1);
            eprintln!("{name}");
            let taken = undisturbed(program, part, &name, options, results);
            taken.iter().for_each(&say);
            all.extend(taken);
        }
    }
    all
}

/// Runs a program on both CPUs and returns its output. Runs it again if other programs used at
/// least a tenth of the CPUs meanwhile, and notes that. After [`MOST_NOTES`] in the section, on a
/// machine that is never quiet, nothing is repeated.
fn undisturbed<T: DeserializeOwned>(
    program: &Program,
    part: &str,
    name: &str,
    options: &Options,
    results: &mut SectionResults,
) -> Vec<T> {
    let mut is_last = options.quick || results.notes.len() >= MOST_NOTES;
    loop {
        let mut taken = Vec::new();
        let why = match lines(program, part, None, |line| taken.push(line)) {
            Ok(foreign) if foreign < DISTURBED => return taken,
            Ok(foreign) => format!("others used {:.0} % of the CPUs", 100.0 * foreign),
            Err(why) => why,
        };
        let outcome = if is_last { "kept" } else { "repeated" };
        results.note(format!("{name}: {why}: {outcome}"));
        if is_last {
            return taken;
        }
        is_last = true;
    }
}

/// Runs a program that prints lines of JSON, and passes each to `take`; `part` is its first
/// argument. Returns the share of the two CPUs that other programs used meanwhile.
pub(crate) fn lines<T: DeserializeOwned>(
    program: &Program,
    part: &str,
    cpu: Option<usize>,
    mut take: impl FnMut(T),
) -> Result<f64, String> {
    let (watch, own) = (LoadMonitor::start(), of_ended_children());
    let mut command = Command::new(&program.file);
    command.arg(part).args(&program.args);
    if let Some(cpu) = cpu {
        pin(&mut command, cpu);
    }
    let mut child = Child::start(&mut command)
        .map_err(|e| format!("cannot start {}: {e}", program.file.display()))?;
    let deadline = Instant::now() + LIMIT;
    let end = loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let line = match child.line(left) {
            Ok(line) => line,
            Err(RecvTimeoutError::Disconnected) => break Ok(()),
            Err(RecvTimeoutError::Timeout) => {
                break Err(format!("took longer than {} s", LIMIT.as_secs()));
            }
        };
        match serde_json::from_str(&line) {
            Ok(read) => take(read),
            Err(error) => break Err(format!("not a figure: `{line}` ({error})")),
        }
    };
    if end.is_err() {
        child.kill();
    }
    let status = child.wait().map_err(|e| e.to_string())?;
    let Watched {
        busy: [first, second],
        time,
        ..
    } = watch.stop();
    let own = of_ended_children().saturating_sub(own);
    match end {
        Ok(()) if !status.success() => Err(format!("ended with {status}")),
        Ok(()) => Ok((first + second - own.as_secs_f64() / time.as_secs_f64()) / 2.0),
        Err(why) => Err(why),
    }
}
