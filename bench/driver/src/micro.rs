//! The microbenchmarks: each is a program of its own, run once pinned to CPU 0 and once free, that prints one line of
//! JSON per figure.

use std::process::{Command, Stdio};

use crate::peers::{Built, Program};
use crate::results::{Figure, SectionResults};
use crate::server::pin;

/// Runs all that were built.
pub(crate) fn run(results: &mut SectionResults, built: &Built) {
    for (micro, program) in built.micro() {
        for (part, cpu) in [("one-thread", Some(0)), ("two-threads", None)] {
            eprintln!("{} {part}", micro.id);
            match figures(&program, part, cpu) {
                Ok(figures) => results.figures.extend(figures),
                Err(why) => results.notes.push(format!("{} {part}: {why}", micro.id)),
            }
        }
    }
}

fn figures(program: &Program, part: &str, cpu: Option<usize>) -> Result<Vec<Figure>, String> {
    let mut command = Command::new(&program.file);
    command
        .arg(part)
        .args(&program.args)
        .stderr(Stdio::inherit());
    if let Some(cpu) = cpu {
        pin(&mut command, cpu);
    }
    let output = command
        .output()
        .map_err(|e| format!("cannot start {}: {e}", program.file.display()))?;
    let mut figures = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let figure: Figure =
            serde_json::from_str(line).map_err(|e| format!("not a figure: `{line}` ({e})"))?;
        eprintln!("  {:<18} {:>10.1}", figure.bench, figure.ns);
        figures.push(figure);
    }
    if output.status.success() {
        Ok(figures)
    } else {
        Err(format!("ended with {}", output.status))
    }
}
