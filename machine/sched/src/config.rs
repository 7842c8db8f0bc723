//! [`Config`]: CPUs, notches, and what is kept for ordinary threads.

use std::time::Duration;

use upshift_elevate::Priority;

use crate::policy::Nanos;

/// How an [`Engine`](crate::Engine) works. Start from [`Config::on`].
#[derive(Debug, Clone)]
pub struct Config {
    /// The CPUs that the tasks share; one task at a time runs on each.
    pub cpus: Vec<usize>,
    /// Where tasks wait. Above it are the notches of those that are favoured …
    pub base: Priority,
    /// … up to this one.
    pub top: Priority,
    /// The shortest turn: the floor of the machine's timers.
    pub floor: Duration,
    /// What ordinary threads get.
    pub open: Open,
    /// How often threads that were born are looked for.
    pub follow: Duration,
    /// Events that the trace holds; 0: none is kept.
    pub trace: usize,
}

/// How the CPUs are kept usable for ordinary threads.
///
/// SCHED_FIFO threads that never sleep keep every ordinary thread off their CPU: daemons, shells, sshd, the kernel's own
/// workers. The kernel stops them all for 50 ms of each second where real-time throttling is on, schedulers included. Instead,
/// for `part` of each `every` the tasks leave SCHED_FIFO: the one in front competes like a single ordinary thread of nice 0,
/// the others stay behind everything (SCHED_IDLE). If no ordinary thread wants the CPU, the task in front goes on as before, so the
/// pieces cost nothing but the calls. With 12 %, one ordinary thread that wants the CPU gets somewhat more than 4 % of it (4.2 to
/// 4.8 % measured), several get up to 12 %, and the throttling never strikes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Open {
    /// From the beginning of one piece to the next.
    pub every: Duration,
    /// The part of it that is open, 0 to 0.9; 0 switches it off.
    pub part: f64,
}

impl Default for Open {
    /// 3 ms of every 25 ms.
    fn default() -> Open {
        Open {
            every: Duration::from_millis(25),
            part: 0.12,
        }
    }
}

/// The longest time of a system call on a thread, for estimates of calls on all threads.
const CALL: Duration = Duration::from_micros(1);

/// Calls of a thorough look for each thread: its entry, its CPUs (twice) and its policy are read.
const LOOK: u32 = 4;

/// Changing all threads, and thorough looks at them, take at most this part of the time: one in 50.
const RARE: u32 = 50;

/// Returns the shortest time from one thorough look at so many threads to the next, ns.
pub(crate) fn between_looks(threads: usize) -> Nanos {
    let threads = u32::try_from(threads).unwrap_or(u32::MAX);
    let length = CALL * threads.saturating_mul(LOOK * RARE);
    Nanos::try_from(length.as_nanos()).unwrap_or(Nanos::MAX)
}

impl Open {
    /// Time closed and time open, ns, with so many threads: pieces are rarer where changing all threads takes long, so that it
    /// takes no more than 2 % of the time. `None` if it is switched off.
    pub(crate) fn pieces(&self, threads: usize) -> Option<(Nanos, Nanos)> {
        let part = self.part.clamp(0.0, 0.9);
        if part == 0.0 {
            return None;
        }
        let threads = u32::try_from(threads).unwrap_or(u32::MAX);
        // To open, and to close.
        let dear = CALL * threads.saturating_mul(2 * RARE);
        let every = self.every.max(dear).clamp(LEAST, MOST).as_nanos() as f64;
        let open = every * part;
        Some(((every - open) as Nanos, open as Nanos))
    }
}

impl Open {
    /// Whether changing some of the tasks' threads within an open piece takes little of it.
    pub(crate) fn may_change(&self, changed: usize, threads: usize) -> bool {
        let calls = u32::try_from(changed).unwrap_or(u32::MAX);
        let cost = (CALL * calls.saturating_mul(RARE)).as_nanos();
        let open = self.pieces(threads).map_or(0, |(_, open)| open);
        cost <= u128::from(open)
    }
}

/// Pieces come no more and no less often than this: the throttling counts by the second.
const LEAST: Duration = Duration::from_millis(10);
/// See [`LEAST`].
const MOST: Duration = Duration::from_millis(800);

impl Config {
    /// Tasks share `cpus`; notches 2 to 40, turns of 50 µs at least, 12 % for ordinary threads, no trace.
    pub fn on(cpus: impl Into<Vec<usize>>) -> Config {
        Config {
            cpus: cpus.into(),
            base: Priority::of::<2>(),
            top: Priority::of::<40>(),
            floor: Duration::from_micros(50),
            open: Open::default(),
            follow: Duration::from_millis(10),
            trace: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_threads_make_pieces_rarer() {
        let open = Open::default();
        assert_eq!(open.pieces(8), Some((22_000_000, 3_000_000)));
        assert_eq!(open.pieces(2000), Some((176_000_000, 24_000_000)));
        assert_eq!(open.pieces(1_000_000), Some((704_000_000, 96_000_000)));
        let off = Open { part: 0.0, ..open };
        assert_eq!(off.pieces(8), None);
    }
}
