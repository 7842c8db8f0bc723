//! Steps of `cargo xtask soak`, which run for a long time.

use std::process::Command;

use super::common::{SHOW_SKIPS, cargo, default_env, join_errors, passed};
use crate::packages;
use crate::step::{Context, Done, Verdict};

pub(super) fn sim(context: &Context<'_>) -> Verdict {
    join_errors(["soak", "rule"].map(|mode| {
        let args = [
            "run",
            "--release",
            "-p",
            "upshift-sim",
            "--",
            mode,
            "1000000",
        ];
        context.run(cargo(context, args))
    }))?;
    passed()
}

pub(super) fn torture(context: &Context<'_>) -> Verdict {
    let torture = |mut command: Command| {
        default_env(&mut command, "UPSHIFT_TORTURE_SECONDS", "60");
        context.run(command)
    };
    torture(cargo(
        context,
        [
            "test",
            "--release",
            "-p",
            "upshift",
            "--test",
            "torture",
            "--test",
            "spinning",
        ],
    ))?;
    let go = &packages::GO;
    if !go.is_installed() {
        let absence = go.absence();
        return Ok(Done::Skipped(format!(
            "all passed but compat/go: {absence}"
        )));
    }
    let mut command = cargo(
        context,
        [
            "run",
            "--release",
            "--locked",
            "--manifest-path",
            "compat/go/Cargo.toml",
        ],
    );
    command.env(
        "CARGO_TARGET_DIR",
        context.root.join("target/xtask/compat-go"),
    );
    torture(command)?;
    passed()
}

/// Programs that use all the CPU time they get, until they are dropped.
struct Burners(Vec<std::process::Child>);

impl Burners {
    /// Starts a busy loop on each of these CPUs. Each loop ends by itself after an hour.
    fn start(cpus: &[&str]) -> Result<Burners, String> {
        let mut burners = Burners(Vec::new());
        for cpu in cpus {
            let mut command = Command::new("timeout");
            command.args([
                "3600",
                "taskset",
                "-c",
                cpu,
                "sh",
                "-c",
                "while :; do :; done",
            ]);
            let child = command.spawn();
            burners
                .0
                .push(child.map_err(|error| format!("timeout: {error}"))?);
        }
        Ok(burners)
    }
}

impl Drop for Burners {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // `timeout` forwards SIGTERM, but not SIGKILL.
            let pid = child.id().to_string();
            let _ = Command::new("kill").arg(&pid).status();
            let _ = child.wait();
        }
    }
}

/// Runs tests while other programs occupy the CPUs, so that a thread can lose the CPU between any
/// two instructions.
pub(super) fn crowded(context: &Context<'_>) -> Verdict {
    let _burners = Burners::start(&["0", "0", "1"])?;
    for _ in 0..20 {
        let mut command = cargo(context, ["test", "-p", "upshift", "--test", "preempting"]);
        command.args(SHOW_SKIPS);
        context.run(command)?;
    }
    passed()
}

/// Runs the tests of the daemon with more generated cases, and the test of `upshift sched` in which
/// a CPU is unplugged.
pub(super) fn daemon_soak(context: &Context<'_>) -> Verdict {
    let mut command = cargo(context, ["test", "-p", "upshift-daemon", "--test", "it"]);
    command.args(SHOW_SKIPS);
    for (name, value) in [
        ("UPSHIFT_DAEMON_MESSAGES", "1000000"),
        ("UPSHIFT_DAEMON_SCRIBBLE", "60000"),
        ("UPSHIFT_DAEMON_DEATHS", "5000"),
        ("UPSHIFT_DAEMON_UPHEAVAL", "3"),
    ] {
        default_env(&mut command, name, value);
    }
    context.run(command)?;
    let mut command = cargo(context, ["test", "-p", "upshift-sched", "--test", "it"]);
    command.args(["unplugged", "--", "--show-output"]);
    default_env(&mut command, "UPSHIFT_SCHED_UNPLUG", "1");
    context.run(command)?;
    context.tests_passed()
}

/// Runs the fuzzer of the web server's parsers, starting from the sample inputs.
pub(super) fn fuzz(context: &Context<'_>) -> Verdict {
    let mut command = cargo(
        context,
        [
            "test",
            "-p",
            "upshift-serve",
            "--lib",
            "--test",
            "it",
            "fuzz_",
        ],
    );
    command.args(SHOW_SKIPS);
    default_env(&mut command, "UPSHIFT_FUZZ_SECONDS", "60");
    context.run(command)?;
    context.tests_passed()
}
