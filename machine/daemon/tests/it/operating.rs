//! Operation: another configuration, metrics, a restart.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use upshift_daemon::{Config, Daemon, Rule, Subject};

use crate::attack::{ALICE, MALLORY, TRUDY, from_now, open_config, open_daemon, start_child};
use crate::client::{census, processes};
use crate::process::{PATIENCE, Process, elevated_threads, until};
use crate::puppet::start_puppet;
use crate::{directory, permitted, socket, turn};

#[test]
fn another_configuration_applies_to_clients_that_are_there_and_loses_none() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let (path, daemon) = open_daemon("reload");
    let mut rival = start_puppet(&path);
    let ghost = start_child("ghost", &path, ALICE, (0, 3), &[]);
    let denied = start_child("ghost", &path, MALLORY, (0, 63), &[]);
    let level = |pid: i32, field: &str| {
        let seen = census(&path);
        let all = seen["processes"].as_array().unwrap();
        let found = all.iter().find(|process| process["pid"] == pid);
        found.map(|process| process[field].clone())
    };
    assert_eq!(level(ghost.pid(), "ceiling"), Some(0.into()));
    let rule = |user, ceiling| Rule {
        subject: Subject::User(user),
        ceiling,
    };
    daemon.reload(Config {
        rules: vec![rule(ALICE, Some(20)), rule(MALLORY, None)],
        // Stays as it was: it takes another daemon.
        cooperative: true,
        ..open_config("reload")
    });
    until("the ceiling is another one", || {
        level(ghost.pid(), "ceiling") == Some(20.into())
    });
    assert_eq!(level(denied.pid(), "pid"), None);
    assert_eq!(processes(&path), 2);
    assert_eq!(census(&path)["enforcing"], true);
    // Its claim counts as the ceiling.
    rival.obey("level 10");
    assert_eq!(rival.obey("outranked 10"), "false");
    // Programs get a level, too, and lose it again.
    let program = Process::start(
        "gap",
        &path,
        &[("USER", TRUDY.to_string()), ("CPU", "0".into())],
    );
    let mut config = open_config("reload");
    config.assign = vec![crate::assign::rule(TRUDY, 8)];
    daemon.reload(config);
    until("the program is assigned", || {
        !elevated_threads(program.pid()).is_empty()
    });
    daemon.reload(open_config("reload"));
    until("it is not any more", || {
        elevated_threads(program.pid()).is_empty()
    });
    assert_eq!(processes(&path), 2);
}

#[test]
fn each_ejection_is_a_line_with_its_reason() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("lines");
    let errors = directory().join("errors");
    let open = [
        ("CONFIG", "mode = \"0666\"".to_string()),
        ("ERRORS", errors.display().to_string()),
    ];
    let mut daemon = Process::start("daemon", &path, &open);
    daemon.line("ready").unwrap();
    let _rival = start_child("ghost", &path, TRUDY, (0, 63), &[]);
    let mut wanderers = [0, 1].map(|_| start_child("burner", &path, MALLORY, (0, 40), &[]));
    for process in &mut wanderers {
        process.go_until(from_now(PATIENCE));
    }
    for process in &wanderers {
        until("it is elevated", || {
            !elevated_threads(process.pid()).is_empty()
        });
        for tid in elevated_threads(process.pid()) {
            use upshift_elevate::sys::{CpuSet, Kernel, Sys};
            Kernel.sched_setaffinity(tid, &CpuSet::all()).unwrap();
        }
    }
    until("both are reported", || {
        let text = std::fs::read_to_string(&errors).unwrap_or_default();
        let line = |wanderer: &Process| {
            format!(
                "of process {} is ejected: it has left CPU 0",
                wanderer.pid()
            )
        };
        wanderers
            .iter()
            .all(|wanderer| text.contains(&line(wanderer)))
    });
}

#[test]
fn a_socket_where_another_user_may_write_is_refused() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let home = directory().join("home");
    std::fs::create_dir_all(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(ALICE), None).unwrap();
    let config = Config {
        socket: home.join("d.sock"),
        ..Config::default()
    };
    let remarks = config.remarks().join("\n");
    assert!(remarks.contains("no daemon will start"), "{remarks}");
    let error = Daemon::start(config).unwrap_err().to_string();
    assert!(
        error.contains(&format!("home belongs to user {ALICE}")),
        "{error}"
    );
    assert!(std::fs::read_dir(&home).unwrap().next().is_none());
}

#[test]
fn a_reload_touches_no_file_that_has_replaced_the_socket() {
    let _turn = turn();
    let (path, moved) = (socket("replaced"), directory().join("moved"));
    let secret = directory().join("secret");
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().mode() & 0o777;
    let config = |mode| Config {
        cooperative: true,
        mode,
        ..crate::config("replaced")
    };
    let daemon = Daemon::start(config(0o600)).unwrap();
    std::fs::write(&secret, "secret").unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::rename(&path, &moved).unwrap();
    std::os::unix::fs::symlink(&secret, &path).unwrap();
    daemon.reload(config(0o666));
    until("the socket has its mode", || mode(&moved) == 0o666);
    assert_eq!(mode(&secret), 0o600);
    daemon.stop();
    assert!(
        std::fs::symlink_metadata(&path).is_ok(),
        "it is not the daemon's"
    );
}

#[test]
fn a_nice_value_that_an_administrator_sets_meanwhile_stays() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("renice");
    let settings = [("USER", ALICE.to_string()), ("CPU", "0".into())];
    let mut program = Process::start("gap", &path, &settings);
    program.line("ready").unwrap();
    let mut config = open_config("renice");
    config.assign = vec![crate::assign::rule(ALICE, 8)];
    let daemon = Daemon::start(config).unwrap();
    until("it is elevated", || {
        !elevated_threads(program.pid()).is_empty()
    });
    // SAFETY: integers only.
    let done = unsafe { libc::setpriority(libc::PRIO_PROCESS, program.pid() as u32, 19) };
    assert_eq!(done, 0);
    daemon.stop();
    let policy = upshift_elevate::Policy::of(&upshift_elevate::sys::Kernel, program.pid()).unwrap();
    assert_eq!(policy.class(), upshift_elevate::Class::Other { nice: 19 });
}
