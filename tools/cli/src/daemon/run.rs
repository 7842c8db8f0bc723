//! Runs the daemon until a signal ends it, checks a configuration, or queries the running daemon.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use upshift_daemon::{Assign, Config, Daemon, Fitting, default_socket};

use super::args::DaemonArgs;

pub(crate) fn daemon(args: &DaemonArgs) -> Result<()> {
    if args.status {
        return status(args);
    }
    if args.check {
        return check(args);
    }
    let config = config(args)?;
    let socket = config.socket.clone();
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).context("cannot handle signals")?;
    let folder = socket.parent();
    let folder = folder.filter(|folder| !folder.as_os_str().is_empty() && !folder.exists());
    let daemon = Daemon::start(config)?;
    if let Some(folder) = folder {
        let folder = folder.display();
        let _ = writeln!(
            std::io::stderr(),
            "upshift daemon: made the directory {folder} for its socket"
        );
    }
    lock_memory();
    // Ignore errors: a pipe may be closed, or a disk full.
    let _ = writeln!(std::io::stderr(), "upshift daemon: {}", daemon.mode());
    let _ = writeln!(std::io::stdout(), "listening at {}", socket.display());
    let _ = std::io::stdout().flush();
    for signal in signals.forever() {
        if signal != SIGHUP {
            break;
        }
        // An unreadable file leaves the configuration unchanged.
        match wait_until_complete(args).and_then(|()| self::config(args)) {
            Ok(config) => daemon.reload(config),
            Err(error) => {
                let _ = writeln!(
                    std::io::stderr(),
                    "upshift daemon: the configuration stays as it was: {error:#}"
                );
            }
        }
    }
    daemon.stop();
    Ok(())
}

/// Locks the daemon's memory, because the daemon's threads run above all others and must not wait
/// for a disk when memory is short. Pages, including those of code, stay in memory once they have
/// been touched. Only root does this, since the limit on locked memory cannot make root's later
/// allocations fail. If root lacks the required capability, the kernel refuses, and nothing is
/// locked.
fn lock_memory() {
    use rustix::mm::{MlockAllFlags, mlockall};
    if rustix::process::geteuid().is_root() {
        let _ = mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT);
    }
}

/// Time after which an unchanged file counts as complete; also the interval between two checks.
const SETTLE_TIME: Duration = Duration::from_millis(100);
/// Number of checks after which a changing file counts as still being written.
const MAX_READS: usize = 20;

/// Waits until writing to the file has ended, because half a file may be valid but lack the rules
/// that keep users out.
fn wait_until_complete(args: &DaemonArgs) -> Result<()> {
    let Some(path) = &args.config else {
        return Ok(());
    };
    let read = || std::fs::read(path).with_context(|| path.display().to_string());
    let mut previous = read()?;
    for _ in 0..MAX_READS {
        std::thread::sleep(SETTLE_TIME);
        let current = read()?;
        if current == previous && !current.is_empty() {
            return Ok(());
        }
        previous = current;
    }
    if previous.is_empty() {
        bail!(
            "{} is empty: for the defaults, write a comment into it",
            path.display()
        )
    } else {
        bail!("{} is still being written", path.display())
    }
}

/// Reports whether a daemon would start with these flags and this file, and which settings have no
/// effect here.
fn check(args: &DaemonArgs) -> Result<()> {
    let config = config(args)?;
    for remark in config.remarks() {
        let _ = writeln!(std::io::stderr(), "note: {remark}");
    }
    let _ = writeln!(
        std::io::stdout(),
        "valid: {} user rules ([[rule]]), {} assignments ([[assign]]); socket {}",
        config.rules.len(),
        config.assign.len(),
        config.socket.display()
    );
    for (rule, processes) in config.assign.iter().zip(config.assigned_now()) {
        let _ = write!(
            std::io::stdout(),
            "{}",
            matching_processes(rule, &processes)
        );
    }
    Ok(())
}

/// Maximum number of processes that are listed for a rule.
const MAX_LISTED: usize = 50;

/// Lists the processes that currently get their level from a rule, one per line.
fn matching_processes(rule: &Assign, processes: &[Fitting]) -> String {
    let mut text = match processes.len() {
        0 => format!("{rule}: no running process matches\n"),
        1 => format!("{rule}: 1 running process matches\n"),
        count => format!("{rule}: {count} running processes match\n"),
    };
    for process in processes.iter().take(MAX_LISTED) {
        text += &format!(
            "  {} {} (user {})\n",
            process.pid, process.comm, process.user
        );
    }
    if processes.len() > MAX_LISTED {
        text += &format!("  and {} more\n", processes.len() - MAX_LISTED);
    }
    text
}

fn config(args: &DaemonArgs) -> Result<Config> {
    let mut config = match &args.config {
        Some(path) => Config::read(path)?,
        None => Config::default().of_this_machine(),
    };
    if let Some(socket) = &args.socket {
        config.socket.clone_from(socket);
    }
    config.mode = args.mode.unwrap_or(config.mode);
    config.group = args.group.or(config.group);
    config.ceiling = args.ceiling.unwrap_or(config.ceiling);
    config.cooperative |= args.cooperative;
    Ok(config)
}

fn status(args: &DaemonArgs) -> Result<()> {
    let socket = match (&args.socket, &args.config) {
        (Some(socket), _) => socket.clone(),
        (None, Some(path)) => Config::read(path)?.socket,
        (None, None) => upshift_board::client::find().unwrap_or_else(default_socket),
    };
    let census = upshift_board::client::census(&socket)?;
    let value: serde_json::Value =
        serde_json::from_str(&census.json).context("the daemon's answer is not JSON")?;
    // A closed pipe (`| head`) ends the output and is no error.
    let _ = writeln!(
        std::io::stdout(),
        "{}",
        serde_json::to_string_pretty(&value)?
    );
    Ok(())
}
