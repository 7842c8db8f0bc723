//! The microbenchmarks: each is a program of its own, run once pinned to CPU 0 and once free, that prints one line of
//! JSON per figure. Figures printed before a program fails or runs out of time are kept.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::peers::{Built, Program};
use crate::results::{Figure, SectionResults};
use crate::server::pin;

/// How long the figures of one program may take together.
const LIMIT: Duration = Duration::from_secs(180);

/// Runs all that were built.
pub(crate) fn run(results: &mut SectionResults, built: &Built) {
    for (micro, program) in built.micro() {
        for (part, cpu) in [("one-thread", Some(0)), ("two-threads", None)] {
            eprintln!("{} {part}", micro.id);
            if let Err(why) = figures(&program, part, cpu, &mut results.figures) {
                eprintln!("  {why}");
                results.notes.push(format!("{} {part}: {why}", micro.id));
            }
        }
    }
}

/// Runs a program that prints one line of JSON for each figure; `part` is its first argument.
pub(crate) fn figures(
    program: &Program,
    part: &str,
    cpu: Option<usize>,
    figures: &mut Vec<Figure>,
) -> Result<(), String> {
    let mut command = Command::new(&program.file);
    command.arg(part).args(&program.args).stdout(Stdio::piped());
    if let Some(cpu) = cpu {
        pin(&mut command, cpu);
    }
    let mut child = command
        .spawn()
        .map_err(|e| format!("cannot start {}: {e}", program.file.display()))?;
    let stdout = child.stdout.take();
    let (lines, told) = mpsc::channel();
    std::thread::spawn(move || {
        let lines_of = stdout
            .into_iter()
            .flat_map(|out| BufReader::new(out).lines());
        for line in lines_of.map_while(Result::ok) {
            let _ = lines.send(line);
        }
    });
    let deadline = Instant::now() + LIMIT;
    let end = loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let line = match told.recv_timeout(left) {
            Ok(line) => line,
            Err(mpsc::RecvTimeoutError::Disconnected) => break Ok(()),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                break Err(format!("took longer than {} s", LIMIT.as_secs()));
            }
        };
        match serde_json::from_str::<Figure>(&line) {
            Ok(figure) => {
                eprintln!("  {:<18} {:>10.1}", figure.bench, figure.ns);
                figures.push(figure);
            }
            Err(error) => break Err(format!("not a figure: `{line}` ({error})")),
        }
    };
    if end.is_err() {
        let _ = child.kill();
    }
    let status = child.wait().map_err(|e| e.to_string())?;
    match end {
        Ok(()) if !status.success() => Err(format!("ended with {status}")),
        end => end,
    }
}
