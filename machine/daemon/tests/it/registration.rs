//! Attacks on registration. Other users must still be able to register soon. The attackers are in
//! `registration/attackers.rs`.

pub(crate) mod attackers;

use std::time::{Duration, Instant};

use upshift_board::os;
use upshift_board::wire::Reason;
use upshift_daemon::{Config, Daemon, Limits, Rule, Subject};

use crate::attack::{
    ALICE, MALLORY, TRUDY, deadline_after, open_config, open_daemon, start_child, uses_at_most,
};
use crate::client::{connect, processes, register};
use crate::process::{Process, cpu_time_of_threads, monotonic, wait_until};
use crate::steady_state::scheduler_cpu_time;
use crate::{config, directory, permitted, serial_test, socket};

#[test]
fn a_flood_of_vcpus_is_refused_and_does_not_keep_the_scheduler_busy() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("vcpu-flood");
    let limits = Limits {
        registrations_per_second: 100_000,
        ..Limits::default()
    };
    let _daemon = Daemon::start(Config {
        limits,
        ..open_config("vcpu-flood")
    })
    .unwrap();
    let settings = [("USER", MALLORY.to_string()), ("CPU", "0".to_string())];
    let mut vcpu_flood = Process::start("vcpu-flood", &path, &settings);
    let count = vcpu_flood.number("ready ");
    assert!(
        (32..=64).contains(&count),
        "{count} vCPUs of one user on one CPU"
    );
    let (began, before) = (monotonic(), scheduler_cpu_time());
    vcpu_flood.run_until(deadline_after(Duration::from_millis(500)));
    vcpu_flood.line("done").unwrap();
    let (elapsed_ns, used_ns) = (monotonic() - began, scheduler_cpu_time() - before);
    println!("{count} vCPUs; the scheduler used {used_ns} of {elapsed_ns} ns");
    // The scheduler may use a fifth of the CPU, and one iteration may exceed this budget.
    assert!(
        used_ns * 100 < elapsed_ns * 30,
        "the scheduler used {used_ns} of {elapsed_ns} ns"
    );
}

#[test]
fn connections_of_a_thousand_users_do_not_keep_root_from_registering() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("many-users");
    let rules = vec![Rule {
        subject: Subject::User(ALICE),
        ceiling: Some(8),
    }];
    let config = Config {
        rules,
        ..open_config("many-users")
    };
    let _daemon = Daemon::start(config).unwrap();
    let users = [
        ("USERS", "1100".to_string()),
        ("FIRST", "70000".to_string()),
    ];
    let mut many_users = Process::start("many-users", &path, &users);
    assert_eq!(many_users.number("ready "), 1100);
    assert_eq!(processes(&path), 0);
    let root = crate::scripted_client::start_scripted_client(&path);
    // Users that a rule names can register, too.
    let named = start_child("idle-claimant", &path, ALICE, (0, 10), &[]);
    assert_eq!(processes(&path), 2);
    drop((root, named));
}

/// Lets two users attack in `role`, which prints its number of attacks after the word `count`.
/// Asserts that another user can register within three seconds.
fn assert_others_register_beside(role: &str, extra_settings: &[(&str, String)], count: &str) {
    let (path, _daemon) = open_daemon(role);
    let mut attackers =
        [MALLORY, TRUDY].map(|user| start_child(role, &path, user, (0, 0), extra_settings));
    for process in &mut attackers {
        process.run_until(deadline_after(Duration::from_millis(3000)));
    }
    std::thread::sleep(Duration::from_millis(300));
    let time_to_register = |_| {
        let began = Instant::now();
        drop(start_child("idle-claimant", &path, ALICE, (1, 10), &[]));
        began.elapsed()
    };
    let times: Vec<Duration> = (0..5).map(time_to_register).collect();
    let counts = attackers.map(|mut process| process.number(&format!("{count} ")));
    println!("{role}: {count} {counts:?} in 3 s; another user registers in {times:?}");
    assert!(
        times.iter().all(|time| *time < Duration::from_secs(3)),
        "another user registers in {times:?}"
    );
}

#[test]
fn a_flood_of_connections_keeps_no_client_from_registering() {
    let _guard = serial_test();
    if permitted() {
        assert_others_register_beside(
            "connection-flood",
            &[("THREADS", "8".to_string())],
            "connections",
        );
    }
}

#[test]
fn a_flood_of_updates_keeps_no_client_from_registering() {
    let _guard = serial_test();
    if permitted() {
        assert_others_register_beside("update-flood", &[("CONNECTIONS", "8".to_string())], "done");
    }
}

#[test]
fn a_flood_of_census_requests_keeps_no_client_from_registering() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let (path, _daemon) = open_daemon("askers");
    let registrations = [("REGISTRATIONS", "8".to_string())];
    let mut attackers = [MALLORY, TRUDY]
        .map(|user| start_child("census-flood", &path, user, (0, 40), &registrations));
    let time_to_register = || {
        let began = Instant::now();
        drop(start_child("idle-claimant", &path, ALICE, (1, 10), &[]));
        began.elapsed()
    };
    let before = time_to_register();
    for attacker in &mut attackers {
        attacker.run_until(deadline_after(Duration::from_millis(3000)));
    }
    std::thread::sleep(Duration::from_millis(300));
    let during: Vec<Duration> = (0..5).map(|_| time_to_register()).collect();
    let answered: Vec<u64> = attackers
        .iter_mut()
        .map(|process| process.number("answered "))
        .collect();
    println!("{before:?} alone, {during:?} beside attackers that had {answered:?} answers");
    // With more answers, the rate of censuses would not be limited.
    assert!(
        answered.iter().all(|count| (1..200).contains(count)),
        "numbers of answers: {answered:?}"
    );
}

#[test]
fn connections_that_use_all_descriptors_do_not_keep_root_from_registering() {
    let _guard = serial_test();
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
    let mut many_users = Process::start("many-users", &path, &users);
    assert_eq!(many_users.number("ready "), 200);
    assert_eq!(processes(&path), 0);
    let root = crate::scripted_client::start_scripted_client(&path);
    assert_eq!(processes(&path), 1);
    drop(root);
}

#[test]
fn ordinary_threads_free_the_memory_of_received_descriptors() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let (path, _daemon) = open_daemon("memory");
    let extra_settings = [("MB", "64".to_string()), ("CONNECTIONS", "1".to_string())];
    let mut attackers = [MALLORY, TRUDY]
        .map(|user| start_child("descriptor-sender", &path, user, (0, 0), &extra_settings));
    for process in &mut attackers {
        process.run_until(deadline_after(Duration::from_secs(1)));
    }
    let before = cpu_time_of_threads("upshift-daemon");
    let sent: Vec<u64> = attackers
        .iter_mut()
        .map(|process| process.number("sent "))
        .collect();
    let used = (cpu_time_of_threads("upshift-daemon") - before) / 1000;
    let readers_us = cpu_time_of_threads("upshift-reader") / 1000;
    println!("{sent:?} files; the control thread used {used}, the readers {readers_us} us");
    // The bound is low because freeing the memory of a file, which takes up to 8 ms, is left to
    // ordinary threads.
    assert!(uses_at_most(4, used, 1_000_000));
}

#[test]
fn hundreds_of_descriptors_in_each_message_keep_no_client_from_registering() {
    let _guard = serial_test();
    if permitted() {
        assert_others_register_beside(
            "descriptor-sender",
            &[("MB", "0".to_string()), ("CONNECTIONS", "8".to_string())],
            "sent",
        );
    }
}

#[test]
fn a_flood_of_registrations_is_refused_and_delays_no_census() {
    let _guard = serial_test();
    let path = socket("rate");
    // The limit is low enough to be exceeded on a slow machine.
    let limits = Limits {
        registrations_per_second: 5,
        ..Limits::default()
    };
    let _daemon = Daemon::start(Config {
        limits,
        ..config("rate")
    })
    .unwrap();
    let (start, mut accepted, mut refused) = (Instant::now(), 0, 0);
    let (page, _view) = os::local_page().unwrap();
    let mut max_census_time = Duration::ZERO;
    for round in 0..1000u32 {
        match register(&connect(&path), &[0], &[], &page) {
            Ok(_) => accepted += 1,
            Err(Reason::Limit) => refused += 1,
            Err(other) => panic!("{other:?}"),
        }
        if round % 50 == 0 {
            let requested = Instant::now();
            upshift_board::client::census(&path).unwrap();
            max_census_time = max_census_time.max(requested.elapsed());
        }
    }
    println!(
        "{accepted} accepted, {refused} refused in {:?}; a census took at most {max_census_time:?}",
        start.elapsed()
    );
    assert!(refused > 0, "the rate of registrations is not limited");
    wait_until("no process is registered", || processes(&path) == 0);
}
