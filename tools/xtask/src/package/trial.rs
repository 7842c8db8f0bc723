//! The package on trial: installed by dpkg, used, and removed, in a copy of this machine's files: a file system in memory over them, in a mount
//! namespace of its own. Nothing of the machine changes, and all of it goes with the last process.
//!
//! What is held against it: the units pass `systemd-analyze verify`; the pages render without a warning; the default configuration is valid; the
//! daemon runs with the rights that its unit leaves it, and in good order ends without a trace; a second installation over the first one keeps
//! a configuration that was changed; and after `dpkg --purge` no file is there that was not before.

use std::io;
use std::path::Path;
use std::process::Command;

use crate::host;

const ENTER: &str = include_str!("enter.sh");
const TRY: &str = include_str!("try.sh");

/// Lines of what it said that are shown when it fails.
const SHOWN: usize = 20;

/// Tries the package; what was done, or why it could not be.
pub(super) fn of(package: &Path, work: &Path) -> io::Result<String> {
    if !rustix::process::geteuid().is_root() {
        return Ok("not installed on trial: that takes root".to_string());
    }
    let place = work.join("trial");
    std::fs::create_dir_all(&place)?;
    let possible = Command::new("unshare")
        .args(["--mount", "--pid", "--fork", "--net", "true"])
        .output();
    if !possible.is_ok_and(|it| it.status.success()) || !host::has_program("dpkg") {
        return Ok("not installed on trial: no namespaces, or no dpkg".to_string());
    }
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
    enter.arg(&place).arg(package).env("TRY", TRY);
    enter.env("DEBIAN_FRONTEND", "noninteractive");
    enter.env("LC_ALL", "C.UTF-8");
    enter.env_remove("NOTIFY_SOCKET");
    enter.env_remove("UPSHIFT_DAEMON_SOCKET");
    let done = enter.output()?;
    let _ = std::fs::remove_dir(&place);
    let mut said = String::from_utf8_lossy(&done.stdout).into_owned();
    said.push_str(&String::from_utf8_lossy(&done.stderr));
    if done.status.success() {
        return Ok("installed, used and removed on trial".to_string());
    }
    let lines: Vec<&str> = said.lines().collect();
    let end = lines[lines.len().saturating_sub(SHOWN)..].join("\n");
    Err(io::Error::other(format!(
        "the package fails its trial ({}):\n{end}",
        done.status
    )))
}
