//! Serves until a signal ends the server, or sends a command to a running server.

use std::fmt;
use std::io::{self, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use listenfd::ListenFd;
use sd_notify::NotifyState;
use signal_hook::consts::SIGXFSZ;
use upshift::signal::{SIGHUP, SIGINT, SIGTERM, Signal};
use upshift::{Level, Preemption, Runtime};
use upshift_serve::{Config, Control, Server, ask};

use super::args::ServeArgs;
use crate::choice::Switch;

/// Level of signals and control messages, more urgent than that of requests.
const OPERATOR_LEVEL: Level = Level::at::<1>();

/// Serves until SIGTERM or Ctrl-C, checks the settings, or queries a running server.
pub(crate) fn serve(args: &ServeArgs) -> Result<ExitCode> {
    if args.check {
        return Ok(check(args));
    }
    let operation = &args.operation;
    match (&operation.ask, &operation.control) {
        (Some(command), Some(socket)) => send_command(socket, command)?,
        _ => run(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Reports whether a server would start with these flags and this file.
fn check(args: &ServeArgs) -> ExitCode {
    let checked = args.settings().and_then(|config| Server::check(&config));
    match checked {
        Ok(warnings) => {
            for warning in warnings {
                report(format_args!("warning: {warning}"));
            }
            let _ = writeln!(io::stdout(), "valid");
            ExitCode::SUCCESS
        }
        Err(faults) => {
            for fault in faults.lines() {
                report(format_args!("error: {fault}"));
            }
            ExitCode::FAILURE
        }
    }
}

fn run(args: &ServeArgs) -> Result<()> {
    let config = args.settings().map_err(|error| anyhow!(error))?;
    let mut builder = Runtime::builder()
        .name("serve")
        .main_level(OPERATOR_LEVEL)
        .observe(true)
        .board(args.scheduling.board.into());
    let cpus = args.cpus.cpu.as_ref().map(|cpus| &cpus.0);
    if let Some(vcpus) = args.cpus.vcpus.or(cpus.map(Vec::len)) {
        builder = builder.vcpus(vcpus);
    }
    if let Some(cpus) = cpus {
        builder = builder.pin(cpus.iter().copied());
    }
    if args.scheduling.preempt == Switch::On {
        builder = builder.preemption(Preemption::Preferred);
    }
    if let Some(quantum) = args.scheduling.quantum {
        builder = builder.quantum(quantum);
    }
    // With a handler, a write beyond the file size limit fails, as on a full disk, and does not end
    // the process.
    signal_hook::flag::register(SIGXFSZ, Arc::default()).context("cannot handle SIGXFSZ")?;
    let sockets = inherited_sockets()?;
    args.scheduling.board.warn_if_absent();
    let runtime = builder.build().context("cannot start the runtime")?;
    let flags = args.clone();
    runtime.block_on(async move {
        let server = Server::bind_to(config.clone(), sockets)
            .map_err(|error| anyhow!(error))?
            .with_reload(move || flags.settings());
        let urls = server.urls();
        let started = server.start().map_err(|error| anyhow!(error))?;
        let control = started.control();
        listen_to_signals(&control).context("cannot listen to signals")?;
        // Ignore errors: standard output may be closed.
        let _ = announce(&urls, &config);
        notify_manager(&[NotifyState::Ready]);
        let cut_off = started.run().await;
        let answered = control.answered();
        report(format_args!(
            "ended: {answered} requests answered, {cut_off} connections cut off"
        ));
        Ok(())
    })
}

fn send_command(socket: &Path, command: &str) -> Result<()> {
    let answer = ask(socket, command)
        .with_context(|| format!("no server answers on {}", socket.display()))?;
    match answer.strip_prefix("error: ") {
        Some(error) => Err(anyhow!(error.trim().to_owned())),
        None => {
            let mut out = io::stdout().lock();
            out.write_all(answer.as_bytes()).context("cannot print")
        }
    }
}

/// Returns the sockets that a service manager has opened for this process (`LISTEN_FDS`).
fn inherited_sockets() -> Result<Vec<OwnedFd>> {
    // Without `LISTEN_PID` the sockets belong to an ancestor.
    if std::env::var_os("LISTEN_PID").is_none() {
        return Ok(Vec::new());
    }
    let mut inherited_fds = ListenFd::from_env();
    let mut sockets = Vec::new();
    for index in 0..inherited_fds.len() {
        let socket = inherited_fds.take_raw_fd(index);
        let socket = socket.with_context(|| format!("LISTEN_FDS: descriptor {}", 3 + index))?;
        // SAFETY: the service manager passed this open descriptor to this process, and nothing else
        // in the process owns it, because this is the only place that takes it.
        sockets.extend(socket.map(|socket| unsafe { OwnedFd::from_raw_fd(socket) }));
    }
    Ok(sockets)
}

/// Notifies the service manager, if there is one that expects notifications.
fn notify_manager(states: &[NotifyState<'_>]) {
    // A lost notification is harmless.
    let _ = sd_notify::notify(states);
}

/// Prints a line on standard error. If that fails (a closed pipe, a full disk) the server
/// continues.
fn report(line: fmt::Arguments<'_>) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

fn announce(urls: &[String], config: &Config) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let absolute = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let root = absolute(&config.root);
    for url in urls {
        writeln!(out, "serving {} on {url}", root.display())?;
    }
    for site in &config.site {
        let root = site.root.as_deref().map_or_else(|| root.clone(), absolute);
        writeln!(
            out,
            "serving {} for {}",
            root.display(),
            site.hosts.join(", ")
        )?;
    }
    let paths: Vec<_> = config
        .endpoints
        .iter()
        .map(|endpoint| endpoint.path())
        .collect();
    if !paths.is_empty() {
        writeln!(out, "built in: {}", paths.join(" "))?;
    }
    for rule in &config.priority {
        writeln!(out, "priority {rule}")?;
    }
    Ok(())
}

/// Installs the signal handlers: SIGHUP reloads; SIGTERM and Ctrl-C drain, and a second signal ends
/// the server at once. Signals that arrive after this call are not lost.
fn listen_to_signals(control: &Control) -> io::Result<()> {
    let mut hangups = Signal::new(SIGHUP)?;
    let reload = control.clone();
    upshift::spawn(
        async move {
            while hangups.recv().await.is_ok() {
                if let Ok(now) = NotifyState::monotonic_usec_now() {
                    notify_manager(&[NotifyState::Reloading, now]);
                }
                let outcome = reload.reload();
                notify_manager(&[NotifyState::Ready]);
                match outcome {
                    Ok(changes) => report(format_args!("reloaded; {changes}")),
                    Err(error) => {
                        report(format_args!("not reloaded, the old settings stay: {error}"))
                    }
                }
            }
        },
        OPERATOR_LEVEL,
    )
    .detach();
    for number in [SIGINT, SIGTERM] {
        let mut signals = Signal::new(number)?;
        let control = control.clone();
        upshift::spawn(
            async move {
                if signals.recv().await.is_ok() {
                    notify_manager(&[NotifyState::Stopping]);
                    control.drain();
                    let open = control.connections();
                    report(format_args!("draining: {open} connections are open"));
                }
                if signals.recv().await.is_ok() {
                    report(format_args!("ended at once"));
                    std::process::exit(1);
                }
            },
            OPERATOR_LEVEL,
        )
        .detach();
    }
    Ok(())
}
