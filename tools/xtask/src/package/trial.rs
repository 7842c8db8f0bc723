//! Tries the Debian package: installs it with dpkg, uses it and removes it, in two places. The
//! first is a copy of this machine's files (a file system in memory over them, in a new mount
//! namespace). The second is a minimal root file system with only the base of this Debian release.
//! The machine remains unchanged, and all changes disappear with the last process.
//!
//! Checks: the units pass `systemd-analyze verify`; the man pages render without a warning; the
//! default configuration is valid; the daemon runs with the privileges of its unit and ends without
//! leaving anything behind; a second installation keeps a changed configuration; the package serves
//! a page in the clean root; after `dpkg --purge` no new file remains.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::host;
use crate::packages;

const ENTER: &str = include_str!("enter.sh");
const TRY: &str = include_str!("try.sh");
const CLEAN: &str = include_str!("clean.sh");

/// Number of last lines of the output that an error shows.
const SHOWN_LINES: usize = 20;

/// Tries the package; returns the checks that were made, or the reason for making none.
pub(super) fn try_package(package: &Path, work: &Path) -> io::Result<String> {
    if !rustix::process::geteuid().is_root() {
        return Ok("not installed on trial: that requires root".to_string());
    }
    let namespaces = Command::new("unshare")
        .args(["--mount", "--pid", "--fork", "--net", "true"])
        .output();
    if !namespaces.is_ok_and(|output| output.status.success()) || !host::has_program("dpkg") {
        return Ok("not installed on trial: no namespaces, or no dpkg".to_string());
    }
    let place = work.join("trial");
    run(package, &place, Path::new("/"), TRY)?;
    let clean = match clean_root(&work.join("clean")) {
        Ok(base) => base,
        Err(reason) => return Ok(format!("not tried in a clean root: {reason}")),
    };
    run(package, &place, &clean, CLEAN)?;
    Ok("installed, used and removed on trial, also in a clean root".to_string())
}

/// Returns a directory with the base of this machine's Debian release. The first call creates the
/// directory.
///
/// # Errors
/// The reason why there is none.
fn clean_root(base: &Path) -> Result<PathBuf, String> {
    let status_file = base.join("var/lib/dpkg/status");
    if status_file.exists() {
        return Ok(base.to_owned());
    }
    let absence = packages::DEBOOTSTRAP.absence();
    if !packages::DEBOOTSTRAP.is_installed() {
        return Err(absence);
    }
    let os_release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let release = os_release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
        .ok_or("/etc/os-release names no release")?;
    // A directory left by an interrupted run would be taken for a complete one.
    let incomplete = base.with_extension("half");
    let _ = std::fs::remove_dir_all(&incomplete);
    let mut make = Command::new("debootstrap");
    make.args(["--variant=minbase", release]).arg(&incomplete);
    let result = make.output().map_err(|error| error.to_string())?;
    if !result.status.success() {
        let output = String::from_utf8_lossy(&result.stdout).into_owned();
        return Err(format!(
            "debootstrap fails: {}",
            output.lines().last().unwrap_or_default()
        ));
    }
    let _ = std::fs::remove_dir_all(base);
    std::fs::rename(&incomplete, base).map_err(|error| error.to_string())?;
    Ok(base.to_owned())
}

/// Runs a script, with the package beside it, in a copy of the files below `base`.
fn run(package: &Path, place: &Path, base: &Path, script: &str) -> io::Result<()> {
    std::fs::create_dir_all(place)?;
    let mut enter = Command::new("timeout");
    enter.args([
        "--kill-after=1",
        "120",
        "unshare",
        "--mount",
        "--pid",
        "--fork",
    ]);
    enter.args(["--kill-child", "--", "sh", "-c", ENTER, "trial"]);
    enter.arg(place).arg(package).arg(base).env("TRY", script);
    enter.env("DEBIAN_FRONTEND", "noninteractive");
    enter.env("LC_ALL", "C.UTF-8");
    enter.env_remove("NOTIFY_SOCKET");
    enter.env_remove("UPSHIFT_DAEMON_SOCKET");
    let result = enter.output()?;
    let _ = std::fs::remove_dir(place);
    let mut output = String::from_utf8_lossy(&result.stdout).into_owned();
    output.push_str(&String::from_utf8_lossy(&result.stderr));
    if result.status.success() {
        return Ok(());
    }
    let lines: Vec<&str> = output.lines().collect();
    let end = lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n");
    Err(io::Error::other(format!(
        "the package fails its trial ({}):\n{end}",
        result.status
    )))
}
