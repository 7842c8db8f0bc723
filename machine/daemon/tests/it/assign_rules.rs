//! Subjects and bounds of `[[assign]]` rules: containers, units, shares, periods.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use upshift_daemon::{Assign, Bound, Config, Daemon};
use upshift_elevate::sys::Kernel;
use upshift_elevate::{Class, Policy};

use crate::assign::{assigned, periodic_rule, rule};
use crate::attack::{ALICE, MALLORY, from_now, open_config, start_child};
use crate::cgroup::Cgroup;
use crate::client::census;
use crate::process::{Process, until};
use crate::{permitted, skipped, socket, turn};

fn daemon(name: &str, assign: Assign) -> Daemon {
    let config = open_config(name);
    let assign = vec![assign];
    Daemon::start(Config { assign, ..config }).unwrap()
}

fn is_assigned(path: &Path, process: &Process) -> bool {
    assigned(&census(path), process.pid()).is_some()
}

/// A shell of `user` that spins, with one thread, for ten seconds at most.
struct Shell(Child);

impl Shell {
    fn start(user: u32, cpus: Option<&str>) -> Shell {
        let burn = "ulimit -t 10; while :; do :; done";
        let mut command = match cpus {
            Some(cpus) => {
                let mut command = Command::new("taskset");
                command.args(["-c", cpus, "sh", "-c", burn]);
                command
            }
            None => {
                let mut command = Command::new("sh");
                command.args(["-c", burn]);
                command
            }
        };
        command.uid(user).gid(user).stdin(Stdio::null());
        Shell(command.spawn().unwrap())
    }

    fn class(&self) -> Option<Class> {
        let policy = Policy::of(&Kernel, self.0.id() as i32).ok()?;
        Some(policy.class())
    }

    /// Starts a shell in the cgroup with these processes.
    fn in_cgroup(user: u32, processes: &Path) -> Shell {
        // The shell moves itself there before it becomes that user's.
        let text = format!(
            "echo $$ > {} && exec setpriv --reuid {user} --clear-groups sh -c 'ulimit -t 10; while :; do :; done'",
            processes.display()
        );
        let mut command = Command::new("sh");
        Shell(
            command
                .args(["-c", &text])
                .stdin(Stdio::null())
                .spawn()
                .unwrap(),
        )
    }

    fn is_assigned(&self, path: &Path) -> bool {
        assigned(&census(path), self.0.id() as i32).is_some()
    }

    /// Whether its policy is the one that it was started with, that of the tests.
    fn is_as_before(&self) -> bool {
        let own = Policy::of(&Kernel, std::process::id() as i32).ok();
        self.class() == own.map(|own| own.class())
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_share_is_of_all_cpus_of_the_domain() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let cpus = std::thread::available_parallelism().unwrap().get() as u64;
    if cpus < 2 {
        return skipped("needs two CPUs");
    }
    let mut parts = Vec::new();
    for bound in [Bound::Share(90), Bound::Budget(80), Bound::Share(10)] {
        let path = socket("share");
        let rule = Assign {
            bound,
            ..rule(ALICE, 8)
        };
        let _daemon = daemon("share", rule);
        let threads = |count: u64| [("THREADS", count.to_string())];
        let mut urgent = start_child("spinners", &path, ALICE, (0, 0), &threads(cpus));
        let mut others =
            [0, 1, 2].map(|_| start_child("spinners", &path, MALLORY, (0, 0), &threads(cpus)));
        until("it is assigned", || is_assigned(&path, &urgent));
        let end = from_now(Duration::from_millis(1000));
        urgent.go_until(end);
        others.iter_mut().for_each(|process| process.go_until(end));
        let used = urgent.number("used ");
        println!("{bound:?}: {used} us, {} alarms", census(&path)["alarms"]);
        parts.push(used);
    }
    // Beyond its bound the program has a quarter of the rest.
    assert!(parts[0] * 10 > parts[1] * 13, "{parts:?}");
    assert!(parts[1] * 10 > parts[2] * 13, "{parts:?}");
}

#[test]
fn a_runtime_in_each_period_bounds_a_program_in_sched_fifo() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let daemon = daemon("period", periodic_rule());
    let shell = Shell::start(ALICE, Some("0"));
    // Its budget ends, and the next period begins.
    for _ in 0..2 {
        until("it is elevated", || {
            matches!(shell.class(), Some(Class::Fifo(2..=10)))
        });
        until("its runtime is used up", || {
            matches!(shell.class(), Some(Class::Other { .. }))
        });
    }
    daemon.stop();
    assert!(shell.is_as_before());
}

#[test]
fn a_daemon_that_is_killed_leaves_no_program_elevated() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("left");
    // A file may name the period as a deadline.
    let config =
        format!("[[assign]]\nuser = {ALICE}\nlevel = 8\nruntime_us = 2000\ndeadline_us = 20000\n");
    let mut daemon = Process::start("daemon", &path, &[("CONFIG", config)]);
    daemon.line("ready").unwrap();
    let shell = Shell::start(ALICE, None);
    until("it is elevated", || {
        matches!(shell.class(), Some(Class::Fifo(_)))
    });
    daemon.kill();
    until("the guardian has restored it", || shell.is_as_before());
}

#[test]
fn a_container_is_known_by_its_cgroup() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let id = format!("5eed{:060x}", std::process::id());
    let Some(cgroup) = Cgroup::new(&format!("docker-{id}.scope"), None) else {
        return skipped("no cgroup can be made");
    };
    let path = socket("container");
    let rule = Assign {
        container: Some(format!("{}*", &id[..12])),
        level: 8,
        ..Assign::default()
    };
    let inside = start_child("spinners", &path, ALICE, (0, 0), &[]);
    let outside = start_child("spinners", &path, ALICE, (0, 0), &[]);
    assert!(cgroup.take(&inside));
    let _daemon = daemon("container", rule);
    until("the program in the container is assigned", || {
        is_assigned(&path, &inside)
    });
    assert!(!is_assigned(&path, &outside));
    drop(inside);
}

#[test]
fn a_user_does_not_make_a_unit_or_a_container_by_a_directory() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let name = format!("upshift-{}", std::process::id());
    let Some(own) = Cgroup::new(&name, None) else {
        return skipped("no cgroup can be made");
    };
    own.delegate(MALLORY);
    // A name with dots is a name, and no way out of the tree.
    let dots = Cgroup::new("up..shift", Some(&own)).unwrap();
    dots.delegate(MALLORY);
    let [false_unit, dotted] =
        [&own, &dots].map(|parent| Cgroup::new("upshift-test.service", Some(parent)).unwrap());
    false_unit.delegate(MALLORY);
    dotted.delegate(MALLORY);
    let Some(unit) = Cgroup::new("upshift-test.service", None) else {
        return skipped("no cgroup can be made");
    };
    let path = socket("unit");
    let rule = Assign {
        unit: Some("upshift-test.service".into()),
        level: 8,
        ..Assign::default()
    };
    let impostors = [(); 2].map(|()| start_child("spinners", &path, MALLORY, (0, 0), &[]));
    let member = start_child("spinners", &path, ALICE, (0, 0), &[]);
    assert!(false_unit.take(&impostors[0]) && dotted.take(&impostors[1]) && unit.take(&member));
    let _daemon = daemon("unit", rule);
    until("the unit is assigned", || is_assigned(&path, &member));
    for impostor in &impostors {
        assert!(!is_assigned(&path, impostor));
    }
    drop((impostors, member));
}

/// Creates a copy of `sleep` that belongs to `user` and runs as that user.
fn set_user_id_program(user: u32) -> std::path::PathBuf {
    let program = crate::directory().join("sleeper");
    // Another process copies: a child that another test forks here would hold the file open for
    // writing.
    let copied = Command::new("cp").arg("/bin/sleep").arg(&program).status();
    assert!(copied.unwrap().success());
    std::os::unix::fs::chown(&program, Some(user), Some(user)).unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o4755)).unwrap();
    program
}

#[test]
fn a_program_with_the_set_user_id_bit_fits_no_rule_of_its_owner() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("bit");
    let start = |program: &Path, user: u32| {
        let mut command = Command::new(program);
        command.arg("20").uid(user).gid(user);
        Shell(command.spawn().unwrap())
    };
    let theirs = start(&set_user_id_program(ALICE), MALLORY);
    let status = format!("/proc/{}/status", theirs.0.id());
    let mixed = format!("Uid:\t{MALLORY}\t{ALICE}\t{ALICE}\t{ALICE}\n");
    if !std::fs::read_to_string(status).unwrap().contains(&mixed) {
        return skipped("programs with the set-user-id bit do not work here");
    }
    let of_alice = start(Path::new("sleep"), ALICE);
    let _daemon = daemon("bit", rule(ALICE, 8));
    until("the program of its own user is assigned", || {
        of_alice.is_assigned(&path)
    });
    assert!(!theirs.is_assigned(&path));
    // A later one, which the kernel reports.
    let later = start(&crate::directory().join("sleeper"), MALLORY);
    let after = start(Path::new("sleep"), ALICE);
    until("the next is assigned", || after.is_assigned(&path));
    assert!(!later.is_assigned(&path) && !theirs.is_assigned(&path));
}

#[test]
fn a_rule_that_the_kernel_prevents_is_reported() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let name = format!("upshift-poor-{}", std::process::id());
    let hierarchy = Path::new("/sys/fs/cgroup/cpu");
    let Some(poor) =
        Cgroup::below(hierarchy, &name).filter(|cgroup| cgroup.has("cpu.rt_runtime_us"))
    else {
        return skipped("real-time time is not shared out by cgroup here");
    };
    let path = socket("poor");
    let errors = crate::directory().join("errors");
    let rules = format!("mode = \"0666\"\n[[assign]]\nuser = {ALICE}\nlevel = 8\n");
    let settings = [("CONFIG", rules), ("ERRORS", errors.display().to_string())];
    let mut daemon = Process::start("daemon", &path, &settings);
    daemon.line("ready").unwrap();
    let inside = Shell::in_cgroup(ALICE, &poor.path().join("cgroup.procs"));
    until("it is reported", || {
        let text = std::fs::read_to_string(&errors).unwrap_or_default();
        text.contains(&format!("process {} stays ordinary", inside.0.id()))
    });
    assert!(inside.is_as_before());
    drop(inside);
}

#[test]
fn a_unit_is_named_by_a_pattern_too() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let name = format!("upshift-{}@7.service", std::process::id());
    let Some(unit) = Cgroup::new(&name, None) else {
        return skipped("no cgroup can be made");
    };
    let path = socket("pattern");
    let rule = Assign {
        unit: Some(format!("upshift-{}@*.service", std::process::id())),
        level: 8,
        ..Assign::default()
    };
    let member = start_child("spinners", &path, ALICE, (0, 0), &[]);
    assert!(unit.take(&member));
    let _daemon = daemon("pattern", rule);
    until("the unit is assigned", || is_assigned(&path, &member));
    drop(member);
}
