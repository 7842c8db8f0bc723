//! What this machine is: CPU, kernel, memory, and the CPUs this process may use.
//!
//! Read from `/proc` and by a few system calls; nothing here fails, an unknown item is named so.

use std::fs;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// A description for tables and reports.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    /// Model name of the CPU.
    pub(crate) cpu: String,
    /// CPUs this process may use.
    pub(crate) cpus: usize,
    /// Kernel name, release and architecture.
    pub(crate) kernel: String,
    /// Memory in bytes, 0 if unknown.
    pub(crate) memory: u64,
    /// Whether the CPU says that it runs under a hypervisor.
    pub(crate) virtual_machine: bool,
}

impl Machine {
    /// Reads the description of this machine.
    pub(crate) fn read() -> Machine {
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
        let uname = rustix::system::uname();
        let text = |s: &std::ffi::CStr| s.to_string_lossy().into_owned();
        Machine {
            cpu: field("model name")
                .or_else(|| field("uarch"))
                .unwrap_or_else(|| "unknown CPU".into()),
            cpus: allowed_cpus().len(),
            kernel: format!(
                "{} {} {}",
                text(uname.sysname()),
                text(uname.release()),
                text(uname.machine())
            ),
            memory,
            virtual_machine: field("flags")
                .is_some_and(|f| f.split(' ').any(|flag| flag == "hypervisor")),
        }
    }

    /// One line: CPU, number of CPUs, memory, kernel.
    pub(crate) fn line(&self) -> String {
        let kind = if self.virtual_machine {
            "virtual machine"
        } else {
            "no hypervisor seen"
        };
        format!(
            "{} CPUs ({}, {kind}), {:.1} GiB, {}",
            self.cpus,
            self.cpu,
            self.memory as f64 / (1u64 << 30) as f64,
            self.kernel
        )
    }
}

/// Share of the CPUs' time that was used while this function slept for `window`, 0..=1. Called
/// before anything is measured, it tells what else the machine is doing.
pub(crate) fn busy_share(window: Duration) -> f64 {
    let Some(before) = cpu_ticks() else {
        return 0.0;
    };
    std::thread::sleep(window);
    let Some(after) = cpu_ticks() else { return 0.0 };
    let [all, idle] = [0, 1].map(|i| after[i].saturating_sub(before[i]));
    if all == 0 {
        0.0
    } else {
        (1.0 - idle as f64 / all as f64).clamp(0.0, 1.0)
    }
}

/// Ticks of all CPUs so far: all, and idle ones.
fn cpu_ticks() -> Option<[u64; 2]> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    // user nice system idle iowait irq softirq steal; guest time is in user already.
    let fields: Vec<u64> = stat
        .lines()
        .next()?
        .split_whitespace()
        .skip(1)
        .take(8)
        .map_while(|f| f.parse().ok())
        .collect();
    Some([fields.iter().sum(), fields.get(3)? + fields.get(4)?])
}

/// The CPUs this process may run on, ascending; `[0]` if the kernel does not say.
pub(crate) fn allowed_cpus() -> Vec<usize> {
    match sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU)
            .filter(|&cpu| set.is_set(cpu))
            .collect(),
        Err(_) => vec![0],
    }
}

/// Restricts the calling thread, and the threads it starts from now on, to `cpus`; no CPUs means
/// no restriction.
pub(crate) fn pin(cpus: &[usize]) -> std::io::Result<()> {
    if cpus.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    for &cpu in cpus {
        set.set(cpu);
    }
    Ok(sched_setaffinity(None, &set)?)
}

/// Raises the soft limit of open files to the hard limit. A failure is ignored: running out of
/// descriptors is reported where it happens.
pub(crate) fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    );
}

/// Resident memory of this process in bytes, 0 if unknown.
pub(crate) fn resident_bytes() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split_whitespace().nth(1)?.parse::<u64>().ok())
        .unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_describes_itself() {
        let machine = Machine::read();
        assert!(machine.cpus >= 1 && machine.memory > 0);
        assert!(machine.line().contains("Linux"));
        assert!((0.0..=1.0).contains(&busy_share(Duration::from_millis(20))));
        assert!(resident_bytes() > 0);
    }
}
