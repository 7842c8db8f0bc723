//! Entries that the kernel gets in another order than that in which they are meant.

use super::*;
use crate::config::{Config, Driver as Choice};
use crate::mailbox::Mailbox;
use crate::op::Small;
use crate::operation::Operation;
use crate::remote::Kick;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A driver with lanes; on a kernel without them a word, and none.
fn with_lanes() -> Option<Driver> {
    let config = Config {
        driver: Choice::Ring,
        ..Config::default()
    };
    let kick = Arc::new(Kick::new().unwrap());
    let driver = Driver::new(&config, Arc::new(Mailbox::new(kick))).ok();
    let driver = driver.filter(|driver| match &driver.backend {
        Backend::Kernel(uring) => driver.lanes(uring).is_some(),
        Backend::Readiness(_) => false,
    });
    if driver.is_none() {
        println!("skipped: no lanes here (Linux 6.8)");
    }
    driver
}

fn file(name: &str, contents: &str) -> PathBuf {
    let process = std::process::id();
    let path = std::env::temp_dir().join(format!("upshift-lanes-{process}-{name}"));
    std::fs::write(&path, contents).unwrap();
    path
}

/// Queues the entries of a file in this order.
fn start<'a>(driver: &'a Driver, path: &Path, order: &[usize]) -> &'a Slot {
    let Backend::Kernel(uring) = &driver.backend else {
        unreachable!("a ring was asked for")
    };
    let path = path.as_os_str().as_bytes();
    let (slot, entries) = driver
        .prepare_small(uring, path, 0, 0, order.len() == 3)
        .unwrap();
    for &at in order {
        // SAFETY: as in `start_small`.
        assert!(unsafe { uring.push(entries[at].as_ref().unwrap()) });
    }
    slot
}

fn turn(driver: &Driver) {
    driver.submit().unwrap();
    driver.reap();
}

fn output(driver: &Driver, slot: &Slot) -> Small {
    for _ in 0..1000 {
        if slot.place.get() == Place::Done {
            break;
        }
        driver
            .wait(true, Some(std::time::Duration::from_millis(10)))
            .unwrap();
        driver.reap();
    }
    assert_eq!(slot.place.get(), Place::Done);
    // SAFETY: complete, and taken once.
    let small = unsafe { Stored::<ReadSmall>::take(slot.payload()) };
    driver.slab.give_back(slot);
    small.complete(slot.result.get(), slot.flags.get())
}

/// The bytes, or what else it is.
fn bytes(driver: &Driver, slot: &Slot) -> Result<String, &'static str> {
    match output(driver, slot) {
        Small::All(bytes) => Ok(String::from_utf8(bytes).unwrap()),
        Small::Begun { .. } => Err("begun"),
        Small::Unopened => Err("unopened"),
    }
}

fn end(driver: &Driver) {
    driver.begin_shutdown();
    let mut round = 0;
    while !driver.is_idle() {
        driver.drain(round).unwrap();
        round += 1;
    }
    // SAFETY: the last use, and nothing is in flight.
    unsafe { driver.backend.close() };
}

#[test]
fn a_read_before_its_open_retires_the_lane_and_nobody_reads_what_is_left() {
    let Some(driver) = with_lanes() else { return };
    let (secret, other) = (file("secret", "secret"), file("other", "other"));
    let missing = Path::new("/does/not/exist");
    // All lanes but one: the next file has the one that is out of order, or none.
    let held: Vec<_> = (1..LANES)
        .map(|_| start(&driver, &other, &[0, 1]))
        .collect();
    turn(&driver);
    let late = start(&driver, &secret, &[1, 0]);
    turn(&driver);
    assert_eq!(bytes(&driver, late), Err("unopened"));
    assert_eq!(driver.stats().retired, 1);
    for slot in held {
        assert_eq!(bytes(&driver, slot), Ok("other".into()));
    }
    // From now on they are linked, and as quick.
    for round in 0..3 * LANES {
        let slots = [&other, missing, &other].map(|path: &Path| start(&driver, path, &[0, 1]));
        turn(&driver);
        let all = slots.map(|slot| bytes(&driver, slot));
        let expected = [Ok("other".into()), Err("unopened"), Ok("other".into())];
        assert_eq!(all, expected, "round {round}");
    }
    assert_eq!(driver.stats().retired, 1);
    assert_eq!(driver.stats().stale, 0);
    end(&driver);
    for path in [secret, other] {
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn an_open_that_fails_late_is_nobodys() {
    let Some(driver) = with_lanes() else { return };
    let slot = start(&driver, Path::new("/does/not/exist"), &[1, 0]);
    turn(&driver);
    assert_eq!(bytes(&driver, slot), Err("unopened"));
    let stats = driver.stats();
    assert_eq!((stats.retired, stats.stale), (1, 1));
    end(&driver);
}

#[test]
fn a_chain_that_is_taken_in_parts_is_the_files_own() {
    let Some(driver) = with_lanes() else { return };
    let path = file("parts", "in parts");
    for order in [[1, 2, 0], [1, 0, 2], [0, 1, 2]] {
        let slot = start(&driver, &path, &order);
        match output(&driver, slot) {
            Small::All(bytes) => assert_eq!(bytes, b"in parts"),
            Small::Begun { bytes, .. } => assert!(b"in parts".starts_with(&bytes[..])),
            Small::Unopened => panic!("it is there"),
        }
    }
    driver.submit().unwrap();
    assert_eq!(driver.stats().retired, 0);
    assert_eq!(driver.unclosed.get(), 0);
    end(&driver);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn what_cannot_be_closed_is_not_used_again() {
    let Some(driver) = with_lanes() else { return };
    let path = file("unclosed", "contents");
    let slot = start(&driver, &path, &[0, 1]);
    turn(&driver);
    assert_eq!(bytes(&driver, slot), Ok("contents".into()));
    let Backend::Kernel(uring) = &driver.backend else {
        unreachable!("a ring was asked for")
    };
    assert_eq!(driver.unclosed.get(), 1);
    // Without the table the call fails.
    uring.unregister_lanes();
    driver.submit().unwrap();
    assert_eq!((driver.stats().retired, driver.unclosed.get()), (1, 0));
    let path = path.as_os_str().as_bytes();
    assert!(driver.start_small(path, 0, 0, false).is_none());
    assert!(driver.start_small(path, 0, 0, true).is_none());
    end(&driver);
    std::fs::remove_file(std::ffi::OsStr::from_bytes(path)).unwrap();
}
