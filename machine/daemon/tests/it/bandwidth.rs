//! What the kernel admits to SCHED_DEADLINE: tests that use it up, and Linux 6.18, which loses some of it.

use std::time::{Duration, Instant};

use upshift_elevate::sys::{Kernel, SchedAttr, Sys};

use crate::{Turn, permitted, turn};

/// Processes that sleep in SCHED_DEADLINE and have reserved whatever the kernel admits; gone with their guard.
pub(crate) struct Reserved(pub(crate) Vec<std::process::Child>);

impl Reserved {
    pub(crate) fn everything() -> Reserved {
        let mut all = Reserved(Vec::new());
        // What threads reserved that have ended a moment ago is the kernel's again a period later.
        let mut admitted = true;
        while admitted {
            admitted = false;
            for part in [40, 10, 2, 1] {
                while all.reserves(part) {
                    admitted = true;
                }
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        all
    }

    /// One more process, which reserves so many hundredths of a CPU, if the kernel admits that.
    fn reserves(&mut self, part: u64) -> bool {
        let sleep = std::process::Command::new("sleep").arg("60").spawn();
        let sleep = sleep.unwrap();
        let attr = SchedAttr {
            policy: libc::SCHED_DEADLINE as u32,
            runtime: part * 1_000_000,
            deadline: 100_000_000,
            period: 100_000_000,
            ..SchedAttr::normal()
        };
        let admitted = Kernel.sched_setattr(sleep.id() as i32, &attr).is_ok();
        self.0.push(sleep);
        admitted
    }
}

/// Linux 6.18 loses what threads have reserved at times, until the scheduling domains are built again.
pub(crate) fn has_the_kernel_lost_bandwidth() -> bool {
    let mut probe = Reserved(Vec::new());
    // The canaries' watch, and a program.
    !(probe.reserves(10) && probe.reserves(40))
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // As small as can be: Linux 6.18 does not always get back what a thread has reserved that is killed in its sleep.
        let least = SchedAttr {
            policy: libc::SCHED_DEADLINE as u32,
            runtime: 1 << 10,
            deadline: 2_000_000_000,
            period: 2_000_000_000,
            ..SchedAttr::normal()
        };
        for it in &mut self.0 {
            let _ = Kernel.sched_setattr(it.id() as i32, &least);
            let _ = Kernel.sched_setattr(it.id() as i32, &SchedAttr::normal());
            let _ = it.kill();
        }
        for it in &mut self.0 {
            let _ = it.wait();
        }
    }
}

/// What the kernel has lost of earlier tests' reservations is there again, where it can be told to count anew.
pub(crate) fn turn_with_all_bandwidth() -> Turn {
    let turn = turn();
    if permitted() && has_the_kernel_lost_bandwidth() {
        drop(Recount::new());
    }
    turn
}

/// Waits until programs have deadlines. The kernel may have come to admit none meanwhile: then it is told to count anew, where that can be done, and the daemon
/// asks again within a second.
pub(crate) fn until_admitted(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    let mut told = begun;
    while !condition() {
        if told.elapsed() > Duration::from_secs(10) && has_the_kernel_lost_bandwidth() {
            println!("the kernel admits nothing");
            drop(Recount::new());
            told = Instant::now();
        }
        let waited = begun.elapsed();
        assert!(waited < Duration::from_secs(60), "not within 60s: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Has the kernel count anew what is reserved, when it is dropped.
pub(crate) struct Recount {
    /// A setting of cpusets of the first version, and what it is.
    file: &'static str,
    level: String,
}

impl Recount {
    /// `None`: the kernel cannot be told to.
    pub(crate) fn new() -> Option<Recount> {
        let file = "/sys/fs/cgroup/cpuset/cpuset.sched_relax_domain_level";
        let level = std::fs::read_to_string(file).ok()?;
        let level = level.trim().to_string();
        std::fs::write(file, &level)
            .ok()
            .map(|()| Recount { file, level })
    }
}

impl Drop for Recount {
    fn drop(&mut self) {
        // What threads had reserved that have left is taken off up to a period later; presumably twice, if the account is built anew in between. One
        // below zero was seen, which the kernel takes for more than all: it admits nothing any more.
        std::thread::sleep(Duration::from_millis(500));
        // Each change builds the scheduling domains again.
        let other = if self.level == "0" { "-1" } else { "0" };
        for level in [other, &self.level] {
            let _ = std::fs::write(self.file, level);
        }
    }
}
