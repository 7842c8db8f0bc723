//! `compat/programs` against real servers.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::servers::Servers;
use crate::packages;
use crate::run::{Stop, run};
use crate::setup;

/// As `compat/programs/src/operations.rs` names them.
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

const BUILD_LIMIT: Duration = Duration::from_secs(900);
const LIMIT: Duration = Duration::from_secs(90);

/// Builds, starts the servers, prints the table.
pub(super) fn programs(root: &Path, only: &[String]) -> Result<(), String> {
    let stop = Stop::on_signals().map_err(|error| error.to_string())?;
    let package = root.join("compat/programs");
    let target = root.join("target/xtask/compat-programs");
    let mut build = setup::cargo(root);
    build
        .args(["build", "--release", "--manifest-path"])
        .arg(package.join("Cargo.toml"))
        .env("CARGO_TARGET_DIR", &target);
    let ending = run(&mut build, BUILD_LIMIT, None, &stop).map_err(|error| error.to_string())?;
    ending.success()?;
    let chosen = |name: &str| only.is_empty() || only.iter().any(|only| only == name);
    let mut servers = Servers::start()?;
    if chosen("lapin") && packages::RABBITMQ.is_there() {
        servers.start_rabbitmq()?;
    }
    println!("| | alone | beside busy coroutines | tokio |\n|---|---|---|---|");
    let mut failed = Vec::new();
    for name in OPERATIONS {
        if !chosen(name) {
            continue;
        }
        if name == "lapin" && !packages::RABBITMQ.is_there() {
            println!("| {name} | skipped: {} | | |", packages::RABBITMQ.absence());
            continue;
        }
        let mut program = Command::new(target.join("release/compat-programs"));
        program
            .arg(name)
            .env("COMPAT_POSTGRES", servers.postgres())
            .env("COMPAT_POSTGRES_URL", servers.postgres_url())
            .env("COMPAT_REDIS", &servers.redis)
            .env("COMPAT_RABBITMQ", servers.rabbitmq());
        let ending = run(&mut program, LIMIT, None, &stop).map_err(|error| error.to_string())?;
        if let Err(reason) = ending.success() {
            println!("| {name} | {reason} | | |");
            failed.push(name);
        }
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(format!("not working: {}", failed.join(", "))),
    }
}
