//! What `/proc` says of a process, also when its main thread has ended.
//!
//! Such a process lives on in its other threads, but `/proc/PID` tells of the main thread: that it has no memory, and in hierarchies of
//! cgroups of the first version that it is in the root. So a thread that lives is asked.

use std::io;
use std::path::{Path, PathBuf};

use upshift_elevate::sys::read_at_once;

/// Reads the file `name` of process `pid`, or, if its main thread has ended, that of a thread which lives. Of one that has ended as a whole, what is left.
pub(crate) fn read(pid: i32, name: &str) -> io::Result<String> {
    let text = read_at_once(format!("/proc/{pid}/{name}"))?;
    // Asked afterwards: what lives now lived when that was read.
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
    // Its name may hold anything, and ends at the last parenthesis.
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    Ok(state.is_some_and(|state| state.starts_with(['Z', 'X', 'x'])))
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
}
