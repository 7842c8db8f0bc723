//! Attackers that are more than one user, or ask for more than one answer.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::net::RecvFlags;
use upshift_board::os;
use upshift_board::wire;
use upshift_daemon::{Config, Daemon, Member, Rule, Subject, Subordinate};
use upshift_elevate::current_tid;

use crate::assign::{assigned, rule};
use crate::attacks::{ALICE, Fifth, MALLORY, TRUDY, from_now, gets_a_fifth, open_config, villain};
use crate::cgroup::Cgroup;
use crate::child::{number, pin, setting, wait_for_go};
use crate::hostile::{census, processes};
use crate::process::{PATIENCE, Process, elevated_threads, monotonic, until};
use crate::protocol::connect;
use crate::villain::{Foothold, sleepers_behind, verdict};
use crate::{directory, permitted, skipped, socket, turn};

/// The first of those that `MALLORY` may be in a user namespace.
const GUISES: u32 = 165_536;

#[test]
fn subordinate_users_are_no_crowd() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("guises");
    let config = |name: &str| Config {
        subordinate: vec![Subordinate {
            first: GUISES,
            count: 65_536,
            owner: MALLORY,
        }],
        ..open_config(name)
    };
    let daemon = Daemon::start(config("guises")).unwrap();
    let mut burner = villain("burner", &path, GUISES + 7, (0, 40), &[]);
    burner.go_until(from_now(PATIENCE));
    let rivals = [
        villain("ghost", &path, MALLORY, (0, 63), &[]),
        villain("ghost", &path, GUISES + 8, (0, 62), &[]),
    ];
    let end = monotonic() + 300_000_000;
    while monotonic() < end {
        assert!(elevated_threads(burner.pid()).is_empty());
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(rivals);
    let other = villain("ghost", &path, TRUDY, (0, 63), &[]);
    until("it is elevated against another user", || {
        !elevated_threads(burner.pid()).is_empty()
    });
    drop((burner, other, daemon));
    // Nor do they take the places of others: all of them have those of one.
    let mut config = config("places");
    config.limits.connections_per_user = 20;
    let path = socket("places");
    let _daemon = Daemon::start(config).unwrap();
    let users = [("USERS", "100".to_string()), ("FIRST", GUISES.to_string())];
    let mut legion = Process::start("legion", &path, &users);
    assert_eq!(legion.number("ready "), 100);
    until("all are answered", || processes(&path) == 0);
    legion.say("go");
    assert_eq!(legion.number("open "), 20);
}

/// A process of `MALLORY` in group `GROUP` leaves all groups, in a user namespace that its parent sets up as `newgidmap` does, and tries to
/// register.
pub(crate) fn leaver() {
    let group = number("GROUP") as u32;
    // SAFETY: plain calls with live arguments. The child has one thread, as `unshare` requires.
    unsafe {
        let child = libc::fork();
        if child != 0 {
            libc::waitpid(child, std::ptr::null_mut(), 0);
            return;
        }
        let failed = libc::setgroups(1, &raw const group) != 0
            || libc::setresgid(MALLORY, MALLORY, MALLORY) != 0
            || libc::setresuid(MALLORY, MALLORY, MALLORY) != 0;
        assert!(!failed);
        let alone = libc::unshare(libc::CLONE_NEWUSER) == 0;
        println!("namespace {}", if alone { libc::getpid() } else { 0 });
        wait_for_go();
        assert_eq!(libc::setgroups(0, std::ptr::null()), 0);
    }
    pin(number("CPU") as usize);
    let connection = connect(&PathBuf::from(setting("SOCKET")));
    println!("verdict {}", verdict(&connection, current_tid()));
    wait_for_go();
    std::process::exit(0);
}

#[test]
fn who_leaves_a_group_in_a_user_namespace_is_denied_by_its_account() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let denied = 64_100;
    let member = Member {
        user: MALLORY,
        group: denied,
    };
    for (members, says) in [(vec![], "in"), (vec![member], "Forbidden")] {
        let path = socket("leaver");
        let _daemon = Daemon::start(Config {
            rules: vec![Rule {
                subject: Subject::Group(denied),
                ceiling: None,
            }],
            members,
            ..open_config("leaver")
        })
        .unwrap();
        let settings = [("GROUP", denied.to_string()), ("CPU", "0".to_string())];
        let mut leaver = Process::start("leaver", &path, &settings);
        let pid = leaver.number("namespace ");
        if pid == 0 {
            return skipped("ordinary users may not make user namespaces");
        }
        for (file, map) in [
            ("uid_map", format!("0 {MALLORY} 1\n")),
            ("gid_map", format!("0 {MALLORY} 1\n1 {GUISES} 10\n")),
        ] {
            std::fs::write(format!("/proc/{pid}/{file}"), map).unwrap();
        }
        leaver.say("go");
        assert_eq!(leaver.line("verdict ").unwrap(), says);
    }
}

#[test]
fn a_name_that_is_no_text_hides_nobody_from_a_rule() {
    let _turn = turn();
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
    // At most the level of the rule.
    let ghost = villain("ghost", &path, MALLORY, (0, 3), &unnamed);
    let comm = std::fs::read(format!("/proc/{}/comm", ghost.pid())).unwrap();
    assert_eq!(comm, b"\xff\xfe\n");
    let seen = census(&path);
    let process = &seen["processes"][0];
    assert_eq!(
        (&process["pid"], &process["ceiling"]),
        (&ghost.pid().into(), &40.into())
    );
    let program = villain("spinners", &path, MALLORY, (0, 0), &unnamed);
    until("it is assigned", || {
        assigned(&census(&path), program.pid()).is_some()
    });
}

#[test]
fn a_cgroup_whose_name_is_no_text_does_not_hide_the_quota_above_it() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("nameless");
    let _daemon = Daemon::start(open_config("nameless")).unwrap();
    let Some(fifth) = Fifth::new() else {
        return skipped("no cgroup with a CPU quota can be made");
    };
    // As the user that the cgroup is delegated to would make one.
    let name = std::ffi::OsStr::from_bytes(b"\xff");
    let Some(below) = Cgroup::below(fifth.path(), name) else {
        return skipped("no cgroup can be made below");
    };
    let _ = std::fs::write(below.path().join("cpu.rt_runtime_us"), "400000");
    let burner = villain("burner", &path, MALLORY, (0, 2), &[]);
    if !below.take(&burner) {
        return skipped("a process cannot be moved to a cgroup");
    }
    let _rival = villain("ghost", &path, TRUDY, (0, 63), &[]);
    std::thread::sleep(Duration::from_millis(1100));
    gets_a_fifth(burner);
}

/// Registers `FOOTHOLDS` times with 64 threads each, and asks for censuses over 64 connections, without end.
pub(crate) fn asker() {
    pin(number("CPU") as usize);
    let gate = std::sync::Mutex::new(());
    let closed = gate.lock().unwrap();
    std::thread::scope(|scope| {
        let tids = sleepers_behind(&gate, scope, number("FOOTHOLDS") * 64);
        let _footholds: Vec<Foothold> = tids.chunks(64).map(Foothold::new).collect();
        let path = PathBuf::from(setting("SOCKET"));
        let connections: Vec<OwnedFd> = (0..64).map(|_| connect(&path)).collect();
        println!("ready");
        let deadline = wait_for_go();
        let mut message = wire::buffer();
        let length = wire::encode_census(&mut message);
        let (mut asked, mut answered, mut full) = (0u64, 0u64, 0u64);
        while monotonic() < deadline {
            for connection in &connections {
                let mut answer = wire::buffer();
                while os::receive(connection.as_fd(), &mut answer, RecvFlags::DONTWAIT).is_ok_and(
                    |(length, files)| {
                        full += u64::from(!files.is_empty());
                        length > 0
                    },
                ) {
                    answered += 1;
                }
                if asked < answered + 4 * connections.len() as u64 {
                    asked +=
                        u64::from(os::send(connection.as_fd(), &message[..length], &[]).is_ok());
                }
            }
        }
        println!("answered {full}");
        drop(closed);
    });
}

#[test]
fn who_asks_for_censuses_without_end_keeps_nobody_from_registering() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("askers");
    let _daemon = Daemon::start(open_config("askers")).unwrap();
    let footholds = [("FOOTHOLDS", "8".to_string())];
    let mut askers =
        [MALLORY, TRUDY].map(|user| villain("asker", &path, user, (0, 40), &footholds));
    let took = || {
        let began = Instant::now();
        drop(villain("ghost", &path, ALICE, (1, 10), &[]));
        began.elapsed()
    };
    let before = took();
    for asker in &mut askers {
        asker.go_until(from_now(Duration::from_millis(3000)));
    }
    std::thread::sleep(Duration::from_millis(300));
    let during: Vec<Duration> = (0..5).map(|_| took()).collect();
    let answered: Vec<u64> = askers.iter_mut().map(|it| it.number("answered ")).collect();
    println!("{before:?} alone, {during:?} beside askers that had {answered:?} answers");
    // Before: each connection had one of four in each round, of some ms each, and registering took 1.5 s.
    assert!(
        answered.iter().all(|it| (1..200).contains(it)),
        "{answered:?}"
    );
}

#[test]
fn descriptors_that_one_user_takes_do_not_keep_others_out() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("files");
    let settings = [
        ("CONFIG", "mode = \"0666\"".to_string()),
        ("FILES", "160".to_string()),
        ("ERRORS", directory().join("errors").display().to_string()),
    ];
    let mut daemon = Process::start("daemon", &path, &settings);
    daemon.line("ready").unwrap();
    let users = [("USERS", "200".to_string()), ("FIRST", "70000".to_string())];
    let mut legion = Process::start("legion", &path, &users);
    assert_eq!(legion.number("ready "), 200);
    assert_eq!(processes(&path), 0);
    let root = crate::hostile::puppet(&path);
    assert_eq!(processes(&path), 1);
    drop(root);
}
