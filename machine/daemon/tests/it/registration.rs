//! Attacks on registration: other users still register, and soon. The attackers are in
//! `registration/attackers.rs`.

pub(crate) mod attackers;

use std::time::{Duration, Instant};

use upshift_board::os;
use upshift_board::wire::Reason;
use upshift_daemon::{Config, Daemon, Limits, Rule, Subject};

use crate::attack::{
    ALICE, MALLORY, TRUDY, from_now, open_config, open_daemon, start_child, takes_at_most,
};
use crate::client::{connect, processes, register};
use crate::process::{Process, monotonic, until, used_by_threads};
use crate::quiet::used_by_the_scheduler;
use crate::{config, directory, permitted, socket, turn};

#[test]
fn a_crowd_of_vcpus_neither_gets_in_nor_keeps_the_scheduler_busy() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("crowd");
    let limits = Limits {
        registrations_per_second: 100_000,
        ..Limits::default()
    };
    let _daemon = Daemon::start(Config {
        limits,
        ..open_config("crowd")
    })
    .unwrap();
    let settings = [("USER", MALLORY.to_string()), ("CPU", "0".to_string())];
    let mut crowd = Process::start("crowd", &path, &settings);
    let count = crowd.number("ready ");
    assert!(
        (32..=64).contains(&count),
        "{count} vCPUs of one user on one CPU"
    );
    let (began, before) = (monotonic(), used_by_the_scheduler());
    crowd.go_until(from_now(Duration::from_millis(500)));
    crowd.line("done").unwrap();
    let (time, used) = (monotonic() - began, used_by_the_scheduler() - before);
    println!("{count} vCPUs; the scheduler used {used} of {time} ns");
    // A fifth, and the excess of one turn.
    assert!(used * 100 < time * 30, "{used} of {time} ns");
}

#[test]
fn thousands_of_users_do_not_keep_root_out() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("legion");
    let rules = vec![Rule {
        subject: Subject::User(ALICE),
        ceiling: Some(8),
    }];
    let config = Config {
        rules,
        ..open_config("legion")
    };
    let _daemon = Daemon::start(config).unwrap();
    let users = [
        ("USERS", "1100".to_string()),
        ("FIRST", "70000".to_string()),
    ];
    let mut legion = Process::start("legion", &path, &users);
    assert_eq!(legion.number("ready "), 1100);
    assert_eq!(processes(&path), 0);
    let root = crate::puppet::start_puppet(&path);
    // Nor do they keep out users whom a rule names.
    let named = start_child("ghost", &path, ALICE, (0, 10), &[]);
    assert_eq!(processes(&path), 2);
    drop((root, named));
}

/// Lets two users attack as `role`, which prints the number of attacks as `count`; another user
/// registers within three seconds each time.
fn others_register_beside(role: &str, more: &[(&str, String)], count: &str) {
    let (path, _daemon) = open_daemon(role);
    let mut attackers = [MALLORY, TRUDY].map(|user| start_child(role, &path, user, (0, 0), more));
    for process in &mut attackers {
        process.go_until(from_now(Duration::from_millis(3000)));
    }
    std::thread::sleep(Duration::from_millis(300));
    let once = |_| {
        let began = Instant::now();
        drop(start_child("ghost", &path, ALICE, (1, 10), &[]));
        began.elapsed()
    };
    let took: Vec<Duration> = (0..5).map(once).collect();
    let counts = attackers.map(|mut process| process.number(&format!("{count} ")));
    println!("{role}: {count} {counts:?} in 3 s; another user registers in {took:?}");
    assert!(
        took.iter().all(|took| *took < Duration::from_secs(3)),
        "{took:?}"
    );
}

#[test]
fn a_client_that_connects_without_end_keeps_no_client_from_registering() {
    let _turn = turn();
    if permitted() {
        others_register_beside("knocker", &[("THREADS", "8".to_string())], "knocks");
    }
}

#[test]
fn a_client_that_adds_and_removes_threads_without_end_keeps_no_client_from_registering() {
    let _turn = turn();
    if permitted() {
        others_register_beside("updater", &[("CONNECTIONS", "8".to_string())], "done");
    }
}

#[test]
fn a_client_that_asks_for_censuses_without_end_keeps_no_client_from_registering() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let (path, _daemon) = open_daemon("askers");
    let registrations = [("REGISTRATIONS", "8".to_string())];
    let mut askers =
        [MALLORY, TRUDY].map(|user| start_child("asker", &path, user, (0, 40), &registrations));
    let took = || {
        let began = Instant::now();
        drop(start_child("ghost", &path, ALICE, (1, 10), &[]));
        began.elapsed()
    };
    let before = took();
    for asker in &mut askers {
        asker.go_until(from_now(Duration::from_millis(3000)));
    }
    std::thread::sleep(Duration::from_millis(300));
    let during: Vec<Duration> = (0..5).map(|_| took()).collect();
    let answered: Vec<u64> = askers
        .iter_mut()
        .map(|process| process.number("answered "))
        .collect();
    println!("{before:?} alone, {during:?} beside askers that had {answered:?} answers");
    // More answers would mean that the rate of censuses is not limited.
    assert!(
        answered.iter().all(|count| (1..200).contains(count)),
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
    let root = crate::puppet::start_puppet(&path);
    assert_eq!(processes(&path), 1);
    drop(root);
}

#[test]
fn memory_that_is_sent_is_given_back_by_ordinary_threads() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let (path, _daemon) = open_daemon("memory");
    let more = [("MB", "64".to_string()), ("CONNECTIONS", "1".to_string())];
    let mut all = [MALLORY, TRUDY].map(|user| start_child("burdener", &path, user, (0, 0), &more));
    for process in &mut all {
        process.go_until(from_now(Duration::from_secs(1)));
    }
    let before = used_by_threads("upshift-daemon");
    let sent: Vec<u64> = all
        .iter_mut()
        .map(|process| process.number("sent "))
        .collect();
    let used = (used_by_threads("upshift-daemon") - before) / 1000;
    let closing = used_by_threads("upshift-reader") / 1000;
    println!("{sent:?} files; the control thread used {used} us, those that close {closing}");
    // Freeing the memory of a file takes up to 8 ms, which ordinary threads spend.
    assert!(takes_at_most(4, used, 1_000_000));
}

#[test]
fn hundreds_of_descriptors_in_each_message_keep_no_client_from_registering() {
    let _turn = turn();
    if permitted() {
        others_register_beside(
            "burdener",
            &[("MB", "0".to_string()), ("CONNECTIONS", "8".to_string())],
            "sent",
        );
    }
}

#[test]
fn a_thousand_registrations_a_second_do_not_keep_others_out() {
    let _turn = turn();
    let path = socket("rate");
    // The limit is so low that a slow machine exceeds it, too.
    let limits = Limits {
        registrations_per_second: 5,
        ..Limits::default()
    };
    let _daemon = Daemon::start(Config {
        limits,
        ..config("rate")
    })
    .unwrap();
    let (start, mut welcome, mut refused) = (Instant::now(), 0, 0);
    let (page, _view) = os::local_page().unwrap();
    let mut slowest = Duration::ZERO;
    for round in 0..1000u32 {
        match register(&connect(&path), &[0], &[], &page) {
            Ok(_) => welcome += 1,
            Err(Reason::Limit) => refused += 1,
            Err(other) => panic!("{other:?}"),
        }
        if round % 50 == 0 {
            let asked = Instant::now();
            upshift_board::client::census(&path).unwrap();
            slowest = slowest.max(asked.elapsed());
        }
    }
    println!(
        "{welcome} let in, {refused} refused in {:?}; census at most {slowest:?}",
        start.elapsed()
    );
    assert!(refused > 0, "the rate is limited");
    until("nobody is registered", || processes(&path) == 0);
}
