//! Censuses and metrics: their contents, and attackers that request them without end or do not read
//! them.

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
    // SAFETY: a plain call that cannot fail.
    assert!(writable == 0 || unsafe { libc::geteuid() } == 0);
    assert_eq!(processes(&path), 0);
}

/// Requests the census repeatedly without reading, then reads everything; prints how many replies
/// have contents.
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
        .filter(|file| rustix::fs::fstat(file).unwrap().st_size > 0);
    println!("full {}", full.count());
    let writable = answers.iter().filter(|file| {
        let again = format!("/proc/self/fd/{}", file.as_raw_fd());
        let write = rustix::fs::open(again, rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty());
        write.is_ok() || rustix::fs::ftruncate(file, 0).is_ok()
    });
    println!("writable {}", writable.count());
    wait_for_go();
}

#[test]
fn metrics_are_served_and_slow_readers_delay_no_client() {
    let _turn = turn();
    let path = socket("metrics");
    let endpoint = directory().join("metrics");
    let config = Config {
        metrics: Some(endpoint.display().to_string()),
        ..open_config("metrics")
    };
    let daemon = Daemon::start(config).unwrap();
    let client = start_puppet(&path);
    until("it listens", || endpoint.exists());
    let _slow = UnixStream::connect(&endpoint).unwrap();
    // A client that always has a little more to send.
    let mut dripping = UnixStream::connect(&endpoint).unwrap();
    let dripping = std::thread::spawn(move || {
        let began = Instant::now();
        while began.elapsed() < PATIENCE * 2 && dripping.write_all(b"x").is_ok() {
            std::thread::sleep(Duration::from_millis(100));
        }
        began.elapsed()
    });
    let mut stream = UnixStream::connect(&endpoint).unwrap();
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
fn a_client_that_requests_metrics_without_end_causes_ten_censuses_a_second() {
    let _turn = turn();
    let endpoint = directory().join("often");
    let config = Config {
        metrics: Some(endpoint.display().to_string()),
        ..open_config("often")
    };
    let _daemon = Daemon::start(config).unwrap();
    until("it listens", || endpoint.exists());
    let began = Instant::now();
    let mut uptimes = std::collections::HashSet::new();
    for _ in 0..400 {
        let mut stream = UnixStream::connect(&endpoint).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let mut lines = answer.lines();
        uptimes.extend(lines.find_map(|line| {
            line.strip_prefix("upshift_uptime_seconds ")
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
fn a_daemon_leaves_the_metrics_socket_of_another() {
    let _turn = turn();
    let endpoint = directory().join("figures");
    let config = |name: &str| Config {
        metrics: Some(endpoint.display().to_string()),
        ..open_config(name)
    };
    let first = Daemon::start(config("first")).unwrap();
    until("it listens", || endpoint.exists());
    let made = || {
        std::fs::metadata(&endpoint)
            .map(|found| found.ino())
            .unwrap()
    };
    let before = made();
    let second = Daemon::start(config("second")).unwrap();
    // The second daemon answers when it has tried to listen there.
    census(&socket("second"));
    assert_eq!(made(), before);
    drop(second);
    assert_eq!(made(), before);
    assert!(UnixStream::connect(&endpoint).is_ok());
    drop(first);
    assert!(!endpoint.exists());
}

/// Holds `COUNT` connections to the metrics socket without sending, until it is told to end.
pub(crate) fn mute() {
    let endpoint = setting("ENDPOINT");
    let all: Vec<_> = (0..number("COUNT"))
        .map(|_| UnixStream::connect(&endpoint))
        .collect();
    println!("ready {}", all.len());
    wait_for_go();
}

#[test]
fn silent_connections_to_the_metrics_delay_no_client() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("mute");
    let endpoint = directory().join("mute");
    let config = Config {
        metrics: Some(endpoint.display().to_string()),
        ..open_config("mute")
    };
    let _daemon = Daemon::start(config).unwrap();
    until("it listens", || endpoint.exists());
    std::fs::set_permissions(
        &endpoint,
        std::os::unix::fs::PermissionsExt::from_mode(0o666),
    )
    .unwrap();
    let more = [
        ("COUNT", "100".to_string()),
        ("ENDPOINT", endpoint.display().to_string()),
    ];
    let _mute = start_child("mute", &path, MALLORY, (0, 0), &more);
    use std::io::{Read, Write};
    let began = Instant::now();
    let mut stream = UnixStream::connect(&endpoint).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let took = began.elapsed();
    println!("answered after {took:?}");
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert!(took < PATIENCE, "{took:?}");
}
