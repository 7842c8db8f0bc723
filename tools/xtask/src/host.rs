//! Asks the kernel what this machine supports, rather than guessing it from versions.

use std::fs;
use std::path::{Path, PathBuf};

/// Checks that this process may create an io_uring. Costs two system calls.
///
/// # Errors
/// A sentence that gives the reason and the remedy.
pub(crate) fn io_uring() -> Result<(), String> {
    let Err(error) = io_uring::IoUring::new(2) else {
        return Ok(());
    };
    let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    let advice = match disabled.trim() {
        "1" | "2" => "`sysctl kernel.io_uring_disabled=0` allows it",
        "0" => "a container's seccomp profile or a low RLIMIT_MEMLOCK forbids it",
        _ => "it needs Linux 6.1 or later",
    };
    Err(format!("no io_uring here ({error}; {advice})"))
}

pub(crate) fn has_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}

/// Returns whether this is a continuous-integration run: `CI` is `true` or `1`.
pub(crate) fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true" || value == "1")
}

/// Returns the path of this program. The path stays valid after cargo has replaced the file, which
/// the kernel reports as deleted.
///
/// # Errors
/// The kernel does not report a path.
pub(crate) fn this_program() -> Result<PathBuf, String> {
    let path = std::env::current_exe().map_err(|error| error.to_string())?;
    Ok(without_deleted_suffix(&path))
}

fn without_deleted_suffix(path: &Path) -> PathBuf {
    let name = path.as_os_str().to_string_lossy();
    match name.strip_suffix(" (deleted)") {
        Some(original) if !path.exists() => PathBuf::from(original),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_a_rebuilt_program_has_no_deleted_suffix() {
        let path = Path::new("/nowhere/xtask (deleted)");
        assert_eq!(without_deleted_suffix(path), Path::new("/nowhere/xtask"));
        let path = Path::new("/nowhere/xtask");
        assert_eq!(without_deleted_suffix(path), path);
    }
}
