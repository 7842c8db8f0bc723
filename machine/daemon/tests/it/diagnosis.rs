//! Describes threads for the report of a test that finds a thread elevated for too long. The report
//! covers this thread, and the threads that should have demoted it.

use std::fmt::Write;

use upshift_elevate::sys::Kernel;
use upshift_elevate::testing::{elevated_threads, heartbeat_state};
use upshift_elevate::{Policy, Tid};

pub(crate) fn describe_elevated_threads(pids: &[Tid]) -> String {
    let threads = |&pid: &Tid| {
        let tids = elevated_threads(pid).into_iter();
        tids.map(move |tid| format!("elevated: {}\n", describe_thread(pid, tid)))
    };
    pids.iter().flat_map(threads).collect()
}

/// Describes all threads of these processes, and all guardian processes (`upshift-guard`). Must not
/// be called by an elevated thread, because reading `/proc` files of a process that is exiting may
/// block.
pub(crate) fn describe_processes(processes: &[(&str, Tid)]) -> String {
    let mut text = String::new();
    for &(name, pid) in processes {
        for tid in numeric_entries(&format!("/proc/{pid}/task")) {
            let _ = writeln!(text, "{name}: {}", describe_thread(pid, tid));
        }
    }
    let all = numeric_entries("/proc").into_iter();
    for guardian in all.filter(|&pid| read_file(pid, pid, "comm") == "upshift-guard") {
        let before = heartbeat_state(guardian);
        std::thread::sleep(std::time::Duration::from_millis(5));
        let (status, after) = (
            read_file(guardian, guardian, "status"),
            heartbeat_state(guardian),
        );
        let parent = status.lines().find(|line| line.starts_with("PPid:"));
        let (parent, state) = (
            parent.unwrap_or("PPid: none"),
            describe_thread(guardian, guardian),
        );
        let _ = writeln!(
            text,
            "guardian: {state}, {parent}, {before:?}, 5 ms later {after:?}"
        );
    }
    text
}

fn describe_thread(pid: Tid, tid: Tid) -> String {
    let stat = read_file(pid, tid, "stat");
    let mut fields = stat.rsplit_once(')').map_or("", |parts| parts.1).split(' ');
    let state = fields.nth(1).unwrap_or("gone").to_string();
    let cpu = fields.nth(35).unwrap_or("?");
    let policy = match Policy::of(&Kernel, tid) {
        Ok(policy) => policy.to_string(),
        Err(error) => error.to_string(),
    };
    let (comm, channel) = (read_file(pid, tid, "comm"), read_file(pid, tid, "wchan"));
    let times = read_file(pid, tid, "schedstat");
    let mut times = times.split(' ').filter_map(|time| time.parse::<u64>().ok());
    let mut next_ms = || times.next().unwrap_or(0) / 1_000_000;
    let (ran, waited) = (next_ms(), next_ms());
    format!(
        "thread {tid} of {pid} ({comm}), {policy}, state {state} ({channel}) on CPU {cpu}, ran {ran} ms, waited {waited} ms for a CPU"
    )
}

/// Returns an empty text if the thread has ended.
fn read_file(pid: Tid, tid: Tid, file: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/{file}"));
    text.unwrap_or_default().trim().to_string()
}

/// Returns whether the process has ended, that is, its main thread is a zombie or gone, and it has
/// no other thread.
pub(crate) fn has_ended(pid: Tid) -> bool {
    let others = numeric_entries(&format!("/proc/{pid}/task"));
    let stat = read_file(pid, pid, "stat");
    others.iter().all(|&tid| tid == pid) && (stat.is_empty() || stat.contains(") Z "))
}

fn numeric_entries(directory: &str) -> Vec<Tid> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.collect()
}
