//! Attacks by processes that deceive the daemon about their user, groups, name or namespaces. The
//! attackers are in `identity/attackers.rs`.

pub(crate) mod attackers;

use std::process::Command;
use std::time::Duration;

use upshift_daemon::{Config, Daemon, Member, Rule, Subject, Subordinate};

use crate::assign::{assigned, rule};
use crate::attack::{MALLORY, TRUDY, deadline_after, open_config, open_daemon, start_child};
use crate::client::{census, processes};
use crate::process::{Process, ROLE, WAIT_LIMIT, elevated_threads, monotonic, wait_until};
use crate::{directory, permitted, serial_test, skipped, socket};

#[test]
fn a_process_that_has_changed_its_user_is_not_elevated() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let (path, _daemon) = open_daemon("user-changer");
    let program = directory().join("sleep");
    // A separate process copies the file, because this process could have forked a child that holds
    // the file open for writing, and then the kernel would not execute the file.
    let copied = Command::new("cp").arg("/bin/sleep").arg(&program).status();
    assert!(copied.unwrap().success());
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).unwrap();
    let _rival = start_child("idle-claimant", &path, TRUDY, (0, 63), &[]);
    let settings = |when: &str| {
        [
            ("USER", MALLORY.to_string()),
            ("CPU", "0".to_string()),
            ("LEVEL", "2".to_string()),
            ("WHEN", when.to_string()),
            ("PROGRAM", program.display().to_string()),
        ]
    };
    let mut early_changer = Process::start("user-changer", &path, &settings("before"));
    early_changer.number("pid ");
    if early_changer.line("changed ").unwrap() == "false" {
        return skipped("the set-user-id bit has no effect here");
    }
    assert_eq!(early_changer.line("verdict ").unwrap(), "Forbidden");
    let mut late_changer = Process::start("user-changer", &path, &settings("after"));
    let pid = late_changer.number("pid ") as i32;
    late_changer.line("elevated").unwrap();
    wait_until("the process executes another program", || {
        std::fs::read_to_string(format!("/proc/{pid}/comm"))
            .is_ok_and(|name| name.trim() == "sleep")
    });
    wait_until("the process is not elevated", || {
        elevated_threads(pid).is_empty()
    });
    assert!(census(&path)["ejected"].as_u64() > Some(0));
}

#[test]
fn a_user_in_hundreds_of_groups_is_denied_by_the_last_group() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("groups");
    let denied = 64_100;
    let _daemon = Daemon::start(Config {
        rules: vec![Rule {
            subject: Subject::Group(denied),
            ceiling: None,
        }],
        ..open_config("groups")
    })
    .unwrap();
    for (group, verdict) in [(denied, "Forbidden"), (denied + 1, "accepted")] {
        let settings = [("GROUP", group.to_string()), ("CPU", "0".to_string())];
        let mut group_member = Process::start("group-member", &path, &settings);
        assert_eq!(group_member.line("verdict ").unwrap(), verdict);
    }
}

/// First user id that [`MALLORY`] may use in a user namespace.
const SUBORDINATE: u32 = 165_536;

#[test]
fn subordinate_users_count_as_their_owner() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("guises");
    let config = |name: &str| Config {
        subordinate: vec![Subordinate {
            first: SUBORDINATE,
            count: 65_536,
            owner: MALLORY,
        }],
        ..open_config(name)
    };
    let daemon = Daemon::start(config("guises")).unwrap();
    let mut burner = start_child("burner", &path, SUBORDINATE + 7, (0, 40), &[]);
    burner.run_until(deadline_after(WAIT_LIMIT));
    let rivals = [
        start_child("idle-claimant", &path, MALLORY, (0, 63), &[]),
        start_child("idle-claimant", &path, SUBORDINATE + 8, (0, 62), &[]),
    ];
    let end = monotonic() + 300_000_000;
    while monotonic() < end {
        assert!(elevated_threads(burner.pid()).is_empty());
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(rivals);
    let other = start_child("idle-claimant", &path, TRUDY, (0, 63), &[]);
    wait_until("the client is elevated above another user", || {
        !elevated_threads(burner.pid()).is_empty()
    });
    drop((burner, other, daemon));
    // All subordinate users together may have the connections of one user.
    let mut config = config("places");
    config.limits.connections_per_user = 20;
    let path = socket("places");
    let _daemon = Daemon::start(config).unwrap();
    let users = [
        ("USERS", "100".to_string()),
        ("FIRST", SUBORDINATE.to_string()),
    ];
    let mut many_users = Process::start("many-users", &path, &users);
    assert_eq!(many_users.number("ready "), 100);
    wait_until("the daemon has answered all connections", || {
        processes(&path) == 0
    });
    many_users.send("go");
    assert_eq!(many_users.number("open "), 20);
}

#[test]
fn a_user_that_leaves_a_group_in_a_user_namespace_is_denied_by_the_group_of_its_account() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let denied = 64_100;
    let member = Member {
        user: MALLORY,
        group: denied,
    };
    for (members, expected) in [(vec![], "accepted"), (vec![member], "Forbidden")] {
        let path = socket("group-leaver");
        let _daemon = Daemon::start(Config {
            rules: vec![Rule {
                subject: Subject::Group(denied),
                ceiling: None,
            }],
            members,
            ..open_config("group-leaver")
        })
        .unwrap();
        let settings = [("GROUP", denied.to_string()), ("CPU", "0".to_string())];
        let mut group_leaver = Process::start("group-leaver", &path, &settings);
        let pid = group_leaver.number("namespace ");
        if pid == 0 {
            return skipped("ordinary users may not create user namespaces");
        }
        for (file, map) in [
            ("uid_map", format!("0 {MALLORY} 1\n")),
            ("gid_map", format!("0 {MALLORY} 1\n1 {SUBORDINATE} 10\n")),
        ] {
            std::fs::write(format!("/proc/{pid}/{file}"), map).unwrap();
        }
        group_leaver.send("go");
        assert_eq!(group_leaver.line("verdict ").unwrap(), expected);
    }
}

#[test]
fn a_name_that_is_not_utf8_hides_no_process_from_a_rule() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("unnamed");
    let unnamed = [("UNNAMED", "1".to_string())];
    let config = Config {
        assign: vec![rule(MALLORY, 40)],
        ..open_config("unnamed")
    };
    let _daemon = Daemon::start(config).unwrap();
    // The ceiling of a registered process is the level of its rule.
    let claimant = start_child("idle-claimant", &path, MALLORY, (0, 3), &unnamed);
    let comm = std::fs::read(format!("/proc/{}/comm", claimant.pid())).unwrap();
    assert_eq!(comm, b"\xff\xfe\n");
    let status = census(&path);
    let process = &status["processes"][0];
    assert_eq!(
        (&process["pid"], &process["ceiling"]),
        (&claimant.pid().into(), &40.into())
    );
    let program = start_child("spinners", &path, MALLORY, (0, 0), &unnamed);
    wait_until("the program is assigned", || {
        assigned(&census(&path), program.pid()).is_some()
    });
}

#[test]
fn a_process_in_a_pid_namespace_registers_its_own_threads_only() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let (path, _daemon) = open_daemon("pid-namespace-client");
    let _rival = start_child("idle-claimant", &path, TRUDY, (0, 63), &[]);
    let mut unshare = Command::new("unshare");
    unshare
        .args(["--pid", "--fork", "--mount-proc", "--kill-child"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "child::entry_point", "--nocapture", "--quiet"])
        .envs([("CPU", "0"), ("LEVEL", "3")])
        .env("USER", MALLORY.to_string())
        .env("SOCKET", &path)
        .env(ROLE, "pid-namespace-client");
    let Ok(output) = unshare.output() else {
        return skipped("unshare is not installed");
    };
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    if error.contains("unshare") {
        return skipped(error.trim());
    }
    assert!(out.contains("verdict accepted"), "{out}{error}");
    assert!(out.contains("elevated true"), "{out}");
    assert!(out.contains("foreign 0"), "{out}");
}

#[test]
fn the_root_user_of_a_user_namespace_has_the_ceiling_of_its_user() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("namespace");
    let config = Config {
        ceiling: 40,
        ..open_config("namespace")
    };
    let _daemon = Daemon::start(config).unwrap();
    let mut unshare = Command::new("unshare");
    unshare
        .args(["--user", "--map-root-user"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "child::entry_point", "--nocapture", "--quiet"])
        .envs([("CPU", "0"), ("LEVEL", "3")])
        .env("SOCKET", &path)
        .env(ROLE, "idle-claimant");
    use std::os::unix::process::CommandExt;
    unshare.uid(MALLORY).gid(MALLORY);
    unshare.stdin(std::process::Stdio::piped());
    unshare.stdout(std::process::Stdio::piped());
    unshare.stderr(std::process::Stdio::piped());
    let Ok(mut child) = unshare.spawn() else {
        return skipped("unshare is not installed");
    };
    let mut status = serde_json::Value::Null;
    let mut ended = false;
    wait_until("the process has registered or ended", || {
        status = census(&path);
        ended = child.try_wait().unwrap().is_some();
        ended || !status["processes"].as_array().unwrap().is_empty()
    });
    let _ = child.kill();
    let output = child.wait_with_output().unwrap();
    if ended {
        return skipped(String::from_utf8_lossy(&output.stderr).trim());
    }
    let process = &status["processes"][0];
    println!("uid {}, ceiling {}", process["uid"], process["ceiling"]);
    assert_eq!(process["uid"], MALLORY);
    assert_eq!(process["ceiling"], 40);
}

#[test]
fn a_connection_that_is_passed_on_registers_no_thread_of_the_receiver() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let (path, _daemon) = open_daemon("connection-passer");
    let settings = [("USER", MALLORY.to_string()), ("CPU", "0".to_string())];
    let mut connection_passer = Process::start("connection-passer", &path, &settings);
    let verdict = connection_passer.line("verdict ").unwrap();
    println!("verdict {verdict}");
    assert_ne!(verdict, "accepted");
}
