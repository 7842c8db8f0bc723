//! Processes that spin on one CPU and write down when they ran, in memory they share with their parent.

use std::io;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use upshift_elevate::sys::{CpuSet, Kernel, Sys};

/// Stretches that are kept of one process.
const ROOM: usize = 60_000;
/// A spinner that read no clock for so long did not run, ns.
const PAUSE: u64 = 4_000;
/// No child spins longer, s.
const LIFE: u32 = 120;

/// The last CPU this process may use: the first has most of the interrupts.
pub(crate) fn last_cpu() -> io::Result<usize> {
    let allowed = Kernel.sched_getaffinity(0)?;
    allowed.iter().last().ok_or(io::Error::other("no CPU"))
}

/// CLOCK_MONOTONIC, ns.
pub(crate) fn now() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// A clock that always exists, ns.
pub(crate) fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a live structure.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// What one process shares with its parent. Zeroes are its beginning.
#[repr(C)]
struct Page {
    /// Counts up when writing begins again.
    epoch: AtomicU32,
    loops: AtomicU64,
    kept: AtomicU64,
    /// The stretch it is in, or was in when it ran last: begin and end.
    current: (AtomicU64, AtomicU64),
    stretches: [(AtomicU64, AtomicU64); ROOM],
}

/// What one process did in one run.
#[derive(Debug)]
pub(crate) struct Felt {
    pub(crate) loops: u64,
    /// When it ran, in order: begin and end.
    pub(crate) stretches: Vec<(u64, u64)>,
}

/// One spinning process; ends with its guard.
pub(crate) struct Spinner {
    pub(crate) pid: i32,
    page: *mut Page,
}

impl Spinner {
    /// Forks it. The caller has no locks that a fork could catch: the child only spins.
    pub(crate) fn start(cpu: usize) -> io::Result<Spinner> {
        // SAFETY: a fresh shared mapping.
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
        let only = CpuSet::only(cpu).ok_or(io::Error::from_raw_os_error(libc::EINVAL))?;
        // SAFETY: the child makes system calls, and touches plain and shared memory only.
        let pid = unsafe { libc::fork() };
        match pid {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                // SAFETY: as above.
                unsafe {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    libc::alarm(LIFE);
                }
                // Where it cannot be pinned, it is measured all the same, and looks bad.
                let _ = Kernel.sched_setaffinity(0, &only);
                // SAFETY: mapped, and zeroes are valid.
                spin(unsafe { &*page })
            }
            pid => Ok(Spinner { pid, page }),
        }
    }

    fn page(&self) -> &Page {
        // SAFETY: mapped until it is dropped; all words are atomic.
        unsafe { &*self.page }
    }

    /// Forgets what was written.
    pub(crate) fn begin(&self) {
        let page = self.page();
        page.loops.store(0, Relaxed);
        page.kept.store(0, Relaxed);
        page.epoch.fetch_add(1, Release);
    }

    /// What it did since it began.
    pub(crate) fn felt(&self) -> Felt {
        let page = self.page();
        let kept = (page.kept.load(Acquire) as usize).min(ROOM);
        let stretch =
            |(begin, end): &(AtomicU64, AtomicU64)| (begin.load(Relaxed), end.load(Relaxed));
        let mut stretches: Vec<(u64, u64)> = page.stretches[..kept].iter().map(stretch).collect();
        // It is written down when the process runs again, and counts already.
        let current = stretch(&page.current);
        let last = stretches.last().map_or(0, |&(_, end)| end);
        if kept < ROOM && last < current.0 && current.0 < current.1 {
            stretches.push(current);
        }
        Felt {
            loops: page.loops.load(Relaxed),
            stretches,
        }
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        // SAFETY: a child of this process; the mapping is used by nothing else then.
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
    let (mut loops, mut kept) = (0u64, 0usize);
    loop {
        let at = now();
        let current = page.epoch.load(Relaxed);
        if current != epoch {
            (epoch, loops, kept, begin) = (current, 0, 0, at);
        } else if at - last > PAUSE {
            if let Some((from, to)) = page.stretches.get(kept) {
                from.store(begin, Relaxed);
                to.store(last, Relaxed);
                kept += 1;
                page.kept.store(kept as u64, Release);
            }
            begin = at;
        }
        last = at;
        page.current.0.store(begin, Relaxed);
        page.current.1.store(last, Relaxed);
        loops += 1;
        page.loops.store(loops, Relaxed);
    }
}
