//! Measures the memory that connections take in the server and in the kernel, and checks the
//! kernel's limits for threads.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two samples of the memory.
const SAMPLE_PERIOD: Duration = Duration::from_millis(50);
/// Number of threads and processes left to other programs.
const SPARE: usize = 2_000;
/// Memory areas of a thread of Rust's standard library: its stack, the stack of its signal handler,
/// and a guard page for each.
const AREAS: usize = 4;
/// Memory areas of a process that belong to no thread.
const OTHER_AREAS: usize = 500;

#[derive(Clone, Copy, Debug, Default)]
struct Memory {
    /// Resident memory of the process.
    resident: u64,
    /// Slabs, stacks of threads, page tables, and buffers of TCP sockets of the whole machine.
    kernel: u64,
}

impl Memory {
    fn now(pid: u32) -> Memory {
        let page = 4096;
        let statm = text(&format!("/proc/{pid}/statm"));
        let pages = statm.split_whitespace().nth(1);
        let pages = pages.and_then(|field| field.parse::<u64>().ok());
        Memory {
            resident: pages.unwrap_or(0) * page,
            kernel: in_meminfo(&text("/proc/meminfo"))
                + page * in_sockstat(&text("/proc/net/sockstat")),
        }
    }
}

fn text(file: &str) -> String {
    fs::read_to_string(file).unwrap_or_default()
}

/// Returns the bytes of slabs, stacks of threads and page tables.
fn in_meminfo(text: &str) -> u64 {
    let of = |line: &str| {
        let (name, value) = line.split_once(':')?;
        let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
        ["Slab", "KernelStack", "PageTables"]
            .contains(&name)
            .then_some(kib * 1024)
    };
    text.lines().filter_map(of).sum()
}

/// Returns the pages of the buffers of TCP sockets.
fn in_sockstat(text: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix("TCP:"));
    let mut fields = line.unwrap_or_default().split_whitespace();
    fields.find(|&field| field == "mem");
    fields.next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// Samples the memory of a server until the result is requested.
pub(super) struct MemoryWatch {
    before: Memory,
    is_over: Arc<AtomicBool>,
    most: JoinHandle<Memory>,
}

impl MemoryWatch {
    /// Starts sampling. The server must not have connections yet.
    pub(super) fn start(pid: u32) -> MemoryWatch {
        let before = Memory::now(pid);
        let is_over = Arc::new(AtomicBool::new(false));
        let end = is_over.clone();
        let most = std::thread::spawn(move || {
            let mut most = before;
            while !end.load(Ordering::Relaxed) {
                let now = Memory::now(pid);
                most.resident = most.resident.max(now.resident);
                most.kernel = most.kernel.max(now.kernel);
                std::thread::sleep(SAMPLE_PERIOD);
            }
            most
        });
        MemoryWatch {
            before,
            is_over,
            most,
        }
    }

    /// Returns the largest growth since the start, in bytes, for the server and for the kernel.
    pub(super) fn growth(self) -> [f64; 2] {
        self.is_over.store(true, Ordering::Relaxed);
        // The thread only reads files and does not panic.
        let most = self.most.join().unwrap_or_default();
        [
            (most.resident - self.before.resident) as f64,
            (most.kernel - self.before.kernel) as f64,
        ]
    }
}

/// Returns the reason why the kernel cannot run this number of threads in one process beside all
/// other threads, if there is one.
pub(super) fn missing_threads(threads: usize) -> Option<String> {
    let of = |name: &str| {
        let value = text(&format!("/proc/sys/{}", name.replace('.', "/")));
        value.trim().parse().unwrap_or(usize::MAX)
    };
    let loadavg = text("/proc/loadavg");
    let running = loadavg
        .split_whitespace()
        .nth(3)
        .and_then(|field| field.split_once('/')?.1.parse().ok());
    let all = threads + running.unwrap_or(0) + SPARE;
    exceeded([
        ("kernel.pid_max", all, of("kernel.pid_max")),
        ("kernel.threads-max", all, of("kernel.threads-max")),
        (
            "vm.max_map_count",
            threads * AREAS,
            of("vm.max_map_count").saturating_sub(OTHER_AREAS),
        ),
    ])
    .map(|limit| format!("no room for {threads} threads: {limit}"))
}

/// Returns the first insufficient limit: name, need, limit.
fn exceeded(limits: [(&str, usize, usize); 3]) -> Option<String> {
    let mut limits = limits.into_iter();
    let (name, need, most) = limits.find(|&(_, need, most)| need > most)?;
    Some(format!(
        "{need} are needed, including others, but {name} is {most}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_the_kernel_is_read() {
        let meminfo = "MemTotal: 100 kB\nSlab:   10 kB\nSReclaimable: 5 kB\nKernelStack: 2 kB\nPageTables: 3 kB\n";
        assert_eq!(in_meminfo(meminfo), 15 * 1024);
        let sockstat =
            "sockets: used 9\nTCP: inuse 3 orphan 0 tw 1 alloc 4 mem 7\nUDP: inuse 1 mem 2\n";
        assert_eq!(in_sockstat(sockstat), 7);
        assert_eq!((in_meminfo(""), in_sockstat("")), (0, 0));
        let own = Memory::now(std::process::id());
        assert!(own.resident > 0 && own.kernel > 0);
    }

    #[test]
    fn an_insufficient_limit_is_named() {
        let limits = |need| [("a", need, 40_000), ("b", 2 * need, 50_000), ("c", 0, 0)];
        assert_eq!(exceeded(limits(25_000)), None);
        let why = exceeded(limits(26_000)).unwrap();
        assert_eq!(why, "52000 are needed, including others, but b is 50000");
        assert_eq!(missing_threads(0), None);
        assert!(missing_threads(1 << 40).is_some());
    }
}
