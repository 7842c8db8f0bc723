//! Reads files of a process in `/proc`, even if its main thread has ended.
//!
//! Such a process continues in its other threads, but `/proc/PID` describes the main thread. This
//! thread no longer has memory, and is in the root cgroup of each cgroup v1 hierarchy. So the files
//! of a living thread are read instead.

use std::io;
use std::path::{Path, PathBuf};

use upshift_elevate::sys::read_at_once;

/// Reads the file `name` of process `pid` or, if its main thread has ended, of a living thread. If
/// the whole process has ended, returns the remaining text.
pub(crate) fn read(pid: i32, name: &str) -> io::Result<String> {
    let text = read_at_once(format!("/proc/{pid}/{name}"))?;
    // This is checked afterwards, because a thread that lives now was alive while the file was
    // read.
    if !has_ended(&PathBuf::from(format!("/proc/{pid}/task/{pid}")))? {
        return Ok(text);
    }
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let directory = thread?.path();
        match read_at_once(directory.join(name)) {
            Ok(text) if !has_ended(&directory)? => return Ok(text),
            Ok(_) => {}
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(text)
}

fn has_ended(thread: &Path) -> io::Result<bool> {
    let stat = match read_at_once(thread.join("stat")) {
        Err(error) if is_gone(&error) => return Ok(true),
        stat => stat?,
    };
    // The name may contain anything, and ends at the last parenthesis.
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    Ok(state.is_some_and(|state| state.starts_with(['Z', 'X', 'x'])))
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
}
