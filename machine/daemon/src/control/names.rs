//! Translates thread ids between the pid namespaces of a client and the daemon.
//!
//! A client in a separate pid namespace (a container) names its threads by TIDs of its own
//! namespace. The kernel lists the TIDs of a thread in every namespace from the daemon's down
//! (`NSpid` of `/proc/PID/task/TID/status`), so the threads of the connected process are searched,
//! and a TID can mean only one of them. For a process in the daemon's namespace one file is read.
//! For a process in another namespace one more file is read for each of its threads, of which it
//! may have [`MAX_THREADS`]. A reader runs this search (`proc/reader.rs`).

use std::collections::HashMap;
use std::fs;
use std::io;

use upshift_board::wire::{Reason, Role, Thread};
use upshift_elevate::sys::read_at_once;

use crate::control::requests::{Outcome, refuse};

/// Maximum number of threads that are searched in one process, at about 15 µs each.
const MAX_THREADS: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NamedThread {
    /// TID in the daemon's namespace, or 0 if the client has no such thread.
    pub(crate) tid: i32,
    pub(crate) name: i32,
    pub(crate) vcpu: u16,
    pub(crate) role: Role,
}

/// Returns the id in the innermost namespace according to a `status` file; `None` if the process is
/// in the daemon's namespace.
fn innermost(status: &str) -> Option<i32> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    let mut numbers = line.split_ascii_whitespace();
    numbers.next()?;
    numbers.last()?.parse().ok()
}

pub(super) fn translate(pid: i32, threads: &[Thread]) -> Outcome<Vec<NamedThread>> {
    let named = |tid: i32, thread: &Thread| NamedThread {
        tid,
        name: thread.tid,
        vcpu: thread.vcpu,
        role: thread.role,
    };
    let status = read_at_once(format!("/proc/{pid}/status")).unwrap_or_default();
    if innermost(&status).is_none() {
        return Ok(threads
            .iter()
            .map(|thread| named(thread.tid, thread))
            .collect());
    }
    let Ok(numbers) = numbers(pid) else {
        return refuse(
            Reason::Thread,
            format!(
                "process {pid} is in another pid namespace, and has ended or has more than {MAX_THREADS} threads"
            ),
        );
    };
    let known = |thread: &Thread| named(numbers.get(&thread.tid).copied().unwrap_or(0), thread);
    Ok(threads.iter().map(known).collect())
}

/// Maps the TID of each thread in its own namespace to its TID in the daemon's namespace.
fn numbers(pid: i32) -> io::Result<HashMap<i32, i32>> {
    let mut tids = HashMap::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        let name = entry?.file_name();
        let Some(tid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if tids.len() >= MAX_THREADS {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        // The thread may have ended.
        let status = read_at_once(format!("/proc/{pid}/task/{tid}/status"));
        if let Some(number) = status.ok().as_deref().and_then(innermost) {
            tids.insert(number, tid);
        }
    }
    Ok(tids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_number_is_the_last_of_several() {
        assert_eq!(innermost("Name:\tx\nNSpid:\t4711\n"), None);
        assert_eq!(innermost("NSpid:\t4711\t12\t3\nNSpgid:\t9\t8\n"), Some(3));
        assert_eq!(innermost(""), None);
    }
}
