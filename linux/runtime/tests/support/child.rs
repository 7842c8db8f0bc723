//! Tests whose body runs in a process of its own.

use std::process::Command;

/// Returns the command that runs the test `name` of this program, and no other. The caller sets a
/// variable that tells the test that it is the child.
pub(crate) fn child(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture"]);
    command
}
