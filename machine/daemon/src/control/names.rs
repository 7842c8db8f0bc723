//! Numbers of threads as a client knows them, and as the daemon does.
//!
//! A client in a pid namespace of its own (a container) names its threads by that namespace's
//! numbers. The kernel says what each is called in every namespace from the daemon's down
//! (`NSpid` of `/proc/PID/task/TID/status`), so they are translated by looking through the
//! threads of the process that has connected: a number can only ever mean one of them. A process
//! whose numbers are the daemon's own costs one file; another one a file for each thread it has,
//! of which it may have [`MOST`]. For a reader (`proc/reader.rs`).

use std::collections::HashMap;
use std::fs;
use std::io;

use upshift_board::wire::{Reason, Role, Thread};
use upshift_elevate::sys::read_at_once;

use crate::control::requests::{Outcome, refuse};

/// Threads of a process that are looked through: some 15 µs each.
const MOST: usize = 256;

/// A thread that is to be registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Named {
    /// Its number for the daemon; 0 if the client has no such thread.
    pub(crate) tid: i32,
    /// Its number for the client.
    pub(crate) name: i32,
    pub(crate) vcpu: u16,
    pub(crate) role: Role,
}

/// Number in the innermost namespace, if that is not the only one.
fn innermost(status: &str) -> Option<i32> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    let mut numbers = line.split_ascii_whitespace();
    numbers.next()?;
    numbers.last()?.parse().ok()
}

/// What `threads` of process `pid` are called here.
pub(super) fn translate(pid: i32, threads: &[Thread]) -> Outcome<Vec<Named>> {
    let named = |tid: i32, it: &Thread| Named {
        tid,
        name: it.tid,
        vcpu: it.vcpu,
        role: it.role,
    };
    let status = read_at_once(format!("/proc/{pid}/status")).unwrap_or_default();
    if innermost(&status).is_none() {
        return Ok(threads.iter().map(|it| named(it.tid, it)).collect());
    }
    let Ok(numbers) = numbers(pid) else {
        return refuse(
            Reason::Thread,
            format!(
                "process {pid} is in another pid namespace, and has ended or has more than {MOST} threads"
            ),
        );
    };
    let known = |it: &Thread| named(numbers.get(&it.tid).copied().unwrap_or(0), it);
    Ok(threads.iter().map(known).collect())
}

/// Of each thread: the number in its own namespace, and here.
fn numbers(pid: i32) -> io::Result<HashMap<i32, i32>> {
    let mut found = HashMap::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        let name = entry?.file_name();
        let Some(tid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if found.len() >= MOST {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        // It may have ended.
        let status = read_at_once(format!("/proc/{pid}/task/{tid}/status"));
        if let Some(number) = status.ok().as_deref().and_then(innermost) {
            found.insert(number, tid);
        }
    }
    Ok(found)
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
