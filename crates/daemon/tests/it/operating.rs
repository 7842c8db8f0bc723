//! What an operator does: another configuration, figures, a restart.

use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use upshift_daemon::{Config, Daemon, Rule, Subject};

use crate::attacks::{ALICE, MALLORY, TRUDY, from_now, open_config, villain};
use crate::hostile::{census, processes, puppet};
use crate::process::{PATIENCE, Process, elevated_threads, until};
use crate::{directory, permitted, socket, turn};

#[test]
fn another_configuration_applies_to_who_is_there_and_loses_nobody() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("reload");
    let daemon = Daemon::start(open_config("reload")).unwrap();
    let mut rival = puppet(&path);
    let ghost = villain("ghost", &path, ALICE, (0, 3), &[]);
    let denied = villain("ghost", &path, MALLORY, (0, 63), &[]);
    let level = |pid: i32, field: &str| {
        let seen = census(&path);
        let all = seen["processes"].as_array().unwrap();
        let found = all.iter().find(|it| it["pid"] == pid);
        found.map(|it| it[field].clone())
    };
    assert_eq!(level(ghost.pid(), "ceiling"), Some(0.into()));
    let rule = |user, ceiling| Rule {
        subject: Subject::User(user),
        ceiling,
    };
    daemon.reload(Config {
        rules: vec![rule(ALICE, Some(20)), rule(MALLORY, None)],
        // Stays as it was: it needs another daemon.
        cooperative: true,
        ..open_config("reload")
    });
    until("the ceiling is another one", || {
        level(ghost.pid(), "ceiling") == Some(20.into())
    });
    assert_eq!(level(denied.pid(), "pid"), None);
    assert_eq!(processes(&path), 2);
    assert_eq!(census(&path)["enforcing"], true);
    // What it claims counts as that.
    rival.obey("level 10");
    assert_eq!(rival.obey("outranked 10"), "false");
    // Programs, too, and again without.
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
fn figures_are_there_for_prometheus_and_slow_readers_hold_up_nobody() {
    let _turn = turn();
    let path = socket("metrics");
    let place = directory().join("metrics");
    let config = Config {
        metrics: Some(place.display().to_string()),
        ..open_config("metrics")
    };
    let daemon = Daemon::start(config).unwrap();
    let client = puppet(&path);
    until("it listens", || place.exists());
    let _slow = UnixStream::connect(&place).unwrap();
    // One that always has a little more to ask.
    let mut dripping = UnixStream::connect(&place).unwrap();
    let dripping = std::thread::spawn(move || {
        let began = Instant::now();
        while began.elapsed() < PATIENCE * 2 && dripping.write_all(b"x").is_ok() {
            std::thread::sleep(Duration::from_millis(100));
        }
        began.elapsed()
    });
    let mut stream = UnixStream::connect(&place).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert!(answer.contains("\nupshift_processes 1\n"), "{answer}");
    let held = dripping.join().unwrap();
    assert!(held < PATIENCE, "{held:?}");
    drop((client, daemon));
    let left: Vec<_> = std::fs::read_dir(directory()).unwrap().collect();
    assert!(left.is_empty(), "a clean end leaves {left:?}");
}

#[test]
fn who_asks_for_figures_without_end_has_the_daemon_asked_ten_times_a_second() {
    let _turn = turn();
    let place = directory().join("often");
    let config = Config {
        metrics: Some(place.display().to_string()),
        ..open_config("often")
    };
    let _daemon = Daemon::start(config).unwrap();
    until("it listens", || place.exists());
    let began = Instant::now();
    let mut uptimes = std::collections::HashSet::new();
    for _ in 0..400 {
        let mut stream = UnixStream::connect(&place).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let mut lines = answer.lines();
        uptimes.extend(lines.find_map(|it| {
            it.strip_prefix("upshift_uptime_seconds ")
                .map(str::to_owned)
        }));
        std::thread::sleep(Duration::from_millis(1));
    }
    let most = began.elapsed().as_millis() / 100 + 2;
    println!("{} answers in {:?}", uptimes.len(), began.elapsed());
    assert!(
        !uptimes.is_empty() && uptimes.len() as u128 <= most,
        "{}",
        uptimes.len()
    );
}

#[test]
fn a_daemon_that_ends_leaves_the_socket_of_another_ones_figures() {
    let _turn = turn();
    let place = directory().join("figures");
    let config = |name: &str| Config {
        metrics: Some(place.display().to_string()),
        ..open_config(name)
    };
    let first = Daemon::start(config("first")).unwrap();
    until("it listens", || place.exists());
    let made = |path: &std::path::Path| std::fs::metadata(path).map(|it| it.ino());
    let before = made(&place).unwrap();
    let second = Daemon::start(config("second")).unwrap();
    until("the other one listens", || {
        made(&place).is_ok_and(|it| it != before)
    });
    drop(first);
    assert!(UnixStream::connect(&place).is_ok());
    drop(second);
    assert!(!place.exists());
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
    let _rival = villain("ghost", &path, TRUDY, (0, 63), &[]);
    let mut wanderers = [0, 1].map(|_| villain("burner", &path, MALLORY, (0, 40), &[]));
    for it in &mut wanderers {
        it.go_until(from_now(PATIENCE));
    }
    for it in &wanderers {
        until("it is elevated", || !elevated_threads(it.pid()).is_empty());
        for tid in elevated_threads(it.pid()) {
            use upshift_elevate::sys::{CpuSet, Kernel, Sys};
            Kernel.sched_setaffinity(tid, &CpuSet::all()).unwrap();
        }
    }
    until("both are told of", || {
        let text = std::fs::read_to_string(&errors).unwrap_or_default();
        let of = |it: &Process| format!("of process {} is put out: it has left CPU 0", it.pid());
        wanderers.iter().all(|it| text.contains(&of(it)))
    });
}
