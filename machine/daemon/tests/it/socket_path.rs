//! Tests of a socket path that another program uses or has left behind, or that is invalid.

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use upshift_daemon::{Config, Daemon};

use crate::protocol::cooperative;
use crate::{serial_test, socket};

#[test]
fn the_error_of_a_second_daemon_names_the_first() {
    let _guard = serial_test();
    let _daemon = Daemon::start(cooperative("second")).unwrap();
    let error = Daemon::start(cooperative("second"))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains(&format!("pid {}", std::process::id())),
        "{error}"
    );
}

/// A guardian is a process that restores the threads of a killed daemon. A guardian that has not
/// run since its fork holds the files of the daemon. Another daemon must be able to start at the
/// same path.
#[test]
fn a_guardian_of_a_killed_daemon_keeps_no_daemon_from_starting() {
    let _guard = serial_test();
    let path = socket("forked");
    let mut ended = std::process::Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    let name = path.with_extension("sock.lock");
    std::fs::write(&name, format!("{}\n", ended.id())).unwrap();
    let file = std::fs::File::open(&name).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(100));
            drop(file);
        });
        drop(Daemon::start(cooperative("forked")).unwrap());
    });
}

#[test]
fn a_daemon_that_ends_leaves_no_file_and_the_next_can_listen() {
    let _guard = serial_test();
    let path = socket("leaves");
    let file_count = || std::fs::read_dir(path.parent().unwrap()).unwrap().count();
    for _ in 0..2 {
        let daemon = Daemon::start(cooperative("leaves")).unwrap();
        assert_eq!(file_count(), 2, "socket and lock");
        daemon.stop();
        assert_eq!(file_count(), 0);
    }
    // Daemons that start and end at the same time interleave at any step. Two of them must never
    // listen at the same time.
    let start = Instant::now();
    let listening = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..30 {
                    let Ok(daemon) = Daemon::start(cooperative("leaves")) else {
                        continue;
                    };
                    assert_eq!(listening.fetch_add(1, SeqCst), 0, "two daemons listen");
                    std::thread::yield_now();
                    listening.fetch_sub(1, SeqCst);
                    daemon.stop();
                    if start.elapsed() > Duration::from_secs(5) {
                        return;
                    }
                }
            });
        }
    });
    assert_eq!(file_count(), 0);
}

#[test]
fn a_daemon_does_not_take_the_socket_of_another_program() {
    let _guard = serial_test();
    let path = socket("stream");
    let foreign_listener = UnixListener::bind(&path).unwrap();
    let start = || Daemon::start(cooperative("stream"));
    let error = start().unwrap_err().to_string();
    assert!(error.contains("listens there"), "{error}");
    assert!(
        UnixStream::connect(&path).is_ok(),
        "the socket no longer belongs to the other program"
    );
    drop(foreign_listener);
    // The file that the other program leaves behind belongs to no program.
    start().unwrap().stop();
    assert!(!path.exists());
}

#[test]
fn invalid_paths_are_refused_with_the_reason() {
    let _guard = serial_test();
    let file = socket("file");
    std::fs::write(&file, "kept").unwrap();
    let error = |socket: PathBuf| {
        let config = Config {
            socket,
            ..cooperative("file")
        };
        Daemon::start(config).unwrap_err().to_string()
    };
    let text = error(file.clone());
    assert!(text.contains("no socket: remove it"), "{text}");
    let text = error(file.join("below"));
    assert!(text.contains("directory"), "{text}");
    let text = error(file.with_file_name("x".repeat(120)));
    assert!(text.contains("107 bytes"), "{text}");
    let link = file.with_extension("link");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    assert!(error(link).contains("no socket"));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
}
