//! Tests whose body runs in a child process.

use std::process::Command;

/// Returns the command that runs only the test `name` of this program. The caller sets an
/// environment variable from which the test learns that it runs in the child.
pub(crate) fn child(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture"]);
    command
}
