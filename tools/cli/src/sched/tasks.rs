//! Collects the processes to schedule: processes named by pid or selected, and commands to start.

use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use upshift_daemon::Assign;
use upshift_sched::SchedError;

use super::args::SchedArgs;
use crate::values;

/// Time that started commands have to end after SIGTERM.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// A task that the command line names.
#[derive(Debug)]
pub(super) struct Spec {
    pub(super) label: String,
    /// Argument for the policy.
    pub(super) arg: Option<String>,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Pid(i32),
    /// Pid of a process that matches a selection.
    Matched(i32),
    Command(Vec<String>),
    /// Index into the started commands.
    Started(usize),
}

impl Spec {
    /// Returns the origin, which decides whether an error ends the run.
    pub(super) fn origin(&self) -> Origin {
        match self.source {
            Source::Pid(_) => Origin::Named,
            Source::Matched(_) => Origin::Matched,
            Source::Command(_) | Source::Started(_) => Origin::Started,
        }
    }
}

/// The way in which a process became a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// The command line names the process by its pid.
    Named,
    /// The process matches a selection. Any user may start such a process, and make it impossible
    /// to schedule.
    Matched,
    /// This command has started the process.
    Started,
}

impl Origin {
    /// Returns whether a task that fails with this error is left out, instead of ending the run.
    pub(super) fn tolerates(self, error: &SchedError) -> bool {
        let has_ended = matches!(error, SchedError::NoSuchProcess(_));
        match self {
            Origin::Named => false,
            Origin::Started => has_ended,
            Origin::Matched => true,
        }
    }
}

/// Returns all tasks that the command line names: pids first, then `--run`, then the command after
/// `--`.
pub(super) fn specs(args: &SchedArgs) -> Result<Vec<Spec>> {
    let mut specs = Vec::new();
    for text in &args.pid {
        let (pid, arg) = match text.split_once('=') {
            Some((pid, arg)) => (pid, Some(arg.to_owned())),
            None => (text.as_str(), None),
        };
        let pid = values::pid(pid).map_err(anyhow::Error::msg)?;
        let pid = i32::try_from(pid).context("a process id is too large")?;
        specs.push(Spec {
            label: pid.to_string(),
            arg,
            source: Source::Pid(pid),
        });
    }
    specs.extend(matching(args, &specs)?);
    for text in &args.run {
        let (arg, command) = match text.strip_prefix('@').and_then(|t| t.split_once(' ')) {
            Some((arg, command)) => (Some(arg.to_owned()), command),
            None => (None, text.as_str()),
        };
        let words = shlex::split(command).unwrap_or_default();
        specs.push(command_spec(words, arg).with_context(|| {
            format!("`{text}` is no command: write e.g. --run '@ARG program argument', and close all quotes")
        })?);
    }
    if !args.command.is_empty() {
        specs.push(command_spec(args.command.clone(), args.arg.clone())?);
    }
    if specs.is_empty() {
        bail!(
            "nothing to schedule: name processes with --pid (or --cgroup, --unit, --user, --comm), commands with --run or after `--`"
        );
    }
    for index in 1..specs.len() {
        let label = specs[index].label.clone();
        if specs[..index].iter().any(|other| other.label == label) {
            if matches!(specs[index].source, Source::Pid(_) | Source::Matched(_)) {
                bail!("process {label} is named twice: name it once");
            }
            specs[index].label = format!("{label}#{index}");
        }
    }
    Ok(specs)
}

/// Returns the processes selected by --cgroup, --unit, --user and --comm that `named` does not
/// contain.
fn matching(args: &SchedArgs, named: &[Spec]) -> Result<Vec<Spec>> {
    let split = |text: &'_ String| match text.split_once('=') {
        Some((pattern, arg)) => (pattern.to_owned(), Some(arg.to_owned())),
        None => (text.clone(), None),
    };
    let mut rules = Vec::new();
    for (option, texts) in [
        ("--cgroup", &args.cgroup),
        ("--unit", &args.unit),
        ("--user", &args.user),
        ("--comm", &args.comm),
    ] {
        for text in texts {
            let (pattern, arg) = split(text);
            let mut rule = Assign::default();
            match option {
                "--cgroup" => rule.cgroup = Some(pattern),
                "--unit" => rule.unit = Some(pattern),
                "--user" => {
                    rule.user = Some(upshift_daemon::user(&pattern).map_err(anyhow::Error::msg)?);
                }
                _ => rule.comm = Some(pattern),
            }
            rule.check().map_err(anyhow::Error::msg)?;
            rules.push((format!("{option} {text}"), arg, rule));
        }
    }
    let mut excluded = upshift_sched::ancestors();
    excluded.extend([1, i32::try_from(std::process::id()).unwrap_or(0)]);
    excluded.extend(
        named
            .iter()
            .filter_map(|spec| spec.label.parse::<i32>().ok()),
    );
    let mut specs = Vec::new();
    for (text, arg, rule) in rules {
        let before = specs.len();
        for pid in rule.processes() {
            if excluded.contains(&pid) {
                continue;
            }
            excluded.push(pid);
            specs.push(Spec {
                label: pid.to_string(),
                arg: arg.clone(),
                source: Source::Matched(pid),
            });
        }
        if specs.len() == before {
            if let Some(reason) = rule.misfit() {
                bail!("no process fits `{text}`: {reason}");
            }
            bail!(
                "no process fits `{text}` that is not named already (`ps -eo pid,user,comm,cgroup` shows what there is)"
            );
        }
    }
    Ok(specs)
}

fn command_spec(words: Vec<String>, arg: Option<String>) -> Result<Spec> {
    let program = words.first().context("there is no program in it")?;
    let name = Path::new(program).file_name();
    Ok(Spec {
        label: name.map_or_else(
            || program.clone(),
            |name| name.to_string_lossy().into_owned(),
        ),
        arg,
        source: Source::Command(words),
    })
}

/// The started commands, which are ended on drop.
#[derive(Debug)]
pub(super) struct Tasks {
    children: Vec<Child>,
    /// Set if the last command is the command after `--`.
    has_main: bool,
}

impl Tasks {
    /// Starts the commands. If one fails, the commands started before it are ended.
    pub(super) fn start(specs: &mut [Spec], has_main: bool) -> Result<Tasks> {
        let mut started = Tasks {
            children: Vec::new(),
            has_main,
        };
        for spec in specs {
            if let Source::Command(words) = &spec.source {
                let child = Command::new(&words[0]).args(&words[1..]).spawn();
                let child = child.with_context(|| format!("cannot start `{}`", words[0]))?;
                started.children.push(child);
                spec.source = Source::Started(started.children.len() - 1);
            }
        }
        Ok(started)
    }

    /// Returns the process id of a task; 0 for a command that has not been started.
    pub(super) fn pid(&self, spec: &Spec) -> i32 {
        let id = match spec.source {
            Source::Pid(pid) | Source::Matched(pid) => return pid,
            Source::Started(index) => self.children.get(index).map_or(0, Child::id),
            Source::Command(_) => 0,
        };
        i32::try_from(id).unwrap_or(0)
    }

    /// Returns the exit status of the command after `--`; `None` without one, or while it runs.
    pub(super) fn main_status(&mut self) -> Option<ExitStatus> {
        let main = self.children.last_mut().filter(|_| self.has_main);
        main?.try_wait().ok().flatten()
    }

    /// Asks the running commands to end, and kills commands that do not.
    pub(super) fn end(&mut self) {
        let runs = |child: &mut Child| matches!(child.try_wait(), Ok(None));
        for child in self
            .children
            .iter_mut()
            .filter_map(|c| runs(c).then_some(c))
        {
            if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                // The process may have just ended.
                let _ = kill_process(pid, Signal::TERM);
            }
        }
        let deadline = Instant::now() + END_TIMEOUT;
        for child in &mut self.children {
            while runs(child) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
            if runs(child) {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
        self.children.clear();
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.end();
    }
}
