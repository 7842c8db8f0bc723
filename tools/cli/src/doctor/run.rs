//! Tries the features of this machine and prints the findings.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use upshift::Driver;
use upshift_elevate::{Priority, Rights, Throttling};

use super::args::DoctorArgs;
use super::show::{Finding, Health, print};

/// Runs `upshift doctor`. The exit code reports failure if no runtime can be created.
pub(crate) fn doctor(args: &DoctorArgs) -> Result<ExitCode> {
    let findings = examine();
    match print(args, &findings) {
        // A closed pipe (`| head`) ends the output and is no error.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        printed => printed.context("cannot print the result")?,
    }
    let works = |finding: &Finding| finding.feature != RING || finding.health != Health::Broken;
    Ok(if findings.iter().all(works) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Name of the feature that is broken if no runtime can be created.
const RING: &str = "io_uring";

fn examine() -> Vec<Finding> {
    let rights = Rights::probe();
    vec![
        ring(),
        real_time(&rights),
        other_users(&rights),
        file_rights(),
        throttling(&rights),
        quota(),
        confinement(&rights),
        daemon(),
    ]
}

fn ring() -> Finding {
    let build_with = |driver| upshift::Runtime::builder().vcpus(1).driver(driver).build();
    let missing = match build_with(Driver::Ring) {
        Ok(runtime) => {
            let report = runtime.report();
            let health = report.gain().map_or(Health::Ok, |_| Health::Restricted);
            let gain = report
                .gain()
                .map(|gain| format!("; possible improvement: {gain}"));
            let text = format!("works: {}{}", report.mode(), gain.unwrap_or_default());
            return Finding::new(RING, health, text);
        }
        Err(error) => error,
    };
    match build_with(Driver::Readiness) {
        Ok(runtime) => {
            let gain = runtime.report().gain().unwrap_or_default();
            let text = format!(
                "runtimes use epoll, and threads for files; possible improvement: {gain}; {missing}"
            );
            Finding::new(RING, Health::Restricted, text)
        }
        Err(error) => Finding::new(
            RING,
            Health::Broken,
            format!("cannot create a runtime: {error}; {missing}"),
        ),
    }
}

fn real_time(rights: &Rights) -> Finding {
    let feature = "SCHED_FIFO";
    match rights.require(Priority::MAX) {
        Ok(()) => Finding::new(
            feature,
            Health::Ok,
            "permitted: the daemon enforces, sched works",
        ),
        Err(missing) => Finding::new(
            feature,
            Health::Restricted,
            format!(
                "a daemon started from here would be cooperative, and `upshift sched` does not work from here: {missing}"
            ),
        ),
    }
}

fn other_users(rights: &Rights) -> Finding {
    let feature = "other users";
    if rights.capable && !rights.user_namespace {
        Finding::new(feature, Health::Ok, "their threads can be scheduled, too")
    } else {
        Finding::new(
            feature,
            Health::Restricted,
            "only processes of this user can be scheduled: run as root (CAP_SYS_NICE), outside of user namespaces",
        )
    }
}

/// Reports whether every user of the machine may execute this program with file capabilities.
fn file_rights() -> Finding {
    let feature = "file rights";
    let program = Path::new("/proc/self/exe");
    let has_capability =
        rustix::fs::getxattr(program, "security.capability", &mut [0u8; 64]).is_ok();
    let is_executable_by_all =
        std::fs::metadata(program).is_ok_and(|metadata| metadata.mode() & 0o001 != 0);
    if has_capability && is_executable_by_all {
        let file = std::fs::read_link(program).unwrap_or_default();
        let file = file.display();
        return Finding::new(
            feature,
            Health::Restricted,
            format!(
                "{file} has a capability and every user may execute it: any user can keep a CPU from all others. Run `sudo setcap -r {file}`"
            ),
        );
    }
    let text = if has_capability {
        "this program has a capability, and not every user may execute it"
    } else {
        "this program has no capability of its own"
    };
    Finding::new(feature, Health::Ok, text)
}

fn throttling(rights: &Rights) -> Finding {
    let health = match rights.throttling {
        Throttling::On { .. } => Health::Ok,
        Throttling::Off | Throttling::Unknown => Health::Restricted,
    };
    Finding::new("RT throttling", health, rights.throttling.to_string())
}

fn quota() -> Finding {
    let feature = "CPU quota";
    match upshift_daemon::cpu_quota(std::process::id().cast_signed()) {
        Some(cpus) => Finding::new(
            feature,
            Health::Restricted,
            format!(
                "this cgroup may use {cpus:.2} CPUs: once it has used its quota for a period, usually 100 ms, its threads wait for the next period (cpu.max)"
            ),
        ),
        None => Finding::new(feature, Health::Ok, "none"),
    }
}

fn confinement(rights: &Rights) -> Finding {
    let feature = "confinement";
    let group = rights
        .group
        .as_ref()
        .map(|group| format!("cgroup: {group}"));
    let filter = rights.filtered.then(|| {
        "a seccomp filter is on: if a line above says no, it may be the reason".to_string()
    });
    let user_namespace = rights
        .user_namespace
        .then(|| "a user namespace: its capabilities do not reach the scheduler".to_string());
    let all: Vec<String> = [filter, user_namespace, group]
        .into_iter()
        .flatten()
        .collect();
    let has_no_runtime = rights
        .group
        .as_ref()
        .is_some_and(|group| group.runtime_us == 0);
    let health = if rights.filtered || rights.user_namespace || has_no_runtime {
        Health::Restricted
    } else {
        Health::Ok
    };
    let none = "no seccomp filter, no user namespace".to_string();
    Finding::new(
        feature,
        health,
        if all.is_empty() { none } else { all.join("; ") },
    )
}

fn daemon() -> Finding {
    let feature = "daemon";
    let Some(socket) = upshift_board::client::find() else {
        return Finding::new(
            feature,
            Health::Restricted,
            "none runs: processes do not know of each other (`upshift daemon` starts it)",
        );
    };
    match upshift_board::client::census(&socket) {
        Ok(census) => {
            let enforces = census.json.contains("\"enforcing\":true");
            let mode = if enforces {
                "enforces"
            } else {
                "is cooperative"
            };
            Finding::new(
                feature,
                Health::Ok,
                format!("{} answers and {mode}", socket.display()),
            )
        }
        Err(error) => Finding::new(feature, Health::Restricted, format!("{error}")),
    }
}
