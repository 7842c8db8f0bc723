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
const SPARE_THREADS: usize = 2_000;
/// Memory areas of a thread of Rust's standard library: its stack, the stack of its signal handler,
/// and a guard page for each.
const AREAS_PER_THREAD: usize = 4;
/// Memory areas of a process that belong to no thread.
const OTHER_AREAS: usize = 500;

#[derive(Clone, Copy, Debug, Default)]
struct Memory {
    /// Resident memory of the process, in bytes.
    resident: u64,
    /// Slabs, stacks of threads, page tables, and buffers of TCP sockets of the whole machine,
    /// in bytes.
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
            kernel: kernel_bytes(&text("/proc/meminfo"))
                + page * socket_pages(&text("/proc/net/sockstat")),
        }
    }
}

fn text(file: &str) -> String {
    fs::read_to_string(file).unwrap_or_default()
}

/// Returns the bytes of slabs, stacks of threads and page tables.
fn kernel_bytes(text: &str) -> u64 {
    let bytes_of_line = |line: &str| {
        let (name, value) = line.split_once(':')?;
        let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
        ["Slab", "KernelStack", "PageTables"]
            .contains(&name)
            .then_some(kib * 1024)
    };
    text.lines().filter_map(bytes_of_line).sum()
}

/// Returns the pages of the buffers of TCP sockets.
fn socket_pages(text: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix("TCP:"));
    let mut fields = line.unwrap_or_default().split_whitespace();
    fields.find(|&field| field == "mem");
    fields.next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// A thread that samples the memory of a server until the result is requested.
pub(super) struct MemoryWatch {
    before: Memory,
    is_over: Arc<AtomicBool>,
    peak: JoinHandle<Memory>,
}

impl MemoryWatch {
    /// Starts sampling. The server must not have connections yet.
    pub(super) fn start(pid: u32) -> MemoryWatch {
        let before = Memory::now(pid);
        let is_over = Arc::new(AtomicBool::new(false));
        let end = is_over.clone();
        let peak = std::thread::spawn(move || {
            let mut peak = before;
            while !end.load(Ordering::Relaxed) {
                let now = Memory::now(pid);
                peak.resident = peak.resident.max(now.resident);
                peak.kernel = peak.kernel.max(now.kernel);
                std::thread::sleep(SAMPLE_PERIOD);
            }
            peak
        });
        MemoryWatch {
            before,
            is_over,
            peak,
        }
    }

    /// Returns the largest growth since the start, in bytes, for the server and for the kernel.
    pub(super) fn growth(self) -> [f64; 2] {
        self.is_over.store(true, Ordering::Relaxed);
        // The thread only reads files and does not panic.
        let peak = self.peak.join().unwrap_or_default();
        [
            (peak.resident - self.before.resident) as f64,
            (peak.kernel - self.before.kernel) as f64,
        ]
    }
}

/// Returns the reason why the kernel cannot run this number of threads in one process beside all
/// other threads, if there is one.
pub(super) fn thread_shortage(threads: usize) -> Option<String> {
    let limit = |name: &str| {
        let value = text(&format!("/proc/sys/{}", name.replace('.', "/")));
        value.trim().parse().unwrap_or(usize::MAX)
    };
    let loadavg = text("/proc/loadavg");
    let existing_threads = loadavg
        .split_whitespace()
        .nth(3)
        .and_then(|field| field.split_once('/')?.1.parse().ok());
    let all_threads = threads + existing_threads.unwrap_or(0) + SPARE_THREADS;
    exceeded([
        ("kernel.pid_max", all_threads, limit("kernel.pid_max")),
        (
            "kernel.threads-max",
            all_threads,
            limit("kernel.threads-max"),
        ),
        (
            "vm.max_map_count",
            threads * AREAS_PER_THREAD,
            limit("vm.max_map_count").saturating_sub(OTHER_AREAS),
        ),
    ])
    .map(|limit| format!("no room for {threads} threads: {limit}"))
}

/// Describes the first insufficient limit. Each limit has a name, the need, and its value.
fn exceeded(limits: [(&str, usize, usize); 3]) -> Option<String> {
    let mut limits = limits.into_iter();
    let (name, need, limit) = limits.find(|&(_, need, limit)| need > limit)?;
    Some(format!(
        "{name} is {limit}, but {need} are needed, including those of other programs"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_the_kernel_is_read() {
        let meminfo = "MemTotal: 100 kB\nSlab:   10 kB\nSReclaimable: 5 kB\nKernelStack: 2 kB\nPageTables: 3 kB\n";
        assert_eq!(kernel_bytes(meminfo), 15 * 1024);
        let sockstat =
            "sockets: used 9\nTCP: inuse 3 orphan 0 tw 1 alloc 4 mem 7\nUDP: inuse 1 mem 2\n";
        assert_eq!(socket_pages(sockstat), 7);
        assert_eq!((kernel_bytes(""), socket_pages("")), (0, 0));
        let own = Memory::now(std::process::id());
        assert!(own.resident > 0 && own.kernel > 0);
    }

    #[test]
    fn an_insufficient_limit_is_named() {
        let limits = |need| [("a", need, 40_000), ("b", 2 * need, 50_000), ("c", 0, 0)];
        assert_eq!(exceeded(limits(25_000)), None);
        let why = exceeded(limits(26_000)).unwrap();
        assert_eq!(
            why,
            "b is 50000, but 52000 are needed, including those of other programs"
        );
        assert_eq!(thread_shortage(0), None);
        assert!(thread_shortage(1 << 40).is_some());
    }
}
