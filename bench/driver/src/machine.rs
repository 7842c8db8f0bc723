//! The machine: kernel, processor, versions, and how busy a CPU was.

use std::process::Command;
use std::time::{Duration, Instant};

use upshift_load::machine::{CpuTimes, Machine};

use crate::options::bench_dir;

/// The busy time of CPUs 0 and 1 from a moment on.
pub(crate) struct Watch {
    since: Instant,
    times: [CpuTimes; 2],
}

impl Watch {
    /// Begins now.
    pub(crate) fn start() -> Watch {
        Watch {
            since: Instant::now(),
            times: [0, 1].map(|cpu| CpuTimes::of(Some(cpu))),
        }
    }

    /// Returns the use of the two CPUs until now.
    pub(crate) fn stop(&self) -> Watched {
        let time = self.since.elapsed();
        let used = [0, 1].map(|cpu| CpuTimes::of(Some(cpu)).since(&self.times[cpu]));
        let share = |part: Duration| part.as_secs_f64() / time.as_secs_f64();
        Watched {
            time,
            busy: used.map(|cpu| share(cpu.busy)),
            steal: share(used[0].steal.max(used[1].steal)),
        }
    }
}

/// The use of the two CPUs while they were watched; shares from 0 to 1.
pub(crate) struct Watched {
    pub(crate) time: Duration,
    /// The share in which each was busy.
    pub(crate) busy: [f64; 2],
    /// The share that the hypervisor took, the larger of the two.
    pub(crate) steal: f64,
}

/// Server and client need a CPU each.
pub(crate) fn need_two_cpus() -> Result<(), String> {
    match std::thread::available_parallelism() {
        Ok(n) if n.get() >= 2 => Ok(()),
        _ => Err("the benchmarks need two CPUs, 0 for the server and 1 for the client".into()),
    }
}

/// Kernel, processor, memory, settings that matter, compilers.
pub(crate) fn describe() -> Vec<String> {
    let machine = Machine::read();
    let number = |number: &Option<String>| number.clone().unwrap_or("unknown".into());
    let congestion = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    let lines = [
        machine.kernel.clone(),
        format!(
            "{} × {} (family {}, model {})",
            machine.processors,
            machine.cpu,
            number(&machine.family),
            number(&machine.model)
        ),
        format!("memory {} kB", machine.memory / 1024),
        format!(
            "TCP congestion control {}",
            congestion.unwrap_or_default().trim()
        ),
        tool("rustc", &["--version"]),
    ];
    lines.into_iter().filter(|l| !l.is_empty()).collect()
}

/// Versions of the runtimes: from the lock file, and from the tools of the other languages.
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
    let mut found = Vec::new();
    for package in lock.split("[[package]]") {
        let value = |name: &str| {
            let line = package.lines().find_map(|l| l.strip_prefix(name));
            line.map(|v| v.trim_matches('"').to_owned())
        };
        if let (Some(name), Some(version)) = (value("name = "), value("version = "))
            && CRATES.contains(&name.as_str())
        {
            found.push(format!("{name} {version}"));
        }
    }
    let liburing = tool("pkg-config", &["--modversion", "liburing"]);
    found.push(tool("go", &["version"]));
    found.push(tool("cc", &["--version"]));
    found.push(tool("haproxy", &["-v"]));
    if !liburing.is_empty() {
        found.push(format!("liburing {liburing}"));
    }
    found.retain(|v| !v.is_empty());
    found
}

/// Behind the commit when something beside it is measured, too.
pub(crate) const DIRTY: &str = "-dirty";

/// The commit of the checkout; with [`DIRTY`] behind it where files that are built differ from it. Results are none of them.
pub(crate) fn commit() -> String {
    let root = bench_dir().join("..");
    let root = root.to_string_lossy();
    let commit = tool("git", &["-C", &root, "rev-parse", "--short=7", "HEAD"]);
    let built = [
        "Cargo.toml",
        "Cargo.lock",
        "scheduler",
        "linux",
        "machine",
        "web",
        "tools",
        "cpp",
        "bench",
    ];
    let results = [":!bench/results", ":!bench/RESULTS.md", ":!bench/README.md"];
    let status: Vec<&str> = ["-C", &root, "status", "--porcelain", "--"]
        .into_iter()
        .chain(built)
        .chain(results)
        .collect();
    match (commit.as_str(), tool("git", &status).as_str()) {
        ("", _) => format!("unknown{DIRTY}"),
        (_, "") => commit,
        _ => commit + DIRTY,
    }
}

/// The time now, UTC.
pub(crate) fn now() -> String {
    tool("date", &["-u", "+%Y-%m-%d %H:%M UTC"])
}

/// The first line that a program prints; empty if it is not there.
fn tool(name: &str, args: &[&str]) -> String {
    let Ok(output) = Command::new(name).args(args).output() else {
        return String::new();
    };
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().next().unwrap_or_default().to_owned()
}
