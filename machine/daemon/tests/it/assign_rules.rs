//! Tests of which processes an `[[assign]]` rule matches (containers, units), and of its limits on
//! CPU time (shares, periods).

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
use crate::attack::{ALICE, MALLORY, deadline_after, open_config, start_child};
use crate::cgroup::Cgroup;
use crate::client::census;
use crate::process::{Process, wait_until};
use crate::{permitted, serial_test, skipped, socket};

fn daemon(name: &str, assign: Assign) -> Daemon {
    let config = open_config(name);
    let assign = vec![assign];
    Daemon::start(Config { assign, ..config }).unwrap()
}

fn is_assigned(path: &Path, process: &Process) -> bool {
    assigned(&census(path), process.pid()).is_some()
}

/// A shell that spins with one thread for ten seconds at most. Killed when dropped.
struct Shell(Child);

impl Shell {
    fn start(user: u32, cpus: Option<&str>) -> Shell {
        let script = "ulimit -t 10; while :; do :; done";
        let mut command = match cpus {
            Some(cpus) => {
                let mut command = Command::new("taskset");
                command.args(["-c", cpus, "sh", "-c", script]);
                command
            }
            None => {
                let mut command = Command::new("sh");
                command.args(["-c", script]);
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

    /// Starts a shell of `user` in a cgroup. `processes` is the path of its `cgroup.procs`.
    fn in_cgroup(user: u32, processes: &Path) -> Shell {
        // The shell enters the cgroup while it is still privileged, and then changes its user.
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

    /// Returns whether the shell has the scheduling class of the test process, from which it
    /// inherited its own.
    fn has_initial_class(&self) -> bool {
        let initial = Policy::of(&Kernel, std::process::id() as i32).ok();
        self.class() == initial.map(|initial| initial.class())
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_share_applies_to_all_cpus_of_the_domain() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let cpus = std::thread::available_parallelism().unwrap().get() as u64;
    if cpus < 2 {
        return skipped("needs two CPUs");
    }
    let mut used_by_bound = Vec::new();
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
        wait_until("the urgent process is assigned", || {
            is_assigned(&path, &urgent)
        });
        let end = deadline_after(Duration::from_millis(1000));
        urgent.run_until(end);
        others.iter_mut().for_each(|process| process.run_until(end));
        let used = urgent.number("used ");
        println!("{bound:?}: {used} us, {} alarms", census(&path)["alarms"]);
        used_by_bound.push(used);
    }
    // After the bound is exhausted, the program gets a quarter of the remaining time, because four
    // processes compete. On two CPUs, this is 92, 55 and 32 % of their time.
    assert!(
        used_by_bound[0] * 10 > used_by_bound[1] * 13,
        "CPU times of the urgent process, us: {used_by_bound:?}"
    );
    assert!(
        used_by_bound[1] * 10 > used_by_bound[2] * 13,
        "CPU times of the urgent process, us: {used_by_bound:?}"
    );
}

#[test]
fn a_runtime_in_each_period_bounds_a_program_in_sched_fifo() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let daemon = daemon("period", periodic_rule());
    let shell = Shell::start(ALICE, Some("0"));
    // The budget is exhausted, and the next period begins.
    for _ in 0..2 {
        wait_until("the shell is elevated", || {
            matches!(shell.class(), Some(Class::Fifo(2..=10)))
        });
        wait_until("the runtime of the shell is used up", || {
            matches!(shell.class(), Some(Class::Other { .. }))
        });
    }
    daemon.stop();
    assert!(shell.has_initial_class());
}

#[test]
fn a_daemon_that_is_killed_leaves_no_program_elevated() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("left");
    // A configuration file may give the period as `deadline_us`.
    let config =
        format!("[[assign]]\nuser = {ALICE}\nlevel = 8\nruntime_us = 2000\ndeadline_us = 20000\n");
    let mut daemon = Process::start("daemon", &path, &[("CONFIG", config)]);
    daemon.line("ready").unwrap();
    let shell = Shell::start(ALICE, None);
    wait_until("the shell is elevated", || {
        matches!(shell.class(), Some(Class::Fifo(_)))
    });
    daemon.kill();
    wait_until("the guardian has restored the shell", || {
        shell.has_initial_class()
    });
}

#[test]
fn a_container_is_recognized_by_its_cgroup() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let id = format!("5eed{:060x}", std::process::id());
    let Some(cgroup) = Cgroup::new(&format!("docker-{id}.scope"), None) else {
        return skipped("no cgroup can be created");
    };
    let path = socket("container");
    let rule = Assign {
        container: Some(format!("{}*", &id[..12])),
        level: 8,
        ..Assign::default()
    };
    let inside = start_child("spinners", &path, ALICE, (0, 0), &[]);
    let outside = start_child("spinners", &path, ALICE, (0, 0), &[]);
    assert!(cgroup.add(&inside));
    let _daemon = daemon("container", rule);
    wait_until("the program in the container is assigned", || {
        is_assigned(&path, &inside)
    });
    assert!(!is_assigned(&path, &outside));
    drop(inside);
}

#[test]
fn a_directory_that_a_user_creates_is_neither_a_unit_nor_a_container() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let name = format!("upshift-{}", std::process::id());
    let Some(user_cgroup) = Cgroup::new(&name, None) else {
        return skipped("no cgroup can be created");
    };
    user_cgroup.delegate(MALLORY);
    // A name that contains `..` must not be taken for a path to the parent directory.
    let dots = Cgroup::new("up..shift", Some(&user_cgroup)).unwrap();
    dots.delegate(MALLORY);
    let [false_unit, dotted] = [&user_cgroup, &dots]
        .map(|parent| Cgroup::new("upshift-test.service", Some(parent)).unwrap());
    false_unit.delegate(MALLORY);
    dotted.delegate(MALLORY);
    let Some(unit) = Cgroup::new("upshift-test.service", None) else {
        return skipped("no cgroup can be created");
    };
    let path = socket("unit");
    let rule = Assign {
        unit: Some("upshift-test.service".into()),
        level: 8,
        ..Assign::default()
    };
    let impostors = [(); 2].map(|()| start_child("spinners", &path, MALLORY, (0, 0), &[]));
    let member = start_child("spinners", &path, ALICE, (0, 0), &[]);
    assert!(false_unit.add(&impostors[0]) && dotted.add(&impostors[1]) && unit.add(&member));
    let _daemon = daemon("unit", rule);
    wait_until("the unit is assigned", || is_assigned(&path, &member));
    for impostor in &impostors {
        assert!(!is_assigned(&path, impostor));
    }
    drop((impostors, member));
}

/// Creates a copy of `sleep` that belongs to `user` and has the set-user-id bit.
fn set_user_id_program(user: u32) -> std::path::PathBuf {
    let program = crate::directory().join("sleeper");
    // A separate process copies the file, because this process could have forked a child that holds
    // the file open for writing, and then the kernel would not execute the file.
    let copied = Command::new("cp").arg("/bin/sleep").arg(&program).status();
    assert!(copied.unwrap().success());
    std::os::unix::fs::chown(&program, Some(user), Some(user)).unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o4755)).unwrap();
    program
}

#[test]
fn a_set_user_id_program_matches_no_rule_of_its_owner() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("bit");
    let start = |program: &Path, user: u32| {
        let mut command = Command::new(program);
        command.arg("20").uid(user).gid(user);
        Shell(command.spawn().unwrap())
    };
    let set_user_id_process = start(&set_user_id_program(ALICE), MALLORY);
    let status = format!("/proc/{}/status", set_user_id_process.0.id());
    let mixed = format!("Uid:\t{MALLORY}\t{ALICE}\t{ALICE}\t{ALICE}\n");
    if !std::fs::read_to_string(status).unwrap().contains(&mixed) {
        return skipped("programs with the set-user-id bit do not work here");
    }
    let process_of_alice = start(Path::new("sleep"), ALICE);
    let _daemon = daemon("bit", rule(ALICE, 8));
    wait_until("the program of its own user is assigned", || {
        process_of_alice.is_assigned(&path)
    });
    assert!(!set_user_id_process.is_assigned(&path));
    // The kernel reports to the daemon the processes that start later.
    let later_set_user_id_process = start(&crate::directory().join("sleeper"), MALLORY);
    let later_process_of_alice = start(Path::new("sleep"), ALICE);
    wait_until("the process that was started last is assigned", || {
        later_process_of_alice.is_assigned(&path)
    });
    assert!(
        !later_set_user_id_process.is_assigned(&path) && !set_user_id_process.is_assigned(&path)
    );
}

#[test]
fn a_process_for_which_the_kernel_refuses_sched_fifo_is_reported() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let name = format!("upshift-no-runtime-{}", std::process::id());
    let hierarchy = Path::new("/sys/fs/cgroup/cpu");
    let Some(without_runtime) =
        Cgroup::below(hierarchy, &name).filter(|cgroup| cgroup.has("cpu.rt_runtime_us"))
    else {
        return skipped("this kernel does not limit real-time runtime by cgroup");
    };
    let path = socket("no-runtime");
    let errors = crate::directory().join("errors");
    let rules = format!("mode = \"0666\"\n[[assign]]\nuser = {ALICE}\nlevel = 8\n");
    let settings = [("CONFIG", rules), ("ERRORS", errors.display().to_string())];
    let mut daemon = Process::start("daemon", &path, &settings);
    daemon.line("ready").unwrap();
    let inside = Shell::in_cgroup(ALICE, &without_runtime.path().join("cgroup.procs"));
    wait_until("the failure is reported", || {
        let text = std::fs::read_to_string(&errors).unwrap_or_default();
        text.contains(&format!("process {} stays ordinary", inside.0.id()))
    });
    assert!(inside.has_initial_class());
    drop(inside);
}

#[test]
fn a_rule_may_name_units_by_a_pattern() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let name = format!("upshift-{}@7.service", std::process::id());
    let Some(unit) = Cgroup::new(&name, None) else {
        return skipped("no cgroup can be created");
    };
    let path = socket("pattern");
    let rule = Assign {
        unit: Some(format!("upshift-{}@*.service", std::process::id())),
        level: 8,
        ..Assign::default()
    };
    let member = start_child("spinners", &path, ALICE, (0, 0), &[]);
    assert!(unit.add(&member));
    let _daemon = daemon("pattern", rule);
    wait_until("the unit is assigned", || is_assigned(&path, &member));
    drop(member);
}
