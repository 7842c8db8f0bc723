//! Reads facts about processes from `/proc`. Each function opens a small file, which takes about
//! 5–15 µs.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use upshift_elevate::sys::{read_at_once, time_limit};

use crate::error::SchedError;

/// The kernel's flag for its own threads, in field 9 of `/proc/PID/stat`.
const PF_KTHREAD: u64 = 0x0020_0000;

/// Checks that process `pid` can be scheduled.
pub(crate) fn check(pid: i32) -> Result<(), SchedError> {
    let unreadable = |error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock => SchedError::Leased(pid),
        _ => SchedError::NoSuchProcess(pid),
    };
    if pid <= 0 {
        return Err(SchedError::NoSuchProcess(pid));
    }
    let status = read_at_once(format!("/proc/{pid}/status")).map_err(unreadable)?;
    let leader = field(&status, "Tgid:").and_then(|text| text.parse().ok());
    match leader {
        Some(leader) if leader != pid => {
            return Err(SchedError::NotAProcess {
                tid: pid,
                pid: leader,
            });
        }
        _ => {}
    }
    // The main thread may have ended before the other threads.
    let ended = field(&status, "State:").is_some_and(|state| state.starts_with(['Z', 'X']));
    if ended && field(&status, "Threads:").is_none_or(|threads| threads == "1") {
        return Err(SchedError::NoSuchProcess(pid));
    }
    let stat = read_at_once(format!("/proc/{pid}/stat")).map_err(unreadable)?;
    let flags = after_name(&stat).and_then(|rest| rest.split_whitespace().nth(6));
    if flags.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0) & PF_KTHREAD != 0 {
        return Err(SchedError::KernelThread(pid));
    }
    if pid == 1 || ancestors().contains(&pid) {
        return Err(SchedError::Ancestor(pid));
    }
    match time_limit(pid) {
        Ok(Some(limit_us)) => Err(SchedError::TimeLimit { pid, limit_us }),
        Err(error) => Err(unreadable(error)),
        Ok(None) => Ok(()),
    }
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines()
        .find_map(|line| line.strip_prefix(name))
        .map(str::trim)
}

/// Returns the fields after the name. The name may contain blanks and brackets.
fn after_name(stat: &str) -> Option<&str> {
    stat.rfind(')').and_then(|end| stat.get(end + 1..))
}

/// Returns the ancestors of this process: its parent, the parent of its parent, and so on. The
/// ancestors and the first process cannot be scheduled.
pub fn ancestors() -> Vec<i32> {
    let mut found = Vec::new();
    let mut pid = std::process::id() as i32;
    loop {
        let stat = read_at_once(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = after_name(&stat).and_then(|rest| rest.split_whitespace().nth(1));
        match parent.and_then(|text| text.parse().ok()) {
            Some(parent) if parent > 0 && !found.contains(&parent) => pid = parent,
            _ => return found,
        }
        found.push(pid);
    }
}

/// Returns whether a process of this user or of root holds a lock on `file`; `true` if unknown.
///
/// A process that has ended may have left its lock to a child. Schedulers leave no lock to a child.
/// So in the first pid namespace, where all living processes are visible, a lock without a living
/// holder is ignored.
pub(crate) fn is_locked_by_a_peer(file: &fs::File) -> bool {
    let (Ok(found), Ok(locks)) = (file.metadata(), read_at_once("/proc/locks")) else {
        return true;
    };
    let (major, minor) = (libc::major(found.dev()), libc::minor(found.dev()));
    let id = format!("{major:02x}:{minor:02x}:{}", found.ino());
    let holders: Vec<i32> = locks
        .lines()
        .filter(|line| !line.contains("->"))
        .map(|line| line.split_ascii_whitespace().collect::<Vec<_>>())
        .filter(|fields| fields.get(5) == Some(&id.as_str()))
        .filter_map(|fields| fields.get(4)?.parse().ok())
        .collect();
    let lives = |pid: &i32| fs::metadata(format!("/proc/{pid}")).is_ok();
    let mut living = holders.into_iter().filter(lives).peekable();
    // In another pid namespace the holder may live without a visible number.
    (living.peek().is_none() && !sees_all_processes())
        || living.any(|pid| matches!(user_ids(pid), (0, _)) || same_user(pid))
}

/// Inode of the pid namespace in which the machine started.
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

fn sees_all_processes() -> bool {
    fs::metadata("/proc/self/ns/pid").is_ok_and(|found| found.ino() == FIRST_PID_NAMESPACE)
}

fn same_user(pid: i32) -> bool {
    let (theirs, ours) = user_ids(pid);
    theirs == ours
}

/// Returns the user of process `pid`, and the user of this process.
pub(crate) fn user_ids(pid: i32) -> (u32, u32) {
    let theirs = fs::metadata(format!("/proc/{pid}")).map_or(0, |found| found.uid());
    let ours = fs::metadata("/proc/self").map_or(0, |found| found.uid());
    (theirs, ours)
}

pub(crate) fn threads(pid: i32) -> io::Result<Vec<i32>> {
    let mut tids = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        let name = entry?.file_name();
        tids.extend(name.to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    Ok(tids)
}

/// Returns the living processes that the threads of `pid` have forked.
pub(crate) fn children(pid: i32, tids: impl Iterator<Item = i32>) -> Vec<i32> {
    let read = |tid: i32| read_at_once(format!("/proc/{pid}/task/{tid}/children"));
    tids.filter_map(|tid| read(tid).ok())
        .flat_map(|text| {
            let pids = text.split_whitespace().map(str::parse);
            pids.collect::<Vec<Result<i32, _>>>()
        })
        .filter_map(Result::ok)
        .collect()
}

pub(crate) fn name(pid: i32) -> String {
    let name = read_at_once(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_processes_can_be_scheduled() {
        assert!(check(std::process::id() as i32).is_ok());
        assert!(matches!(check(0), Err(SchedError::NoSuchProcess(0))));
        assert!(matches!(check(i32::MAX), Err(SchedError::NoSuchProcess(_))));
        let found = std::thread::spawn(|| {
            let tid = upshift_elevate::current_tid();
            (tid, check(tid))
        });
        let (tid, result) = found.join().unwrap();
        let pid = std::process::id() as i32;
        let expected = format!("{tid} is a thread of process {pid}: name the process");
        assert_eq!(result.unwrap_err().to_string(), expected);
        if name(2) == "kthreadd" {
            assert!(matches!(check(2), Err(SchedError::KernelThread(2))));
        }
    }

    #[test]
    fn the_threads_of_this_process_include_this_one() {
        let tids = threads(std::process::id() as i32).unwrap();
        assert!(tids.contains(&upshift_elevate::current_tid()));
    }
}
