//! `cargo xtask compat`: tests how much of the code written for tokio runs on Upshift.
//!
//! - `tokio`: tokio's published tests, compared with the list of known failures.
//! - `programs`: published crates that need a tokio runtime, against real servers.
//! - `service`: `examples/service`, which combines many such crates, on both drivers and in a
//!   container.

mod programs;
mod servers;
mod service;
mod tokio;

use std::path::Path;
use std::process::ExitCode;

use clap::Subcommand;

use crate::step::{Context, Verdict};

#[derive(Subcommand)]
pub(crate) enum Compat {
    /// tokio's published tests against `upshift::{sync, time, task}`
    Tokio {
        /// Only these files (`sync_mpsc`)
        files: Vec<String>,
    },
    /// Crates that need a tokio runtime, against postgres, redis and HTTP servers
    Programs {
        /// Only these operations (`redis`)
        operations: Vec<String>,
    },
    /// The service of examples/: its routes, and its urgent request alone and beside a job and 600
    /// downloads
    Service {
        /// Only the built service, inside an environment of this name
        #[arg(long, hide = true)]
        inside: Option<String>,
        /// Only on this driver, and not in a container
        #[arg(long, value_parser = ["ring", "readiness"])]
        driver: Option<String>,
        /// Beside `upshift daemon`, whose rules give postgres and redis a level; needs root; not in
        /// a container
        #[arg(long)]
        daemon: bool,
    },
}

pub(crate) fn command(root: &Path, compat: &Compat) -> ExitCode {
    let result = match compat {
        Compat::Tokio { files } => tokio::command(root, files),
        Compat::Programs { operations } => programs::command(root, operations),
        Compat::Service {
            inside,
            driver,
            daemon,
        } => service::service(root, inside.as_deref(), driver.as_deref(), *daemon),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs tokio's published tests as a step of the suite.
pub(crate) fn tokio_step(context: &Context<'_>) -> Verdict {
    tokio::step(context)
}

/// Builds the tests of [`tokio_step`].
pub(crate) fn build_tokio(context: &Context<'_>) -> Result<(), String> {
    tokio::build_all(context.root, context.stop)
}

/// Runs the published crates as a step of the suite.
pub(crate) fn programs_step(context: &Context<'_>) -> Verdict {
    programs::step(context)
}

/// Builds the program of [`programs_step`], if its servers are installed.
pub(crate) fn build_programs(context: &Context<'_>) -> Result<(), String> {
    programs::build_for_step(context)
}
