//! Implements the published algorithm from its description: the round-robin scheduler in the
//! repository of Yasukata and Ishiguro, "Developing Process Scheduling Policies in User Space with
//! Common OS Features" (APSys 2024).
//!
//! The scheduler has priority 3 on the CPU of the processes. In each turn it sets the next process
//! to priority 2 and the previous process to 1, and sleeps for the interval. Unlike the published
//! scheduler, it stops after a given time, records its switches, and restores the policy of the
//! processes.

use std::io;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::spinners::{now, read};

fn set_policy(pid: i32, policy: i32, priority: i32) -> io::Result<()> {
    let parameter = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: the pointer is valid, because the call only reads `parameter`, an initialized local.
    match unsafe { libc::sched_setscheduler(pid, policy, &raw const parameter) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Result of [`round_robin`].
#[derive(Debug)]
pub(crate) struct Scheduled {
    /// Times in ns at which a process came to the front, with the index of the process.
    pub(crate) fronts: Vec<(u64, usize)>,
    /// CPU time of the scheduler, in ns.
    pub(crate) cpu_time: u64,
}

/// Lets the processes take turns of `interval`, for `time`.
pub(crate) fn round_robin(
    pids: Vec<i32>,
    interval: Duration,
    cpu: usize,
    time: Duration,
) -> io::Result<Scheduled> {
    let thread = std::thread::spawn(move || {
        let Some(cpu_set) = upshift_elevate::sys::CpuSet::only(cpu) else {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        };
        set_policy(0, libc::SCHED_FIFO, 3)?;
        upshift_elevate::sys::Sys::sched_setaffinity(&upshift_elevate::sys::Kernel, 0, &cpu_set)?;
        let end = now() + time.as_nanos() as u64;
        let mut fronts = Vec::with_capacity(1 << 16);
        let outcome = 'run: loop {
            for next in 0..pids.len() {
                let previous = next.checked_sub(1).unwrap_or(pids.len() - 1);
                let result = set_policy(pids[next], libc::SCHED_FIFO, 2);
                let result = result.and_then(|()| set_policy(pids[previous], libc::SCHED_FIFO, 1));
                fronts.push((now(), next));
                if result.is_err() || now() >= end {
                    break 'run result;
                }
                std::thread::sleep(interval);
            }
        };
        for &pid in &pids {
            set_policy(pid, libc::SCHED_OTHER, 0)?;
        }
        let cpu_time = read(libc::CLOCK_THREAD_CPUTIME_ID);
        outcome.map(|()| Scheduled { fronts, cpu_time })
    });
    thread
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("the scheduler panicked")))
}

/// The published algorithm as a script.
const SCRIPT: &str = include_str!("trick.sh");
/// Time beyond the requested one after which the script is killed.
const GRACE: Duration = Duration::from_secs(5);

/// Lets the processes take turns of `interval` by the script, for `time`.
pub(crate) fn script(
    pids: &[i32],
    interval: Duration,
    cpu: usize,
    time: Duration,
) -> io::Result<()> {
    let limit = (time + GRACE).as_secs_f64().to_string();
    let status = Command::new("timeout")
        .args(["--kill-after=1", &limit, "bash", "-c", SCRIPT, "trick.sh"])
        .arg(cpu.to_string())
        .arg(interval.as_secs_f64().to_string())
        .arg(time.as_micros().to_string())
        .args(pids.iter().map(ToString::to_string))
        .stdout(Stdio::null())
        .status()?;
    if status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("trick.sh ended with {status}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spinners::{Spinner, last_cpu};

    fn policy(pid: i32) -> i32 {
        // SAFETY: the call takes no pointers.
        unsafe { libc::sched_getscheduler(pid) }
    }

    #[test]
    fn the_script_lets_processes_take_turns_and_restores_their_policy() {
        let cpu = last_cpu().unwrap();
        let spinners = [Spinner::start(cpu).unwrap(), Spinner::start(cpu).unwrap()];
        let pids = spinners.each_ref().map(|spinner| spinner.pid);
        if set_policy(pids[0], libc::SCHED_FIFO, 1).is_err() {
            eprintln!("skipped: SCHED_FIFO is not permitted");
            return;
        }
        let time = Duration::from_millis(400);
        script(&pids, Duration::from_millis(20), cpu, time).unwrap();
        assert_eq!(pids.map(policy), [libc::SCHED_OTHER; 2]);
        assert!(spinners.iter().all(|spinner| spinner.record().loops > 0));
        assert!(script(&[i32::MAX], Duration::from_millis(1), usize::MAX, time).is_err());
    }
}
