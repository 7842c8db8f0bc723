//! Tests with randomly generated messages to the daemon.
//!
//! A seed, which the test prints, determines the sequence. Environment variables set the
//! parameters: `UPSHIFT_DAEMON_MESSAGES` (number of messages, 10⁴ by default and 10⁶ in `cargo
//! xtask soak`) and `UPSHIFT_DAEMON_SEED`. `UPSHIFT_DAEMON_SCRIBBLE` sets the time for which
//! `shared_page.rs` writes to pages, in ms.

use std::os::fd::{AsFd, OwnedFd};

use rustix::net::RecvFlags;
use upshift_board::os;
use upshift_board::wire::{self, Reply, Role, Thread};
use upshift_daemon::{Config, Daemon, Limits};
use upshift_elevate::current_tid;

use crate::client::{census, connect, processes};
use crate::process::{Random, wait_until};
use crate::protocol::cooperative;
use crate::{serial_test, socket};

pub(crate) fn parameter(name: &str, default: u64) -> u64 {
    let set = std::env::var(name).ok();
    set.and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Creates a well-formed message of any kind, in which most numbers are close to valid numbers.
fn well_formed_message(random: &mut Random) -> Vec<u8> {
    let mut number = |bound: u64| match random.below(8) {
        0 => random.below(1 << 32),
        1 => u64::from(u32::MAX) - random.below(3),
        _ => random.below(bound),
    };
    let own_tid = current_tid() as u64;
    let mut thread = || Thread {
        tid: match number(4) {
            0 => own_tid as i32,
            other => other as i32,
        },
        vcpu: number(4) as u16,
        role: if number(2) == 0 {
            Role::Worker
        } else {
            Role::Dispatcher
        },
    };
    let threads: Vec<Thread> = (0..4).map(|_| thread()).collect();
    let cpus: Vec<u32> = (0..number(4).min(63)).map(|_| number(3) as u32).collect();
    let tids: Vec<i32> = threads.iter().map(|thread| thread.tid).collect();
    let split = number(5) as usize % 5;
    let kind = number(5);
    let mut message = wire::buffer();
    let length = match kind {
        0 | 1 => wire::encode_register(&mut message, &cpus, &threads[..split]),
        2 => wire::encode_update(&mut message, &threads[..split], &tids[split..]),
        3 => Some(wire::encode_leave(&mut message)),
        _ => Some(wire::encode_census(&mut message)),
    };
    message[..length.unwrap_or(0)].to_vec()
}

fn message(random: &mut Random) -> Vec<u8> {
    let mut bytes = well_formed_message(random);
    match random.below(6) {
        0 => {
            bytes = (0..random.below(300))
                .map(|_| random.below(256) as u8)
                .collect();
        }
        1 => bytes.truncate(random.below(bytes.len() as u64 + 1) as usize),
        2 => bytes.extend((0..random.below(20)).map(|_| random.below(256) as u8)),
        3 | 4 if !bytes.is_empty() => {
            for _ in 0..=random.below(3) {
                let index = random.below(bytes.len() as u64) as usize;
                bytes[index] = random.below(256) as u8;
            }
        }
        _ => {}
    }
    bytes
}

/// Asserts that a received packet is a reply of the protocol. Returns `None` if there is no packet,
/// or the daemon has closed the connection.
fn take_answer(socket: &OwnedFd, flags: RecvFlags) -> Option<()> {
    let mut answer = wire::buffer();
    match os::receive(socket.as_fd(), &mut answer, flags) {
        Ok((0, _)) | Err(_) => None,
        Ok((length, _)) => {
            let reply = Reply::decode(&answer[..length]);
            assert!(reply.is_ok(), "{reply:?}: {:?}", &answer[..length]);
            Some(())
        }
    }
}

#[test]
fn generated_messages_are_answered_or_refused_and_leave_no_state() {
    let _guard = serial_test();
    let path = socket("fuzz");
    let limits = Limits {
        registrations_per_second: 1_000_000,
        ..Limits::default()
    };
    let _daemon = Daemon::start(Config {
        limits,
        ..cooperative("fuzz")
    })
    .unwrap();
    let count = parameter("UPSHIFT_DAEMON_MESSAGES", 10_000);
    let seed = parameter("UPSHIFT_DAEMON_SEED", 0xf00d_f00d);
    println!("seed {seed}");
    let mut random = Random(seed);
    let (page, _view) = os::local_page().unwrap();
    let (mut sent, mut answered) = (0, 0);
    while sent < count {
        let socket = connect(&path);
        for _ in 0..random.below(16) {
            let bytes = message(&mut random);
            let fds = [page.as_fd(), page.as_fd()];
            let fds = &fds[..(random.below(5) as usize).clamp(1, 3) - 1];
            // An empty packet ends the connection.
            if bytes.is_empty() || os::send(socket.as_fd(), &bytes, fds).is_err() {
                break;
            }
            sent += 1;
            // Each message has one reply, unless the daemon closes the connection.
            let flags = match random.below(4) {
                0 => continue,
                1 => RecvFlags::DONTWAIT,
                _ => RecvFlags::empty(),
            };
            answered += u64::from(take_answer(&socket, flags).is_some());
        }
    }
    println!("{sent} messages, {answered} answers read");
    assert!(answered * 4 > sent, "{answered} of {sent}");
    wait_until("no process is registered", || processes(&path) == 0);
    let status = census(&path);
    assert_eq!(status["bitmap"], 0, "{status}");
}
