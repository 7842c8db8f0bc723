//! Measures the CPU time that a process uses between two readings, split into user and system time.
//!
//! The total is exact, because it is the run time that the scheduler itself records for all threads
//! of the process, including ended threads. One system call reads it from the CPU clock of the
//! process. The kernel samples the split of user and system time at ticks, so the split is an
//! estimate that needs about a second of busy time to be accurate to a few per cent.
//!
//! A reading costs one system call and one small file, for any number of threads. The per-thread
//! files (`task/*/schedstat`) contain the same total but lose ended threads and take milliseconds
//! for a thousand threads.

use crate::os;
use std::io;
use std::iter::Sum;
use std::time::Duration;

/// CPU time used over a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuUse {
    /// Time in user mode.
    pub user: Duration,
    /// Time in the kernel on behalf of the process.
    pub sys: Duration,
}

impl CpuUse {
    /// Returns the sum of user and system time.
    pub fn total(&self) -> Duration {
        self.user + self.sys
    }
}

impl Sum for CpuUse {
    fn sum<I: Iterator<Item = CpuUse>>(parts: I) -> CpuUse {
        parts.fold(CpuUse::default(), |sum, part| CpuUse {
            user: sum.user + part.user,
            sys: sum.sys + part.sys,
        })
    }
}

/// A reading of the CPU time of a process; two readings make a [`CpuUse`].
///
/// ```
/// use upshift_load::cpu::Reading;
/// let before = Reading::for_process(std::process::id())?;
/// let used = before.used_until(&Reading::for_process(std::process::id())?);
/// println!("{:?} user, {:?} system", used.user, used.sys);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    total: Duration,
    user_ticks: u64,
    sys_ticks: u64,
}

impl Reading {
    /// Reads the CPU time of process `pid`.
    ///
    /// # Errors
    ///
    /// Fails if there is no such process, or `/proc` is not mounted.
    pub fn for_process(pid: u32) -> io::Result<Reading> {
        let explain = |error: io::Error| {
            io::Error::new(
                error.kind(),
                format!("cannot read the CPU time of process {pid} ({error}): is it running?"),
            )
        };
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).map_err(explain)?;
        let (user_ticks, sys_ticks) =
            ticks(&stat).ok_or_else(|| explain(io::ErrorKind::InvalidData.into()))?;
        Ok(Reading {
            total: os::process_cpu(pid).map_err(explain)?,
            user_ticks,
            sys_ticks,
        })
    }

    /// Returns the CPU time of the process until this reading.
    pub fn total(&self) -> Duration {
        self.total
    }

    /// Returns the CPU time used from this reading to a `later` one of the same process.
    pub fn used_until(&self, later: &Reading) -> CpuUse {
        let total = later.total.saturating_sub(self.total);
        let user = later.user_ticks.saturating_sub(self.user_ticks);
        let sys = later.sys_ticks.saturating_sub(self.sys_ticks);
        if user + sys == 0 {
            // Both times are less than a tick, so their proportion is not known.
            return CpuUse {
                user: total / 2,
                sys: total - total / 2,
            };
        }
        let user = total.mul_f64(user as f64 / (user + sys) as f64).min(total);
        CpuUse {
            user,
            sys: total - user,
        }
    }
}

/// Returns the CPU time of all programs that this process has started and that have ended; zero if
/// the kernel does not report it.
pub fn cpu_time_of_ended_children() -> Duration {
    os::children_cpu().unwrap_or_default()
}

/// Returns `utime` and `stime` of a `/proc/PID/stat` line; the name in parentheses may itself
/// contain spaces and parentheses.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_read_after_the_last_parenthesis() {
        let stat = "7 (a) b (c) R 1 2 3 4 5 6 7 8 9 10 111 222 0 0 20 0 1";
        assert_eq!(ticks(stat), Some((111, 222)));
        assert_eq!(ticks("7 a"), None);
    }

    #[test]
    fn user_and_system_time_add_up_to_the_exact_total() {
        let reading = |ms, user_ticks, sys_ticks| Reading {
            total: Duration::from_millis(ms),
            user_ticks,
            sys_ticks,
        };
        let used = reading(1000, 10, 10).used_until(&reading(1403, 40, 20));
        assert_eq!(used.total(), Duration::from_millis(403));
        assert!(used.user > used.sys * 2);
        let short = reading(1000, 10, 10).used_until(&reading(1003, 10, 10));
        assert_eq!(short.total(), Duration::from_millis(3));
    }

    #[test]
    fn cpu_times_of_several_processes_are_added() {
        let used = |user, sys| CpuUse {
            user: Duration::from_millis(user),
            sys: Duration::from_millis(sys),
        };
        let sum: CpuUse = [used(1, 20), used(300, 4_000)].into_iter().sum();
        assert_eq!(sum, used(301, 4_020));
    }

    #[test]
    fn cpu_time_of_this_process_is_measured() {
        let before = Reading::for_process(std::process::id()).unwrap();
        let mut x = 1u64;
        while Reading::for_process(std::process::id()).unwrap().total - before.total
            < Duration::from_millis(2)
        {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
    }

    #[test]
    fn a_missing_process_is_an_error_that_names_it() {
        let error = Reading::for_process(u32::MAX / 2).unwrap_err();
        assert!(error.to_string().contains("is it running"));
    }
}
