//! Runs programs that measure by themselves and print one line of JSON per figure. The lines before
//! a failure or a time-out count.

use std::process::Command;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use upshift_load::child::{Child, pin};
use upshift_load::cpu::cpu_time_of_ended_children;

use crate::machine::{LoadMonitor, Lost, Usage};
use crate::options::Options;
use crate::peers::Program;
use crate::results::{Figure, SectionResults, disturbance_by_others};
use crate::rounds::repeat_while_disturbed;

/// Time limit for all figures of one program.
const LIMIT: Duration = Duration::from_secs(180);

/// Runs a program, and repeats the run as often as permitted while other programs disturb it.
/// Returns the output of the last run. `part` is the first argument of the program. The program is
/// pinned to `cpu` if there is one.
pub(crate) fn output<T: DeserializeOwned>(
    results: &mut SectionResults,
    options: &Options,
    (name, program): &(String, Program),
    part: &str,
    cpu: Option<usize>,
) -> Vec<T> {
    let name = format!("{name} {part}");
    eprintln!("round {}: {name}", options.round + 1);
    let (mut output, mut failure) = (Vec::new(), None);
    let outcome = repeat_while_disturbed(results, options, &name, || {
        output.clear();
        let usage = read_lines(program, part, cpu, |line| output.push(line));
        let disturbance = match &usage {
            Ok(lost) => disturbance_by_others(lost.foreign, lost.steal),
            Err(_) => None,
        };
        failure = usage.err();
        Ok(((), disturbance))
    });
    if let Some(why) = failure.or(outcome.err()) {
        results.note(format!("round {}: {name}: {why}", options.round + 1));
    }
    output
}

/// Runs a program like [`output`], and adds its figures to the section.
pub(crate) fn measure(
    results: &mut SectionResults,
    options: &Options,
    program: &(String, Program),
    part: &str,
    cpu: Option<usize>,
) {
    for figure in output::<Figure>(results, options, program, part, cpu) {
        eprintln!("  {:<18} {:>10.1}", figure.bench, figure.ns);
        results.add_figure(figure);
    }
}

/// Runs a program that prints lines of JSON, and passes each to `take`; `part` is its first
/// argument. Returns the shares of the CPUs that other programs and the hypervisor took meanwhile.
pub(crate) fn read_lines<T: DeserializeOwned>(
    program: &Program,
    part: &str,
    cpu: Option<usize>,
    mut take: impl FnMut(T),
) -> Result<Lost, String> {
    let (monitor, child_time) = (LoadMonitor::start(), cpu_time_of_ended_children());
    let mut command = Command::new(&program.file);
    command.arg(part).args(&program.args);
    if let Some(cpu) = cpu {
        pin(&mut command, cpu);
    }
    let mut child = Child::start(&mut command)
        .map_err(|e| format!("cannot start {}: {e}", program.file.display()))?;
    let deadline = Instant::now() + LIMIT;
    let end = loop {
        let remaining = deadline.saturating_duration_since(Instant::now());
        let line = match child.line(remaining) {
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
    let Usage { busy, time, steal } = monitor.stop();
    let child_time = cpu_time_of_ended_children().saturating_sub(child_time);
    match end {
        Ok(()) if !status.success() => Err(format!("ended with {status}")),
        Ok(()) => Ok(Lost {
            foreign: (busy[0] + busy[1] - child_time.as_secs_f64() / time.as_secs_f64()) / 2.0,
            steal,
        }),
        Err(why) => Err(why),
    }
}
