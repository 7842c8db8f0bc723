//! Starts a process, waits for it within a time limit, and leaves none of its child processes
//! behind.
//!
//! Every process leads its own process group. However the wait ends (exit, time-out, Ctrl-C), the
//! whole group is killed before the leader is reaped. Therefore neither a hanging test nor a server
//! that a test leaves running outlives its step. The leader is still a zombie at that moment, so no
//! other group can have its group id. A process that moves to another group (`setsid`) escapes.
//!
//! The wait polls every 10 ms, because steps take seconds and one loop then serves exit, time-out
//! and signal alike.

use std::fs::File;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Time between SIGTERM and SIGKILL for a group that must end.
const KILL_DELAY: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Set by SIGINT, SIGTERM or SIGHUP; ends every wait. Clones share the flag.
#[derive(Clone, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Takes over the three signals for the rest of the program.
    ///
    /// # Errors
    /// The handlers cannot be installed.
    pub(crate) fn on_signals() -> io::Result<Self> {
        let stop = Self::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&stop.0))?;
        }
        Ok(stop)
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
pub(crate) enum Ending {
    Exited(ExitStatus),
    TimedOut(Duration),
    /// Killed after writing nothing for this long.
    Silent(Duration),
    /// Killed because the user stopped the run.
    Interrupted,
}

impl Ending {
    /// Returns `Ok` for exit status 0, otherwise a message for the user.
    pub(crate) fn success(&self) -> Result<(), String> {
        match self {
            Self::Exited(status) if status.success() => Ok(()),
            Self::Exited(status) => Err(match (status.code(), status.signal()) {
                (Some(code), _) => format!("exit status {code}"),
                (None, Some(signal)) => format!("killed by signal {signal}"),
                (None, None) => status.to_string(),
            }),
            Self::TimedOut(limit) => {
                Err(format!("no end after {:.0} s, killed", limit.as_secs_f64()))
            }
            Self::Silent(limit) => Err(format!(
                "no output for {:.0} s, killed",
                limit.as_secs_f64()
            )),
            Self::Interrupted => Err("interrupted".to_owned()),
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Largest time from the process's start to its end.
    pub(crate) whole: Duration,
    /// Largest time without new output in the log; unlimited for a process without a log.
    pub(crate) silence: Duration,
}

impl Limits {
    /// Time without output after which a process counts as hanging. The limit does not cut off
    /// work, because even on a busy machine, which slows every tool, each tool writes several times
    /// in a minute.
    const MAX_SILENCE: Duration = Duration::from_secs(15 * 60);

    pub(crate) const fn within(whole: Duration) -> Limits {
        Limits {
            whole,
            silence: Self::MAX_SILENCE,
        }
    }

    /// Creates the limits of a process that may run as long as it makes progress.
    pub(crate) const fn of_progress() -> Limits {
        Self::within(Duration::MAX)
    }
}

/// Runs `command` without standard input; its output goes to `log`, or is inherited without one.
///
/// # Errors
/// The command cannot be started (the message names the program) or waited for.
pub(crate) fn run(
    command: &mut Command,
    limits: Limits,
    log: Option<&File>,
    stop: &Stop,
) -> io::Result<Ending> {
    command.stdin(Stdio::null()).process_group(0);
    if let Some(log) = log {
        command.stdout(log.try_clone()?).stderr(log.try_clone()?);
    }
    let started = Instant::now();
    let mut child = command.spawn().map_err(|error| {
        let program = command.get_program().display();
        io::Error::new(error.kind(), format!("cannot start {program}: {error}"))
    })?;
    let leader = Pid::from_child(&child);
    let (mut log_length, mut last_output) = (0, started);
    let forced_ending = loop {
        if has_exited(leader)? {
            break None;
        }
        if stop.is_set() {
            break Some(Ending::Interrupted);
        }
        if started.elapsed() >= limits.whole {
            break Some(Ending::TimedOut(limits.whole));
        }
        if let Some(log) = log {
            let length = log.metadata()?.len();
            if length != log_length {
                (log_length, last_output) = (length, Instant::now());
            } else if last_output.elapsed() >= limits.silence {
                break Some(Ending::Silent(limits.silence));
            }
        }
        sleep(POLL_INTERVAL);
    };
    if forced_ending.is_some() {
        kill(leader, Signal::TERM);
        let terminated_at = Instant::now();
        while terminated_at.elapsed() < KILL_DELAY && !has_exited(leader)? {
            sleep(POLL_INTERVAL);
        }
    }
    kill(leader, Signal::KILL);
    let status = child.wait()?;
    Ok(forced_ending.unwrap_or(Ending::Exited(status)))
}

/// Returns whether the leader is a zombie. The call does not reap the zombie, so that the process
/// group keeps its id.
fn has_exited(leader: Pid) -> io::Result<bool> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    Ok(waitid(WaitId::Pid(leader), options)?.is_some())
}

/// Signals the leader's group. A missing group is not an error, because it has ended by itself.
fn kill(leader: Pid, signal: Signal) {
    let _ = kill_process_group(leader, signal);
}

/// Returns the command as a user would type it, with the variables it sets.
pub(crate) fn command_line(command: &Command) -> String {
    let mut words = Vec::new();
    for (name, value) in command.get_envs() {
        // An extended PATH is not part of a typed command.
        if let Some(value) = value.filter(|_| name != "PATH") {
            words.push(format!(
                "{}={}",
                name.display(),
                quoted(&value.to_string_lossy())
            ));
        }
    }
    words.push(quoted(&command.get_program().to_string_lossy()));
    words.extend(
        command
            .get_args()
            .map(|word| quoted(&word.to_string_lossy())),
    );
    words.join(" ")
}

fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=+:,@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;

    const LONG: Duration = Duration::from_secs(30);

    const fn within(whole: Duration) -> Limits {
        Limits {
            whole,
            silence: LONG,
        }
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("xtask-{}-{name}", std::process::id()))
    }

    /// Waits at most [`LONG`] for the process to end; returns whether it is gone, or a zombie that
    /// its new parent has not reaped yet.
    fn ends(pid: &str) -> bool {
        let started = Instant::now();
        while started.elapsed() < LONG {
            if fs::read(format!("/proc/{pid}/cmdline"))
                .unwrap_or_default()
                .is_empty()
            {
                return true;
            }
            sleep(POLL_INTERVAL);
        }
        false
    }

    #[test]
    fn exit_status_is_reported() {
        let good = run(&mut shell("exit 0"), within(LONG), None, &Stop::default()).unwrap();
        assert_eq!(good.success(), Ok(()));
        let bad = run(&mut shell("exit 3"), within(LONG), None, &Stop::default()).unwrap();
        assert_eq!(bad.success(), Err("exit status 3".to_owned()));
        let killed = run(
            &mut shell("kill -9 $$"),
            within(LONG),
            None,
            &Stop::default(),
        )
        .unwrap();
        assert_eq!(killed.success(), Err("killed by signal 9".to_owned()));
    }

    #[test]
    fn missing_program_is_named() {
        let error = run(
            &mut Command::new("/no/such/program"),
            within(LONG),
            None,
            &Stop::default(),
        )
        .unwrap_err();
        assert!(error.to_string().contains("/no/such/program"));
    }

    #[test]
    fn the_whole_process_group_is_killed_at_its_time_limit() {
        let file = scratch("time-out");
        let script = format!("sleep 600 & echo $! > {}; wait", file.display());
        let ending = run(
            &mut shell(&script),
            within(Duration::from_secs(2)),
            None,
            &Stop::default(),
        )
        .unwrap();
        assert!(matches!(ending, Ending::TimedOut(_)), "{ending:?}");
        let pid = fs::read_to_string(&file).unwrap();
        fs::remove_file(&file).unwrap();
        assert!(ends(pid.trim()));
    }

    #[test]
    fn a_process_that_ignores_sigterm_is_killed_at_its_time_limit() {
        let mut deaf = shell("trap '' TERM; while :; do sleep 0.1; done");
        let ending = run(
            &mut deaf,
            within(Duration::from_millis(200)),
            None,
            &Stop::default(),
        )
        .unwrap();
        assert!(matches!(ending, Ending::TimedOut(_)), "{ending:?}");
    }

    #[test]
    fn a_process_is_killed_only_after_it_falls_silent() {
        let path = scratch("silent");
        let log = File::create(&path).unwrap();
        let limits = Limits {
            whole: LONG,
            silence: Duration::from_secs(2),
        };
        let script = "for i in 1 2 3 4 5 6 7 8 9; do echo $i; sleep 0.5; done; sleep 600";
        let ending = run(&mut shell(script), limits, Some(&log), &Stop::default()).unwrap();
        assert!(matches!(ending, Ending::Silent(_)), "{ending:?}");
        assert!(fs::read_to_string(&path).unwrap().ends_with("9\n"));
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn exit_leaves_no_child_behind() {
        let file = scratch("left-behind");
        let script = format!("sleep 600 & echo $! > {}", file.display());
        let ending = run(&mut shell(&script), within(LONG), None, &Stop::default()).unwrap();
        assert_eq!(ending.success(), Ok(()));
        let pid = fs::read_to_string(&file).unwrap();
        fs::remove_file(&file).unwrap();
        assert!(ends(pid.trim()));
    }

    #[test]
    fn stop_ends_the_wait() {
        let stop = Stop::default();
        let setter = stop.clone();
        let thread = std::thread::spawn(move || {
            sleep(Duration::from_millis(100));
            setter.0.store(true, Ordering::Relaxed);
        });
        let ending = run(
            &mut shell("sleep 600"),
            within(Duration::from_secs(300)),
            None,
            &stop,
        )
        .unwrap();
        assert!(matches!(ending, Ending::Interrupted), "{ending:?}");
        thread.join().unwrap();
    }

    #[test]
    fn output_goes_to_the_log() {
        let path = scratch("log");
        let log = File::create(&path).unwrap();
        run(
            &mut shell("echo out; echo err >&2"),
            within(LONG),
            Some(&log),
            &Stop::default(),
        )
        .unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "out\nerr\n");
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn shown_command_can_be_typed() {
        let mut command = Command::new("cargo");
        command
            .env("RUSTFLAGS", "--cfg loom")
            .args(["test", "--test", "loom*"]);
        assert_eq!(
            command_line(&command),
            "RUSTFLAGS='--cfg loom' cargo test --test 'loom*'"
        );
    }
}
