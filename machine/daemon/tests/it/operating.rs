//! Tests of administration: reloads, log lines, the socket's permissions, and nice values.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use upshift_daemon::{Config, Daemon, Rule, Subject};

use crate::attack::{ALICE, MALLORY, TRUDY, deadline_after, open_config, open_daemon, start_child};
use crate::client::{census, processes};
use crate::process::{Process, WAIT_LIMIT, elevated_threads, wait_until};
use crate::scripted_client::start_scripted_client;
use crate::{directory, permitted, serial_test, socket};

#[test]
fn a_reload_applies_to_registered_clients_and_keeps_them() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let (path, daemon) = open_daemon("reload");
    let mut rival = start_scripted_client(&path);
    let claimant = start_child("idle-claimant", &path, ALICE, (0, 3), &[]);
    let denied = start_child("idle-claimant", &path, MALLORY, (0, 63), &[]);
    let field_of = |pid: i32, field: &str| {
        let status = census(&path);
        let all = status["processes"].as_array().unwrap();
        let found = all.iter().find(|process| process["pid"] == pid);
        found.map(|process| process[field].clone())
    };
    assert_eq!(field_of(claimant.pid(), "ceiling"), Some(0.into()));
    let rule = |user, ceiling| Rule {
        subject: Subject::User(user),
        ceiling,
    };
    daemon.reload(Config {
        rules: vec![rule(ALICE, Some(20)), rule(MALLORY, None)],
        // This has no effect, because a change of `cooperative` requires a restart.
        cooperative: true,
        ..open_config("reload")
    });
    wait_until("the new ceiling applies", || {
        field_of(claimant.pid(), "ceiling") == Some(20.into())
    });
    assert_eq!(field_of(denied.pid(), "pid"), None);
    assert_eq!(processes(&path), 2);
    assert_eq!(census(&path)["enforcing"], true);
    // The claim of level 3 counts as level 20, the new ceiling of its client.
    rival.execute("level 10");
    assert_eq!(rival.execute("outranked 10"), "false");
    // A program is assigned after a reload, and restored after another.
    let program = Process::start(
        "gap-meter",
        &path,
        &[("USER", TRUDY.to_string()), ("CPU", "0".into())],
    );
    let mut config = open_config("reload");
    config.assign = vec![crate::assign::rule(TRUDY, 8)];
    daemon.reload(config);
    wait_until("the program is assigned", || {
        !elevated_threads(program.pid()).is_empty()
    });
    daemon.reload(open_config("reload"));
    wait_until("the program is restored", || {
        elevated_threads(program.pid()).is_empty()
    });
    assert_eq!(processes(&path), 2);
}

#[test]
fn each_ejection_is_logged_with_its_reason() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("lines");
    let errors = directory().join("errors");
    let settings = [
        ("CONFIG", "mode = \"0666\"".to_string()),
        ("ERRORS", errors.display().to_string()),
    ];
    let mut daemon = Process::start("daemon", &path, &settings);
    daemon.line("ready").unwrap();
    let _rival = start_child("idle-claimant", &path, TRUDY, (0, 63), &[]);
    let mut clients = [0, 1].map(|_| start_child("burner", &path, MALLORY, (0, 40), &[]));
    for process in &mut clients {
        process.run_until(deadline_after(WAIT_LIMIT));
    }
    for process in &clients {
        wait_until("the client is elevated", || {
            !elevated_threads(process.pid()).is_empty()
        });
        for tid in elevated_threads(process.pid()) {
            use upshift_elevate::sys::{CpuSet, Kernel, Sys};
            Kernel.sched_setaffinity(tid, &CpuSet::all()).unwrap();
        }
    }
    wait_until("both ejections are logged", || {
        let text = std::fs::read_to_string(&errors).unwrap_or_default();
        let line =
            |client: &Process| format!("of process {} is ejected: it has left CPU 0", client.pid());
        clients.iter().all(|client| text.contains(&line(client)))
    });
}

#[test]
fn a_socket_in_a_directory_of_another_user_is_refused() {
    let _guard = serial_test();
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
fn a_reload_does_not_change_a_file_that_has_replaced_the_socket() {
    let _guard = serial_test();
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
    wait_until("the socket has the new mode", || mode(&moved) == 0o666);
    assert_eq!(mode(&secret), 0o600);
    daemon.stop();
    assert!(
        std::fs::symlink_metadata(&path).is_ok(),
        "the daemon has removed a file of another program"
    );
}

#[test]
fn a_nice_value_that_an_administrator_sets_is_kept() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("renice");
    let settings = [("USER", ALICE.to_string()), ("CPU", "0".into())];
    let mut program = Process::start("gap-meter", &path, &settings);
    program.line("ready").unwrap();
    let mut config = open_config("renice");
    config.assign = vec![crate::assign::rule(ALICE, 8)];
    let daemon = Daemon::start(config).unwrap();
    wait_until("the program is elevated", || {
        !elevated_threads(program.pid()).is_empty()
    });
    // SAFETY: the call has only integer arguments.
    let result = unsafe { libc::setpriority(libc::PRIO_PROCESS, program.pid() as u32, 19) };
    assert_eq!(result, 0);
    daemon.stop();
    let policy = upshift_elevate::Policy::of(&upshift_elevate::sys::Kernel, program.pid()).unwrap();
    assert_eq!(policy.class(), upshift_elevate::Class::Other { nice: 19 });
}
