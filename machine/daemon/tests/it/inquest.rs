//! The report of a test that finds a thread elevated for too long: the thread, and the state of
//! those that should have demoted it.

use std::fmt::Write;

use upshift_elevate::sys::Kernel;
use upshift_elevate::testing::{elevated_threads, heartbeat_state};
use upshift_elevate::{Policy, Tid};

/// Returns the elevated threads of these processes, as text.
pub(crate) fn elevated(pids: &[Tid]) -> String {
    let threads = |&pid: &Tid| {
        let tids = elevated_threads(pid).into_iter();
        tids.map(move |tid| format!("elevated: {}\n", thread(pid, tid)))
    };
    pids.iter().flat_map(threads).collect()
}

/// Describes all threads of these processes, and all guardians. Not to be called by an elevated
/// thread: it reads files of processes that end.
pub(crate) fn inquest(processes: &[(&str, Tid)]) -> String {
    let mut text = String::new();
    for &(name, pid) in processes {
        for tid in numbers(&format!("/proc/{pid}/task")) {
            let _ = writeln!(text, "{name}: {}", thread(pid, tid));
        }
    }
    let all = numbers("/proc").into_iter();
    for guardian in all.filter(|&pid| word(pid, pid, "comm") == "upshift-guard") {
        let before = heartbeat_state(guardian);
        std::thread::sleep(std::time::Duration::from_millis(5));
        let (status, after) = (
            word(guardian, guardian, "status"),
            heartbeat_state(guardian),
        );
        let parent = status.lines().find(|line| line.starts_with("PPid:"));
        let (parent, state) = (parent.unwrap_or("PPid: none"), thread(guardian, guardian));
        let _ = writeln!(
            text,
            "guardian: {state}, {parent}, {before:?}, 5 ms later {after:?}"
        );
    }
    text
}

/// Describes a thread: name, policy and priority, state, CPU, wait channel, and the times for which
/// it ran and waited for a CPU.
fn thread(pid: Tid, tid: Tid) -> String {
    let stat = word(pid, tid, "stat");
    let mut fields = stat.rsplit_once(')').map_or("", |parts| parts.1).split(' ');
    let state = fields.nth(1).unwrap_or("gone").to_string();
    let cpu = fields.nth(35).unwrap_or("?");
    let policy = match Policy::of(&Kernel, tid) {
        Ok(policy) => policy.to_string(),
        Err(error) => error.to_string(),
    };
    let (comm, channel) = (word(pid, tid, "comm"), word(pid, tid, "wchan"));
    let times = word(pid, tid, "schedstat");
    let mut times = times.split(' ').filter_map(|word| word.parse::<u64>().ok());
    let mut ms = || times.next().unwrap_or(0) / 1_000_000;
    let (ran, waited) = (ms(), ms());
    format!(
        "thread {tid} of {pid} ({comm}), {policy}, state {state} ({channel}) on CPU {cpu}, ran {ran} ms, waited {waited} ms for a CPU"
    )
}

/// Reads a file of a thread in `/proc`; empty if it has ended.
fn word(pid: Tid, tid: Tid, file: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/{file}"));
    text.unwrap_or_default().trim().to_string()
}

/// Whether no thread of it runs any more: its main thread is a zombie, and it has no other.
pub(crate) fn has_ended(pid: Tid) -> bool {
    let others = numbers(&format!("/proc/{pid}/task"));
    let stat = word(pid, pid, "stat");
    others.iter().all(|&tid| tid == pid) && (stat.is_empty() || stat.contains(") Z "))
}

fn numbers(directory: &str) -> Vec<Tid> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.collect()
}
