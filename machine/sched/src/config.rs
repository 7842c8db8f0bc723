//! The settings of an [`Engine`](crate::Engine): its CPUs, the SCHED_FIFO priorities that it gives
//! to tasks (*notches*, see `ratchet.rs`), and the part of the CPUs that ordinary threads keep.

use std::time::Duration;

use upshift_elevate::Priority;

use crate::policy::Nanos;

/// Settings of an [`Engine`](crate::Engine). [`Config::for_cpus`] returns the defaults.
#[derive(Debug, Clone)]
pub struct Config {
    /// CPUs that the tasks share; each CPU runs one task at a time.
    pub cpus: Vec<usize>,
    /// Priority of waiting tasks. The priorities of favoured tasks, called *notches*, are above it.
    pub base: Priority,
    /// The highest notch.
    pub top: Priority,
    /// Minimum length of a turn, which should be the shortest that the machine's timers allow.
    pub min_slice: Duration,
    /// The part of the CPUs that ordinary threads keep.
    pub open_pieces: OpenPieces,
    /// Time between scans for new threads.
    pub scan_interval: Duration,
    /// Maximum number of events in the trace; 0 disables the trace.
    pub trace: usize,
}

/// Open pieces: times at which ordinary threads can use the CPUs.
///
/// SCHED_FIFO threads that never sleep keep every ordinary thread off their CPU: daemons, shells,
/// sshd, the kernel's own workers. Real-time throttling, if enabled, stops all of these SCHED_FIFO
/// threads for 50 ms of each second, including schedulers. Therefore the tasks leave SCHED_FIFO for
/// `part` of each `every`. In this time, the task in front competes like a single ordinary thread
/// of nice 0, and all other tasks are behind all threads (SCHED_IDLE). If no ordinary thread needs
/// the CPU, the task in front continues to run, so the pieces cost only the system calls. With 12
/// %, a single ordinary thread that needs the CPU gets a little more than 4 % of it, several
/// threads get up to 12 %, and the throttling never takes effect.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OpenPieces {
    /// Time from the beginning of a piece to the beginning of the next piece.
    pub every: Duration,
    /// The part of this time that is open, 0 to 0.9; 0 disables the pieces.
    pub part: f64,
}

impl Default for OpenPieces {
    /// Returns 3 ms of every 25 ms.
    fn default() -> OpenPieces {
        OpenPieces {
            every: Duration::from_millis(25),
            part: 0.12,
        }
    }
}

/// Maximum time of a system call on a thread, for estimates of calls on all threads.
const CALL_TIME: Duration = Duration::from_micros(1);

/// Number of system calls of a thorough scan for each thread, which read its entry, its CPUs
/// (twice) and its policy.
const SCAN_CALLS: u32 = 4;

/// Changes of all threads, and thorough scans of them, take at most one part in 50 of the time.
const OVERHEAD_DIVISOR: u32 = 50;

/// Returns the minimum time between two thorough scans of `threads` threads, ns.
pub(crate) fn scan_interval_for(threads: usize) -> Nanos {
    let threads = u32::try_from(threads).unwrap_or(u32::MAX);
    let length = CALL_TIME * threads.saturating_mul(SCAN_CALLS * OVERHEAD_DIVISOR);
    Nanos::try_from(length.as_nanos()).unwrap_or(Nanos::MAX)
}

impl OpenPieces {
    /// Returns the closed time and the open time, ns, with `threads` threads; `None` if pieces are
    /// disabled. If changing all threads takes long, pieces are rarer, so that the changes take at
    /// most 2 % of the time.
    pub(crate) fn pieces(&self, threads: usize) -> Option<(Nanos, Nanos)> {
        let part = self.part.clamp(0.0, 0.9);
        if part == 0.0 {
            return None;
        }
        let threads = u32::try_from(threads).unwrap_or(u32::MAX);
        // Threads are changed twice, when a piece begins and when it ends.
        let shortest = CALL_TIME * threads.saturating_mul(2 * OVERHEAD_DIVISOR);
        let every = self
            .every
            .max(shortest)
            .clamp(MIN_PERIOD, MAX_PERIOD)
            .as_nanos() as f64;
        let open = every * part;
        Some(((every - open) as Nanos, open as Nanos))
    }
}

impl OpenPieces {
    /// Returns whether changing `changed` threads takes a small part of an open piece. `threads` is
    /// the number of threads of all tasks.
    pub(crate) fn may_change(&self, changed: usize, threads: usize) -> bool {
        let calls = u32::try_from(changed).unwrap_or(u32::MAX);
        let cost = (CALL_TIME * calls.saturating_mul(OVERHEAD_DIVISOR)).as_nanos();
        let open = self.pieces(threads).map_or(0, |(_, open)| open);
        cost <= u128::from(open)
    }
}

/// Minimum time from the beginning of a piece to the beginning of the next piece.
const MIN_PERIOD: Duration = Duration::from_millis(10);
/// Maximum time from the beginning of a piece to the beginning of the next piece. It is below one
/// second, the period of the kernel's throttling.
const MAX_PERIOD: Duration = Duration::from_millis(800);

impl Config {
    /// Returns the defaults for tasks that share `cpus`: priorities 2 to 40, turns of at least
    /// 50 µs, 12 % for ordinary threads, no trace.
    pub fn for_cpus(cpus: impl Into<Vec<usize>>) -> Config {
        Config {
            cpus: cpus.into(),
            base: Priority::of::<2>(),
            top: Priority::of::<40>(),
            min_slice: Duration::from_micros(50),
            open_pieces: OpenPieces::default(),
            scan_interval: Duration::from_millis(10),
            trace: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_threads_make_pieces_rarer() {
        let open = OpenPieces::default();
        assert_eq!(open.pieces(8), Some((22_000_000, 3_000_000)));
        assert_eq!(open.pieces(2000), Some((176_000_000, 24_000_000)));
        assert_eq!(open.pieces(1_000_000), Some((704_000_000, 96_000_000)));
        let disabled = OpenPieces { part: 0.0, ..open };
        assert_eq!(disabled.pieces(8), None);
    }
}
