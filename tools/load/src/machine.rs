//! Describes this machine: CPU, kernel, memory, and the CPUs that this process may use.
//!
//! The description comes from `/proc` and a few system calls. Reading it never fails; an unknown
//! item is reported as such.

use std::fs;
use std::io;
use std::time::Duration;

use crate::os;

/// A description for tables and reports.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Model name of the CPU.
    pub cpu: String,
    /// Number of CPUs that this process may use.
    pub cpus: usize,
    /// Number of CPUs of the machine, 0 if unknown.
    pub processors: usize,
    /// Family of the CPU, if it has such a number.
    pub family: Option<String>,
    /// Model of the CPU, if it has such a number.
    pub model: Option<String>,
    /// Name and release of the kernel.
    pub kernel: String,
    /// Architecture that this program was built for.
    pub architecture: &'static str,
    /// Memory in bytes, 0 if unknown.
    pub memory: u64,
    /// Set if the CPU reports a hypervisor.
    pub virtual_machine: bool,
}

impl Machine {
    /// Reads the description of this machine.
    pub fn read() -> Machine {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| {
            cpuinfo.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                (key.trim() == name).then(|| value.trim().to_owned())
            })
        };
        let memory = fs::read_to_string("/proc/meminfo")
            .unwrap_or_default()
            .lines()
            .find_map(|line| {
                line.strip_prefix("MemTotal:")?
                    .trim()
                    .strip_suffix("kB")?
                    .trim()
                    .parse::<u64>()
                    .ok()
            })
            .map_or(0, |kib| kib * 1024);
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Machine {
            cpu: field("model name")
                .or_else(|| field("uarch"))
                .unwrap_or_else(|| "unknown CPU".into()),
            cpus: allowed_cpus().len(),
            kernel: format!("Linux {}", kernel.trim()),
            architecture: std::env::consts::ARCH,
            processors: cpuinfo
                .lines()
                .filter(|line| line.starts_with("processor"))
                .count(),
            family: field("cpu family"),
            model: field("model"),
            memory,
            virtual_machine: field("flags")
                .is_some_and(|f| f.split(' ').any(|flag| flag == "hypervisor")),
        }
    }

    /// Formats one line: CPU, number of CPUs, memory, kernel.
    pub fn line(&self) -> String {
        let kind = if self.virtual_machine {
            "virtual machine"
        } else {
            "no hypervisor seen"
        };
        format!(
            "{} CPUs ({}, {kind}), {:.1} GiB, {} {}",
            self.cpus,
            self.cpu,
            self.memory as f64 / (1u64 << 30) as f64,
            self.kernel,
            self.architecture
        )
    }
}

/// Busy and idle time of one CPU, or of all CPUs together, since the machine started. The kernel
/// counts in ticks of 10 ms.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuTimes {
    /// Time in which a thread ran, or the hypervisor ran another machine.
    pub busy: Duration,
    /// Time in which no thread ran.
    pub idle: Duration,
    /// Part of `busy` in which the hypervisor ran another machine.
    pub steal: Duration,
}

impl CpuTimes {
    /// Reads the times of one CPU, or of all CPUs together if `None`; zeros if the kernel does not
    /// report them.
    pub fn read(cpu: Option<usize>) -> CpuTimes {
        let name = match cpu {
            Some(cpu) => format!("cpu{cpu} "),
            None => "cpu ".to_owned(),
        };
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let line = stat.lines().find_map(|line| line.strip_prefix(&name));
        // user nice system idle iowait irq softirq steal; guest time is in user already.
        let ticks: Vec<u64> = line
            .unwrap_or_default()
            .split_whitespace()
            .take(8)
            .map(|field| field.parse().unwrap_or(0))
            .collect();
        let time = |ticks: u64| Duration::from_millis(10 * ticks);
        let idle = ticks.iter().skip(3).take(2).sum();
        CpuTimes {
            busy: time(ticks.iter().sum::<u64>() - idle),
            idle: time(idle),
            steal: time(ticks.get(7).copied().unwrap_or(0)),
        }
    }

    /// Returns the times since an `earlier` reading.
    #[must_use]
    pub fn since(&self, earlier: &CpuTimes) -> CpuTimes {
        CpuTimes {
            busy: self.busy.saturating_sub(earlier.busy),
            idle: self.idle.saturating_sub(earlier.idle),
            steal: self.steal.saturating_sub(earlier.steal),
        }
    }
}

/// Returns the CPUs on which this process may run, ascending; `[0]` if the kernel does not report
/// them.
pub fn allowed_cpus() -> Vec<usize> {
    os::affinity().unwrap_or_else(|_| vec![0])
}

/// Restricts the calling thread, and the threads it starts from now on, to `cpus`; an empty list
/// means no restriction.
///
/// # Errors
/// Fails if this process may use none of the CPUs.
pub fn pin(cpus: &[usize]) -> io::Result<()> {
    match cpus {
        [] => Ok(()),
        cpus => os::set_affinity(cpus),
    }
}

/// Raises the soft limit of open files to the hard limit. A failure is ignored, because running out
/// of descriptors is reported where it happens.
pub fn raise_file_limit() {
    let _ = os::raise_open_files(u64::MAX);
}

/// Lets this process, and the programs that it starts, open at least `needed` files each.
///
/// # Errors
/// Fails if the hard limit is lower and this process may not raise it.
pub fn allow_open_files(needed: u64) -> io::Result<()> {
    let allowed = os::raise_open_files(needed)?;
    if allowed >= needed {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("{needed} open files are needed and {allowed} allowed: raise `ulimit -Hn`"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_describes_itself() {
        let machine = Machine::read();
        assert!(machine.cpus >= 1 && machine.memory > 0);
        assert!(machine.line().contains("Linux"));
    }

    #[test]
    fn a_limit_that_cannot_be_raised_is_an_error() {
        allow_open_files(1).unwrap();
        let error = allow_open_files(u64::MAX).unwrap_err();
        assert!(error.to_string().contains("ulimit"), "{error}");
    }
}
