//! Runs `compat/programs` against real servers.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::servers::Servers;
use crate::packages;
use crate::run::{Limits, Stop, run};
use crate::setup;
use crate::step::{Context, Done, Verdict};

/// Operations, by their names in `compat/programs/src/operations.rs`.
const OPERATIONS: [&str; 12] = [
    "reqwest-http1",
    "reqwest-http2",
    "axum-sse",
    "axum-ws-tungstenite",
    "tower",
    "tokio-postgres",
    "redis",
    "sqlx",
    "tonic-unary",
    "tonic-streaming",
    "lapin",
    "opentelemetry",
];

/// Time limit of one operation.
const LIMIT: Duration = Duration::from_secs(90);

/// Build profile of the programs: optimized where their times matter.
#[derive(Clone, Copy)]
enum Profile {
    Debug,
    Release,
}

impl Profile {
    fn folder(self) -> &'static str {
        match self {
            Profile::Debug => "debug",
            Profile::Release => "release",
        }
    }
}

pub(super) fn command(root: &Path, only: &[String]) -> Result<(), String> {
    let stop = Stop::on_signals().map_err(|error| error.to_string())?;
    let program = build(root, Profile::Release, &stop, None)?;
    run_all(&program, only, &stop, None)
}

/// Tries to install the servers without which nothing runs, and names one that is still missing.
fn install_servers(stop: &Stop) -> Option<String> {
    let servers = [&packages::REDIS, &packages::POSTGRESQL];
    packages::install(&servers, stop);
    let missing = servers.into_iter().find(|server| !server.is_installed());
    missing.map(packages::Package::absence)
}

pub(super) fn build_for_step(context: &Context<'_>) -> Result<(), String> {
    if install_servers(context.stop).is_some() {
        return Ok(());
    }
    let log = context.log_file()?;
    build(context.root, Profile::Debug, context.stop, log.as_ref()).map(drop)
}

pub(super) fn step(context: &Context<'_>) -> Verdict {
    if let Some(absence) = install_servers(context.stop) {
        return Ok(Done::Skipped(absence));
    }
    let log = context.log_file()?;
    let program = build(context.root, Profile::Debug, context.stop, log.as_ref())?;
    run_all(&program, &[], context.stop, log.as_ref())?;
    if !packages::RABBITMQ.is_installed() {
        let absence = packages::RABBITMQ.absence();
        return Ok(Done::Skipped(format!("all passed but lapin: {absence}")));
    }
    Ok(Done::Passed(format!("{} operations", OPERATIONS.len())))
}

fn build(
    root: &Path,
    profile: Profile,
    stop: &Stop,
    log: Option<&File>,
) -> Result<PathBuf, String> {
    let target = root.join("target/xtask/compat-programs");
    let mut build = setup::cargo(root);
    build
        .args(["build", "--locked", "--manifest-path"])
        .arg(root.join("compat/programs/Cargo.toml"))
        .env("CARGO_TARGET_DIR", &target);
    if let Profile::Release = profile {
        build.arg("--release");
    }
    let ending =
        run(&mut build, Limits::of_progress(), log, stop).map_err(|error| error.to_string())?;
    ending.success()?;
    Ok(target.join(profile.folder()).join("compat-programs"))
}

/// Starts servers, runs the chosen operations against them and writes the table to the log, or to
/// standard output.
fn run_all(program: &Path, only: &[String], stop: &Stop, log: Option<&File>) -> Result<(), String> {
    let is_chosen = |name: &str| only.is_empty() || only.iter().any(|only| only == name);
    let mut servers = Servers::start()?;
    if is_chosen("lapin") && packages::RABBITMQ.is_installed() {
        servers.start_rabbitmq()?;
    }
    let write_line = |line: String| match log {
        Some(mut log) => writeln!(log, "{line}").map_err(|error| error.to_string()),
        None => writeln!(io::stdout(), "{line}").map_err(|error| error.to_string()),
    };
    write_line("| | alone | beside busy coroutines | tokio |\n|---|---|---|---|".to_owned())?;
    let mut failed = Vec::new();
    for name in OPERATIONS {
        if !is_chosen(name) {
            continue;
        }
        if name == "lapin" && !packages::RABBITMQ.is_installed() {
            write_line(format!(
                "| {name} | skipped: {} | | |",
                packages::RABBITMQ.absence()
            ))?;
            continue;
        }
        let mut command = Command::new(program);
        command
            .arg(name)
            .env("COMPAT_POSTGRES", servers.postgres())
            .env("COMPAT_POSTGRES_URL", servers.postgres_url())
            .env("COMPAT_REDIS", &servers.redis)
            .env("COMPAT_RABBITMQ", servers.rabbitmq());
        let ending = run(&mut command, Limits::within(LIMIT), log, stop)
            .map_err(|error| error.to_string())?;
        if let Err(reason) = ending.success() {
            write_line(format!("| {name} | {reason} | | |"))?;
            failed.push(name);
        }
    }
    if failed.is_empty() {
        Ok(())
    } else {
        Err(format!("programs that fail: {}", failed.join(", ")))
    }
}
