//! What a test says that finds a thread elevated for too long: which thread that is, and what keeps those that should have demoted it.

use std::fmt::Write;

use upshift_elevate::sys::Kernel;
use upshift_elevate::testing::{elevated_threads, pulse};
use upshift_elevate::{Policy, Tid};

/// The elevated threads of these processes.
pub(crate) fn elevated(pids: &[Tid]) -> String {
    let threads = |&pid: &Tid| {
        let of = elevated_threads(pid).into_iter();
        of.map(move |tid| format!("elevated: {}\n", thread(pid, tid)))
    };
    pids.iter().flat_map(threads).collect()
}

/// All threads of these processes, and all guardians there are. Not for an elevated thread: it looks at processes that end.
pub(crate) fn inquest(processes: &[(&str, Tid)]) -> String {
    let mut text = String::new();
    for &(name, pid) in processes {
        for tid in numbers(&format!("/proc/{pid}/task")) {
            let _ = writeln!(text, "{name}: {}", thread(pid, tid));
        }
    }
    let all = numbers("/proc").into_iter();
    for guardian in all.filter(|&pid| word(pid, pid, "comm") == "upshift-guard") {
        let before = pulse(guardian);
        std::thread::sleep(std::time::Duration::from_millis(5));
        let (status, after) = (word(guardian, guardian, "status"), pulse(guardian));
        let parent = status.lines().find(|line| line.starts_with("PPid:"));
        let (parent, it) = (parent.unwrap_or("PPid: none"), thread(guardian, guardian));
        let _ = writeln!(
            text,
            "guardian: {it}, {parent}, {before:?}, 5 ms later {after:?}"
        );
    }
    text
}

/// Name, policy and priority, state, CPU, what it waits for in the kernel, and how long it ran and waited for a CPU.
fn thread(pid: Tid, tid: Tid) -> String {
    let stat = word(pid, tid, "stat");
    let mut fields = stat.rsplit_once(')').map_or("", |it| it.1).split(' ');
    let state = fields.nth(1).unwrap_or("gone").to_string();
    let cpu = fields.nth(35).unwrap_or("?");
    let policy = match Policy::of(&Kernel, tid) {
        Ok(policy) => policy.to_string(),
        Err(error) => error.to_string(),
    };
    let (comm, channel) = (word(pid, tid, "comm"), word(pid, tid, "wchan"));
    let times = word(pid, tid, "schedstat");
    let mut times = times.split(' ').filter_map(|it| it.parse::<u64>().ok());
    let mut ms = || times.next().unwrap_or(0) / 1_000_000;
    let (ran, waited) = (ms(), ms());
    format!(
        "thread {tid} of {pid} ({comm}), {policy}, state {state} ({channel}) on CPU {cpu}, ran {ran} ms, waited {waited} ms for a CPU"
    )
}

/// A file of a thread in `/proc`; empty if it has ended.
fn word(pid: Tid, tid: Tid, file: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/{file}"));
    text.unwrap_or_default().trim().to_string()
}

/// Whether nothing of it runs any more: its main thread is a zombie, and it has no other.
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
