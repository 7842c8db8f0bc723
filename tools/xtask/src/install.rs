//! Runs a command that installs a tool, and prints the outcome.

use std::process::Command;
use std::time::Duration;

use crate::run::{Ending, Limits, Stop, command_line, run};

const INSTALL_LIMIT: Duration = Duration::from_secs(300);

/// Runs `command`; returns whether it succeeded.
pub(crate) fn install(command: &mut Command, stop: &Stop) -> bool {
    println!("setup: {}", command_line(command));
    match run(command, Limits::within(INSTALL_LIMIT), None, stop)
        .map(|ending: Ending| ending.success())
    {
        Ok(Ok(())) => true,
        Ok(Err(reason)) => {
            println!("setup: {reason}");
            false
        }
        Err(error) => {
            println!("setup: {error}");
            false
        }
    }
}
