//! `cargo xtask confine`: runs a program where io_uring is forbidden, as the default profile of containers forbids it, and as an
//! ordinary user if that is asked for.
//!
//! The filter is a process's own: no rights are needed, it cannot be taken off again, and what the program starts has it too.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use crate::host;

/// `io_uring_setup`, `io_uring_enter`, `io_uring_register`: the same numbers on all architectures.
const IO_URING: [i64; 3] = [425, 426, 427];
const EPERM: u32 = 1;

/// The user that has nothing.
pub(crate) const NOBODY: &str = "65534";

/// Becomes the program.
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
    let refused = IO_URING.map(|call| (call, Vec::new()));
    let filter = SeccompFilter::new(
        BTreeMap::from(refused),
        SeccompAction::Allow,
        SeccompAction::Errno(EPERM),
        std::env::consts::ARCH.try_into()?,
    )?;
    let program: BpfProgram = filter.try_into()?;
    // Says that no program may gain rights, which is what makes it permitted.
    seccompiler::apply_filter(&program)
}

/// Has `cargo test` run its programs here, without io_uring; as a user without rights, if `humble`.
///
/// # Errors
/// If this program does not know where it is.
pub(crate) fn tests(cargo: &mut Command, root: &Path, humble: bool) -> Result<(), String> {
    let here = host::this_program()?;
    let confined = format!("{} confine --", here.display());
    let runner = if humble {
        let user = format!("setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups");
        format!("{user} {confined}")
    } else {
        confined
    };
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let variable = target.to_uppercase().replace('-', "_");
    cargo
        .current_dir(root)
        .env(format!("CARGO_TARGET_{variable}_RUNNER"), runner)
        // The choice is part of what is tested.
        .env_remove("UPSHIFT_DRIVER");
    Ok(())
}
