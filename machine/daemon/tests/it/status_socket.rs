//! Censuses and metrics: their contents, and attackers that ask for them without end or do not
//! read them.

use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::net::RecvFlags;
use upshift_board::os::{self};
use upshift_board::wire::{self};
use upshift_daemon::{Config, Daemon};

use crate::attack::{MALLORY, open_config, open_daemon, start_child};
use crate::child::{number, setting, wait_for_go};
use crate::client::{census, connect, processes};
use crate::process::{PATIENCE, Process, until};
use crate::puppet::start_puppet;
use crate::{directory, permitted, socket, turn};

#[test]
fn censuses_that_no_client_reads_take_no_memory() {
    let _turn = turn();
    let (path, _daemon) = open_daemon("hoarder");
    let _somebody = processes(&path);
    let mut hoarder = Process::start("hoarder", &path, &[]);
    let asked = hoarder.number("ready ");
    // The daemon answers in its own time.
    std::thread::sleep(Duration::from_millis(200));
    hoarder.say("go");
    let (full, writable) = (hoarder.number("full "), hoarder.number("writable "));
    println!("{full} of {asked} answers held anything");
    assert!(asked > 50 && full <= 4, "{full} of {asked}");
    // For root, only truncating fails where opening does not.
    // SAFETY: cannot fail.
    assert!(writable == 0 || unsafe { libc::geteuid() } == 0);
    assert_eq!(processes(&path), 0);
}

/// Asks for the census again and again without reading, then reads everything: how many answers hold anything.
pub(crate) fn hoarder() {
    let connections: Vec<OwnedFd> = (0..4)
        .map(|_| connect(&PathBuf::from(setting("SOCKET"))))
        .collect();
    let mut message = wire::buffer();
    let length = wire::encode_census(&mut message);
    let mut asked = 0;
    for _ in 0..100 {
        for connection in &connections {
            asked += u64::from(os::send(connection.as_fd(), &message[..length], &[]).is_ok());
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    println!("ready {asked}");
    wait_for_go();
    let mut answers = Vec::new();
    for connection in &connections {
        let mut answer = wire::buffer();
        while let Ok((1.., fds)) = os::receive(connection.as_fd(), &mut answer, RecvFlags::DONTWAIT)
        {
            answers.extend(fds);
        }
    }
    let full = answers
        .iter()
        .filter(|it| rustix::fs::fstat(it).unwrap().st_size > 0);
    println!("full {}", full.count());
    let writable = answers.iter().filter(|it| {
        let again = format!("/proc/self/fd/{}", it.as_raw_fd());
        let write = rustix::fs::open(again, rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty());
        write.is_ok() || rustix::fs::ftruncate(it, 0).is_ok()
    });
    println!("writable {}", writable.count());
    wait_for_go();
}

#[test]
fn figures_are_there_for_prometheus_and_slow_readers_delay_no_client() {
    let _turn = turn();
    let path = socket("metrics");
    let place = directory().join("metrics");
    let config = Config {
        metrics: Some(place.display().to_string()),
        ..open_config("metrics")
    };
    let daemon = Daemon::start(config).unwrap();
    let client = start_puppet(&path);
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
fn a_client_that_asks_for_figures_without_end_has_the_daemon_asked_ten_times_a_second() {
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
fn a_daemon_leaves_the_socket_of_another_ones_figures() {
    let _turn = turn();
    let place = directory().join("figures");
    let config = |name: &str| Config {
        metrics: Some(place.display().to_string()),
        ..open_config(name)
    };
    let first = Daemon::start(config("first")).unwrap();
    until("it listens", || place.exists());
    let made = || std::fs::metadata(&place).map(|it| it.ino()).unwrap();
    let before = made();
    let second = Daemon::start(config("second")).unwrap();
    // It answers when it has tried to listen there.
    census(&socket("second"));
    assert_eq!(made(), before);
    drop(second);
    assert_eq!(made(), before);
    assert!(UnixStream::connect(&place).is_ok());
    drop(first);
    assert!(!place.exists());
}

/// Holds `COUNT` connections to the figures without a word until it is told to end.
pub(crate) fn mute() {
    let place = setting("PLACE");
    let all: Vec<_> = (0..number("COUNT"))
        .map(|_| UnixStream::connect(&place))
        .collect();
    println!("ready {}", all.len());
    wait_for_go();
}

#[test]
fn a_client_that_connects_to_the_figures_and_says_nothing_keeps_no_client_from_them() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("mute");
    let place = directory().join("mute");
    let config = Config {
        metrics: Some(place.display().to_string()),
        ..open_config("mute")
    };
    let _daemon = Daemon::start(config).unwrap();
    until("it listens", || place.exists());
    std::fs::set_permissions(&place, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    let more = [
        ("COUNT", "100".to_string()),
        ("PLACE", place.display().to_string()),
    ];
    let _mute = start_child("mute", &path, MALLORY, (0, 0), &more);
    use std::io::{Read, Write};
    let began = Instant::now();
    let mut stream = UnixStream::connect(&place).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let took = began.elapsed();
    println!("answered after {took:?}");
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert!(took < PATIENCE, "{took:?}");
}
