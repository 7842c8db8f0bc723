//! `cargo xtask confine`: runs a program where io_uring is forbidden, as the default profile of
//! containers forbids it, and optionally as an ordinary user.
//!
//! The process sets the filter on itself, which needs no privileges, cannot be undone, and extends
//! to all children.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use crate::host;

/// `io_uring_setup`, `io_uring_enter` and `io_uring_register`, which have the same numbers on all
/// architectures.
const IO_URING: [i64; 3] = [425, 426, 427];
const EPERM: u32 = 1;

/// User id of `nobody`, which has no privileges.
pub(crate) const NOBODY: &str = "65534";

/// Replaces this process by the program.
pub(crate) fn command(words: &[OsString]) -> ExitCode {
    let Some((program, arguments)) = words.split_first() else {
        eprintln!("error: no program was named");
        return ExitCode::from(2);
    };
    if let Err(error) = forbid_io_uring() {
        eprintln!("error: no filter of system calls can be set: {error}");
        return ExitCode::FAILURE;
    }
    let error = Command::new(program).args(arguments).exec();
    eprintln!("error: cannot run {}: {error}", program.display());
    ExitCode::FAILURE
}

fn forbid_io_uring() -> Result<(), seccompiler::Error> {
    let rules = IO_URING.map(|call| (call, Vec::new()));
    let filter = SeccompFilter::new(
        BTreeMap::from(rules),
        SeccompAction::Allow,
        SeccompAction::Errno(EPERM),
        std::env::consts::ARCH.try_into()?,
    )?;
    let program: BpfProgram = filter.try_into()?;
    // The call first sets no_new_privs, without which an unprivileged process may not install a
    // filter.
    seccompiler::apply_filter(&program)
}

/// Makes `cargo test` run its programs through this command, without io_uring, and without
/// privileges if `unprivileged`.
///
/// # Errors
/// The path of this program is unknown.
pub(crate) fn wrap_tests(
    cargo: &mut Command,
    root: &Path,
    unprivileged: bool,
) -> Result<(), String> {
    let program = host::this_program()?;
    let wrapper = format!("{} confine --", program.display());
    let runner = if unprivileged {
        let user = format!("setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups");
        format!("{user} {wrapper}")
    } else {
        wrapper
    };
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let variable = target.to_uppercase().replace('-', "_");
    cargo
        .current_dir(root)
        .env(format!("CARGO_TARGET_{variable}_RUNNER"), runner)
        // The tests cover the automatic choice of the driver.
        .env_remove("UPSHIFT_DRIVER");
    Ok(())
}
