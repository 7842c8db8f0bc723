//! Starts processes that spin on one CPU and record the times at which they run, in memory shared
//! with their parent.

use std::io;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use upshift_elevate::sys::{CpuSet, Kernel, Sys};

/// Largest number of stretches that are recorded per process. A *stretch* is a period in which the
/// process ran without interruption.
const MAX_STRETCHES: usize = 60_000;
/// Gap between two reads of the clock above which a spinner counts as interrupted.
const MIN_PAUSE_NS: u64 = 4_000;
/// Largest lifetime of a spinning process.
const MAX_LIFETIME_S: u32 = 120;

/// Returns the last CPU that this process may use, because the first one has most of the
/// interrupts.
pub(crate) fn last_cpu() -> io::Result<usize> {
    let allowed = Kernel.sched_getaffinity(0)?;
    allowed.iter().last().ok_or(io::Error::other("no CPU"))
}

/// Returns CLOCK_MONOTONIC, in ns.
pub(crate) fn now() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Reads a clock that always exists, in ns.
pub(crate) fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is valid, because the call only writes `time`, a local.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Memory that a process shares with its parent. Zeroes are the initial state.
#[repr(C)]
struct Page {
    /// Incremented when recording starts anew.
    epoch: AtomicU32,
    /// Number of reads of the clock since recording started.
    loops: AtomicU64,
    /// Number of valid elements of `stretches`.
    stretch_count: AtomicU64,
    /// Current stretch of the process, or its last one: begin and end.
    current: (AtomicU64, AtomicU64),
    stretches: [(AtomicU64, AtomicU64); MAX_STRETCHES],
}

/// Record of a spinning process.
#[derive(Debug)]
pub(crate) struct Record {
    /// Number of reads of the clock.
    pub(crate) loops: u64,
    /// Times at which the process ran, in order: begin and end.
    pub(crate) stretches: Vec<(u64, u64)>,
}

/// A spinning process, which is killed on drop.
pub(crate) struct Spinner {
    pub(crate) pid: i32,
    page: *mut Page,
}

impl Spinner {
    /// Forks the process. The child only makes system calls and spins, so it needs no lock that the
    /// fork may have copied in the locked state.
    pub(crate) fn start(cpu: usize) -> io::Result<Spinner> {
        // SAFETY: the call creates a mapping and touches no existing memory.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<Page>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let page: *mut Page = page.cast();
        let cpu_set = CpuSet::only(cpu).ok_or(io::Error::from_raw_os_error(libc::EINVAL))?;
        // SAFETY: after a fork, the child may not rely on locks of other threads. It only makes
        // system calls, and only touches its locals and the page.
        let pid = unsafe { libc::fork() };
        match pid {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                // SAFETY: the calls take no pointers.
                unsafe {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    libc::alarm(MAX_LIFETIME_S);
                }
                // A child that cannot be pinned is measured anyway, with poor figures.
                let _ = Kernel.sched_setaffinity(0, &cpu_set);
                // SAFETY: the reference is valid, because the page stays mapped and zeroes are a
                // valid `Page`.
                spin(unsafe { &*page })
            }
            pid => Ok(Spinner { pid, page }),
        }
    }

    fn page(&self) -> &Page {
        // SAFETY: the reference is valid, because the page stays mapped until the drop. The child
        // may write at the same time, because all words are atomic.
        unsafe { &*self.page }
    }

    /// Discards the record and starts anew.
    pub(crate) fn begin(&self) {
        let page = self.page();
        page.loops.store(0, Relaxed);
        page.stretch_count.store(0, Relaxed);
        page.epoch.fetch_add(1, Release);
    }

    /// Returns the record since [`begin`](Self::begin).
    pub(crate) fn record(&self) -> Record {
        let page = self.page();
        let stretch_count = (page.stretch_count.load(Acquire) as usize).min(MAX_STRETCHES);
        let stretch =
            |(begin, end): &(AtomicU64, AtomicU64)| (begin.load(Relaxed), end.load(Relaxed));
        let mut stretches: Vec<(u64, u64)> = page.stretches[..stretch_count]
            .iter()
            .map(stretch)
            .collect();
        // The current stretch is recorded when the process runs again, but already counts.
        let current = stretch(&page.current);
        let last = stretches.last().map_or(0, |&(_, end)| end);
        if stretch_count < MAX_STRETCHES && last < current.0 && current.0 < current.1 {
            stretches.push(current);
        }
        Record {
            loops: page.loops.load(Relaxed),
            stretches,
        }
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        // SAFETY: `pid` is a child of this process that has not been reaped. Nothing uses the
        // mapping afterwards.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
            libc::munmap(self.page.cast(), size_of::<Page>());
        }
    }
}

fn spin(page: &Page) -> ! {
    let mut epoch = page.epoch.load(Acquire);
    let (mut begin, mut last) = (now(), now());
    let (mut loops, mut stretch_count) = (0u64, 0usize);
    loop {
        let time = now();
        let current = page.epoch.load(Relaxed);
        if current != epoch {
            (epoch, loops, stretch_count, begin) = (current, 0, 0, time);
        } else if time - last > MIN_PAUSE_NS {
            if let Some((from, to)) = page.stretches.get(stretch_count) {
                from.store(begin, Relaxed);
                to.store(last, Relaxed);
                stretch_count += 1;
                page.stretch_count.store(stretch_count as u64, Release);
            }
            begin = time;
        }
        last = time;
        page.current.0.store(begin, Relaxed);
        page.current.1.store(last, Relaxed);
        loops += 1;
        page.loops.store(loops, Relaxed);
    }
}
