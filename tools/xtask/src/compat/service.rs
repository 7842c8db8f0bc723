//! Tries `examples/service` with both I/O drivers as an ordinary user, and in a container: requests
//! every route, and measures its urgent request.
//!
//! The container consists of new namespaces (users, processes, network, files), created by a user
//! without privileges. io_uring is forbidden in it. The databases, the partner and the clients run
//! in the same container.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::servers::Servers;
use crate::confine::NOBODY;
use crate::host;
use crate::run::{Limits, Stop, run};
use crate::setup;

/// Time limit of one trial.
const LIMIT: Duration = Duration::from_secs(180);

/// Builds the service, and tries it on both drivers and in a container. `only` restricts the trial
/// to one driver; with `daemon`, the service runs beside a daemon. With either of them nothing is
/// tried in a container. With `inside`, only tries the existing build, in the environment of that
/// name.
pub(super) fn service(
    root: &Path,
    inside: Option<&str>,
    only: Option<&str>,
    daemon: bool,
) -> Result<(), String> {
    let stop = Stop::on_signals().map_err(|error| error.to_string())?;
    let target = root.join("target/xtask/service");
    let target = std::env::var_os("SERVICE_TARGET").map_or(target, Into::into);
    if let Some(name) = inside {
        let servers = Servers::start()?;
        let mut trial = trial(&target, &servers, name, None);
        return run_to_end(&mut trial, Limits::within(LIMIT), &stop);
    }
    if daemon && !rustix::process::geteuid().is_root() {
        return Err("--daemon needs root: the daemon elevates postgres and redis".to_owned());
    }
    let mut build = setup::cargo(root);
    build
        .args(["build", "--release", "--bins", "--examples"])
        .arg("--manifest-path")
        .arg(root.join("examples/service/Cargo.toml"))
        .env("CARGO_TARGET_DIR", &target);
    run_to_end(&mut build, Limits::of_progress(), &stop)?;
    if daemon {
        let mut build = setup::cargo(root);
        build.args(["build", "--release", "-p", "upshift-cli"]);
        run_to_end(&mut build, Limits::of_progress(), &stop)?;
    }
    println!(
        "| | alone | beside the job | while 600 downloads begin | beside the job and 600 downloads | MB/s |\n|---|---|---|---|---|---|"
    );
    for driver in ["ring", "readiness"] {
        if only.is_some_and(|only| only != driver) {
            continue;
        }
        // Each environment has its own databases, because the trial counts the orders that it sees.
        let mut servers = Servers::start()?;
        let mut name = driver.to_owned();
        if daemon {
            servers.start_daemon(&root.join("target/release/upshift"))?;
            name += ", databases elevated";
        }
        let mut trial = trial(&target, &servers, &name, Some(driver));
        run_to_end(&mut trial, Limits::within(LIMIT), &stop)?;
    }
    if only.is_some() || daemon {
        return Ok(());
    }
    run_to_end(&mut container(&target)?, Limits::within(LIMIT), &stop)
}

/// Returns the command that tries the service; without a driver the service chooses one.
fn trial(target: &Path, servers: &Servers, name: &str, driver: Option<&str>) -> Command {
    let release = target.join("release");
    let program = release.join("examples/trial");
    let mut command = if rustix::process::geteuid().is_root() {
        as_nobody(&program)
    } else {
        Command::new(program)
    };
    command
        .arg(release.join("service"))
        .env("NAME", name)
        .env("DATABASE_URL", servers.postgres_url())
        .env("REDIS_URL", &servers.redis)
        .env_remove("UPSHIFT_DRIVER");
    if let Some(driver) = driver {
        command.env("UPSHIFT_DRIVER", driver);
    }
    command
}

fn as_nobody(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"])
        .arg(program)
        .current_dir("/");
    command
}

/// Returns a command that runs this program again inside a container. The creator of the namespaces
/// has all privileges in them; a second user namespace takes these away and gives the user an id
/// that postgres accepts.
fn container(target: &Path) -> Result<Command, String> {
    let this_program = host::this_program()?;
    let inner = "ip link set lo up && exec unshare --user --map-user=1000 --map-group=1000 \"$0\" confine -- \"$0\" compat service --inside container";
    let mut command = if rustix::process::geteuid().is_root() {
        as_nobody(Path::new("unshare"))
    } else {
        Command::new("unshare")
    };
    command
        .args(["--user", "--map-root-user", "--net", "--pid", "--fork"])
        .args(["--kill-child", "--mount-proc", "sh", "-c", inner])
        .arg(this_program)
        .env("SERVICE_TARGET", target)
        .env_remove("UPSHIFT_DRIVER");
    Ok(command)
}

/// Runs a command; a failure of the command is an error.
fn run_to_end(command: &mut Command, limits: Limits, stop: &Stop) -> Result<(), String> {
    let ending = run(command, limits, None, stop).map_err(|error| error.to_string())?;
    ending.success()
}
