//! What ordinary users send that is heavy to take, to keep or to throw away. `docs/threat-model.md` names these tests.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::net::RecvFlags;
use upshift_board::{os, wire};
use upshift_daemon::Daemon;

use crate::attacks::{MALLORY, TRUDY, from_now, open_config, takes_at_most, villain};
use crate::child::{number, setting, wait_for_go};
use crate::process::{monotonic, used_by_threads};
use crate::protocol::connect;
use crate::wiles::registers_within;
use crate::{permitted, socket, turn};

/// A file in memory, of so many MB that are really there.
fn memory(mb: u64) -> OwnedFd {
    let file = rustix::fs::memfd_create("burden", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, mb << 20).unwrap();
    file
}

/// Sends registrations with descriptors that it keeps no copy of until the deadline, over `CONNECTIONS`: files of `MB` in memory, or if
/// that is 0 as many pipes as fit.
pub(crate) fn burdener() {
    let path = PathBuf::from(setting("SOCKET"));
    let mut connections: Vec<OwnedFd> =
        (0..number("CONNECTIONS")).map(|_| connect(&path)).collect();
    println!("ready");
    let (deadline, mb) = (wait_for_go(), number("MB"));
    let mut message = wire::buffer();
    let length = wire::encode_register(&mut message, &[0], &[]).unwrap();
    let mut sent = 0u64;
    while monotonic() < deadline {
        for connection in &mut connections {
            let burden: Vec<OwnedFd> = match mb {
                0 => {
                    let pipes = (0..os::DESCRIPTORS / 2).map(|_| std::io::pipe().unwrap());
                    pipes
                        .flat_map(|(one, other)| [one.into(), other.into()])
                        .collect()
                }
                mb => vec![memory(mb)],
            };
            let files: Vec<_> = burden.iter().map(AsFd::as_fd).collect();
            let outcome = os::send(connection.as_fd(), &message[..length], &files);
            // The daemon's is the last one, if it has not been quicker.
            drop(files);
            drop(burden);
            match outcome {
                Ok(()) => sent += 1,
                Err(_) => *connection = connect(&path),
            }
            let mut answer = wire::buffer();
            while os::receive(connection.as_fd(), &mut answer, RecvFlags::DONTWAIT)
                .is_ok_and(|(length, _)| length > 0)
            {}
        }
    }
    println!("sent {sent}");
    wait_for_go();
}

#[test]
fn memory_that_is_sent_is_given_back_by_ordinary_threads() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("memory");
    let _daemon = Daemon::start(open_config("memory")).unwrap();
    let more = [("MB", "64".to_string()), ("CONNECTIONS", "1".to_string())];
    let mut all = [MALLORY, TRUDY].map(|user| villain("burdener", &path, user, (0, 0), &more));
    for it in &mut all {
        it.go_until(from_now(Duration::from_secs(1)));
    }
    let before = used_by_threads("upshift-daemon");
    let sent: Vec<u64> = all.iter_mut().map(|it| it.number("sent ")).collect();
    let used = (used_by_threads("upshift-daemon") - before) / 1000;
    let closing = used_by_threads("upshift-close") / 1000;
    println!("{sent:?} files; the control thread used {used} us, those that close {closing}");
    // Before: up to 8 ms for each file, at SCHED_FIFO 46.
    assert!(takes_at_most(4, used, 1_000_000));
}

#[test]
fn hundreds_of_descriptors_in_each_message_keep_nobody_from_registering() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("pipes");
    let _daemon = Daemon::start(open_config("pipes")).unwrap();
    let more = [("MB", "0".to_string()), ("CONNECTIONS", "8".to_string())];
    let mut all = [MALLORY, TRUDY].map(|user| villain("burdener", &path, user, (0, 0), &more));
    let took = registers_within(&path, &mut all);
    let sent: Vec<u64> = all.iter_mut().map(|it| it.number("sent ")).collect();
    println!("{sent:?} messages in 3 s; another user registers in {took:?}");
    assert!(
        took.iter().all(|it| *it < Duration::from_secs(3)),
        "{took:?}"
    );
}
