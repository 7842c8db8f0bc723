//! Tests of censuses and metrics. A census is the daemon's report about its processes, which it
//! returns as a file. Attackers flood the daemon with requests or do not read the replies.

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
use crate::child::{number, setting, wait_for_parent};
use crate::client::{census, connect, processes};
use crate::process::{Process, WAIT_LIMIT, wait_until};
use crate::scripted_client::start_scripted_client;
use crate::{directory, permitted, serial_test, socket};

#[test]
fn unread_censuses_use_bounded_memory() {
    let _guard = serial_test();
    let (path, _daemon) = open_daemon("slow-census-reader");
    let _count = processes(&path);
    let mut reader = Process::start("slow-census-reader", &path, &[]);
    let requested = reader.number("ready ");
    // The daemon needs time to answer.
    std::thread::sleep(Duration::from_millis(200));
    reader.send("go");
    let (with_contents, writable) = (reader.number("full "), reader.number("writable "));
    println!("{with_contents} of {requested} answers had contents");
    // The daemon keeps at most four census files of a user.
    assert!(
        requested > 50 && with_contents <= 4,
        "{with_contents} of {requested}"
    );
    // Root may open any file for writing.
    // SAFETY: the call has no arguments and cannot fail.
    assert!(writable == 0 || unsafe { libc::geteuid() } == 0);
    assert_eq!(processes(&path), 0);
}

/// Requests censuses without reading the replies, each of which carries a file, and then reads all
/// replies. Prints how many files are not empty, and how many this process could write to.
pub(crate) fn slow_census_reader() {
    let connections: Vec<OwnedFd> = (0..4)
        .map(|_| connect(&PathBuf::from(setting("SOCKET"))))
        .collect();
    let mut message = wire::buffer();
    let length = wire::encode_census(&mut message);
    let mut requested = 0;
    for _ in 0..100 {
        for connection in &connections {
            requested += u64::from(os::send(connection.as_fd(), &message[..length], &[]).is_ok());
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    println!("ready {requested}");
    wait_for_parent();
    let mut answers = Vec::new();
    for connection in &connections {
        let mut answer = wire::buffer();
        while let Ok((1.., fds)) = os::receive(connection.as_fd(), &mut answer, RecvFlags::DONTWAIT)
        {
            answers.extend(fds);
        }
    }
    let with_contents = answers
        .iter()
        .filter(|file| rustix::fs::fstat(file).unwrap().st_size > 0);
    println!("full {}", with_contents.count());
    let writable = answers.iter().filter(|file| {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let write = rustix::fs::open(path, rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty());
        write.is_ok() || rustix::fs::ftruncate(file, 0).is_ok()
    });
    println!("writable {}", writable.count());
    wait_for_parent();
}

#[test]
fn metrics_are_served_and_slow_readers_delay_no_client() {
    let _guard = serial_test();
    let path = socket("metrics");
    let endpoint = directory().join("metrics");
    let config = Config {
        metrics: Some(endpoint.display().to_string()),
        ..open_config("metrics")
    };
    let daemon = Daemon::start(config).unwrap();
    let client = start_scripted_client(&path);
    wait_until("the metrics endpoint exists", || endpoint.exists());
    let _silent = UnixStream::connect(&endpoint).unwrap();
    // A client that sends its request one byte at a time.
    let mut slow_writer = UnixStream::connect(&endpoint).unwrap();
    let slow_writer = std::thread::spawn(move || {
        let began = Instant::now();
        while began.elapsed() < WAIT_LIMIT * 2 && slow_writer.write_all(b"x").is_ok() {
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
    let connected_for = slow_writer.join().unwrap();
    assert!(connected_for < WAIT_LIMIT, "{connected_for:?}");
    drop((client, daemon));
    let remaining_files: Vec<_> = std::fs::read_dir(directory()).unwrap().collect();
    assert!(
        remaining_files.is_empty(),
        "files are left after a clean end: {remaining_files:?}"
    );
}

#[test]
fn a_flood_of_metrics_requests_causes_at_most_ten_censuses_a_second() {
    let _guard = serial_test();
    let endpoint = directory().join("often");
    let config = Config {
        metrics: Some(endpoint.display().to_string()),
        ..open_config("often")
    };
    let _daemon = Daemon::start(config).unwrap();
    wait_until("the metrics endpoint exists", || endpoint.exists());
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
    let max_censuses = began.elapsed().as_millis() / 100 + 2;
    println!("{} answers in {:?}", uptimes.len(), began.elapsed());
    assert!(
        !uptimes.is_empty() && uptimes.len() as u128 <= max_censuses,
        "{} censuses, of which at most {max_censuses} are allowed",
        uptimes.len()
    );
}

#[test]
fn a_daemon_does_not_replace_the_metrics_socket_of_another() {
    let _guard = serial_test();
    let endpoint = directory().join("figures");
    let config = |name: &str| Config {
        metrics: Some(endpoint.display().to_string()),
        ..open_config(name)
    };
    let first = Daemon::start(config("first")).unwrap();
    wait_until("the metrics endpoint exists", || endpoint.exists());
    let inode = || {
        std::fs::metadata(&endpoint)
            .map(|found| found.ino())
            .unwrap()
    };
    let before = inode();
    let second = Daemon::start(config("second")).unwrap();
    // The second daemon answers a census after it has tried to listen at the endpoint.
    census(&socket("second"));
    assert_eq!(inode(), before);
    drop(second);
    assert_eq!(inode(), before);
    assert!(UnixStream::connect(&endpoint).is_ok());
    drop(first);
    assert!(!endpoint.exists());
}

/// Keeps `COUNT` connections to the metrics socket open without sending, until its parent sends a
/// line.
pub(crate) fn silent_connections() {
    let endpoint = setting("ENDPOINT");
    let connections: Vec<_> = (0..number("COUNT"))
        .map(|_| UnixStream::connect(&endpoint))
        .collect();
    println!("ready {}", connections.len());
    wait_for_parent();
}

#[test]
fn silent_metrics_connections_delay_no_client() {
    let _guard = serial_test();
    if !permitted() {
        return;
    }
    let path = socket("silent-connections");
    let endpoint = directory().join("silent-connections");
    let config = Config {
        metrics: Some(endpoint.display().to_string()),
        ..open_config("silent-connections")
    };
    let _daemon = Daemon::start(config).unwrap();
    wait_until("the metrics endpoint exists", || endpoint.exists());
    std::fs::set_permissions(
        &endpoint,
        std::os::unix::fs::PermissionsExt::from_mode(0o666),
    )
    .unwrap();
    let extra_settings = [
        ("COUNT", "100".to_string()),
        ("ENDPOINT", endpoint.display().to_string()),
    ];
    let _connections = start_child(
        "silent-connections",
        &path,
        MALLORY,
        (0, 0),
        &extra_settings,
    );
    use std::io::{Read, Write};
    let began = Instant::now();
    let mut stream = UnixStream::connect(&endpoint).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let time_to_answer = began.elapsed();
    println!("answered after {time_to_answer:?}");
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert!(
        time_to_answer < WAIT_LIMIT,
        "answered after {time_to_answer:?}"
    );
}
