//! Describes the machine (kernel, processor, versions), and measures how busy its CPUs are.

use std::process::Command;
use std::time::{Duration, Instant};

use upshift_load::machine::{CpuTimes, Machine};

use crate::options::bench_dir;

/// A running measurement of how busy CPUs 0 and 1 are.
pub(crate) struct LoadMonitor {
    started_at: Instant,
    times: [CpuTimes; 2],
}

impl LoadMonitor {
    pub(crate) fn start() -> LoadMonitor {
        LoadMonitor {
            started_at: Instant::now(),
            times: [0, 1].map(|cpu| CpuTimes::read(Some(cpu))),
        }
    }

    pub(crate) fn stop(&self) -> Usage {
        let time = self.started_at.elapsed();
        let times = [0, 1].map(|cpu| CpuTimes::read(Some(cpu)).since(&self.times[cpu]));
        let share = |part: Duration| part.as_secs_f64() / time.as_secs_f64();
        Usage {
            time,
            busy: times.map(|cpu| share(cpu.busy)),
            steal: share(times[0].steal.max(times[1].steal)),
        }
    }
}

/// Use of the two CPUs during a measurement; shares from 0 to 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    pub(crate) time: Duration,
    pub(crate) busy: [f64; 2],
    /// Share that the hypervisor took, the larger of the two CPUs.
    pub(crate) steal: f64,
}

/// Shares of a CPU that the measured programs could not use because others took them, from 0 to 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lost {
    /// Share that other programs took.
    pub(crate) foreign: f64,
    /// Share that the hypervisor took.
    pub(crate) steal: f64,
}

/// Fails unless the server and the client can each have a CPU.
pub(crate) fn need_two_cpus() -> Result<(), String> {
    match std::thread::available_parallelism() {
        Ok(n) if n.get() >= 2 => Ok(()),
        _ => Err("the benchmarks need two CPUs, 0 for the server and 1 for the client".into()),
    }
}

/// Describes the kernel, the processor, the memory and the Rust compiler.
pub(crate) fn describe() -> Vec<String> {
    let machine = Machine::read();
    let or_unknown = |text: &Option<String>| text.clone().unwrap_or("unknown".into());
    let lines = [
        machine.kernel.clone(),
        format!(
            "{} × {} (family {}, model {})",
            machine.processors,
            machine.cpu,
            or_unknown(&machine.family),
            or_unknown(&machine.model)
        ),
        format!("memory {} kB", machine.memory / 1024),
        tool("rustc", &["--version"]),
    ];
    lines.into_iter().filter(|l| !l.is_empty()).collect()
}

/// Returns the versions of the runtimes, from the lock file and from the tools of the other
/// languages.
pub(crate) fn versions() -> Vec<String> {
    const CRATES: [&str; 16] = [
        "tokio",
        "monoio",
        "compio",
        "compio-runtime",
        "compio-driver",
        "glommio",
        "async-executor",
        "async-io",
        "async-channel",
        "smol",
        "may",
        "local-sync",
        "io-uring",
        "httparse",
        "hdrhistogram",
        "corosensei",
    ];
    let lock = std::fs::read_to_string(bench_dir().join("Cargo.lock")).unwrap_or_default();
    let mut versions = Vec::new();
    for package in lock.split("[[package]]") {
        let value = |name: &str| {
            let line = package.lines().find_map(|l| l.strip_prefix(name));
            line.map(|v| v.trim_matches('"').to_owned())
        };
        if let (Some(name), Some(version)) = (value("name = "), value("version = "))
            && CRATES.contains(&name.as_str())
        {
            versions.push(format!("{name} {version}"));
        }
    }
    let liburing = tool("pkg-config", &["--modversion", "liburing"]);
    versions.push(tool("go", &["version"]));
    versions.push(tool("cc", &["--version"]));
    versions.push(tool("haproxy", &["-v"]));
    if !liburing.is_empty() {
        versions.push(format!("liburing {liburing}"));
    }
    versions.retain(|v| !v.is_empty());
    versions
}

/// Suffix of a commit when uncommitted changes are measured, too.
pub(crate) const DIRTY: &str = "-dirty";

/// Pathspecs of the sources of the measured programs; they exclude results, pages and tests.
const SOURCES: [&str; 15] = [
    "Cargo.toml",
    "Cargo.lock",
    "scheduler",
    "linux",
    "machine",
    "web",
    "tools",
    "cpp",
    "bench",
    ":!tools/xtask",
    ":!bench/results",
    ":!bench/RESULTS.md",
    ":!bench/README.md",
    ":!bench/notes",
    ":(exclude,glob)**/tests/**",
];

/// Returns the commit that changed the sources last, with [`DIRTY`] appended if they differ from
/// it. Commits since then have the same measured programs.
pub(crate) fn commit() -> String {
    let root = bench_dir().join("..");
    let root = root.to_string_lossy();
    let git = |words: &[&str]| tool("git", &[&["-C", &root], words, &["--"], &SOURCES].concat());
    let commit = git(&["log", "-1", "--abbrev=7", "--format=%h"]);
    let changes = git(&["status", "--porcelain"]);
    match (commit.is_empty(), changes.is_empty()) {
        (true, _) => format!("unknown{DIRTY}"),
        (_, true) => commit,
        _ => commit + DIRTY,
    }
}

pub(crate) fn now() -> String {
    tool("date", &["-u", "+%Y-%m-%d %H:%M UTC"])
}

/// Returns the first line of a program's output; empty if the program is missing.
fn tool(name: &str, args: &[&str]) -> String {
    let Ok(output) = Command::new(name).args(args).output() else {
        return String::new();
    };
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().next().unwrap_or_default().to_owned()
}
