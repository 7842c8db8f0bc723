//! Registered children that cause work for the daemon or the kernel.

use upshift_board::NO_LEVEL;
use upshift_board::wire::Role;
use upshift_elevate::current_tid;

use crate::child::{cpu_time, number, pin, setting, wait_for_go};
use crate::client::{Registration, sleepers_behind};
use crate::process::monotonic;

/// Changes its level at full speed, between `LEVEL` and a less urgent one, and rings each time.
pub(crate) fn flapper() {
    pin(number("CPU") as usize);
    if setting("POLICY") == "batch" {
        let param = libc::sched_param { sched_priority: 0 };
        // SAFETY: a live structure.
        unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const param) };
    }
    let registration = Registration::new(&[(current_tid(), Role::Worker)]);
    println!("ready");
    let deadline = wait_for_go();
    let listeners = if setting("ROLE") == "listeners" {
        300
    } else {
        0
    };
    let _listeners: Vec<_> = (0..listeners)
        .map(|_| listen_to(&registration.bells[0]))
        .collect();
    let level = number("LEVEL") as u8;
    let (before, mut changes) = (cpu_time(), 0);
    while monotonic() < deadline {
        registration.run(level + changes as u8 % 8);
        changes += 1;
    }
    println!("changes {changes}");
    println!("used {}", (cpu_time() - before) / 1000);
    registration.run(NO_LEVEL);
    wait_for_go();
}

/// Makes the doorbell block for all its users, and adds an epoll that the kernel has to notify of
/// each ring.
fn listen_to(bell: &std::os::fd::OwnedFd) -> std::os::fd::OwnedFd {
    use rustix::event::epoll;
    rustix::fs::fcntl_setfl(bell, rustix::fs::OFlags::empty()).unwrap();
    let listener = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let all = epoll::EventFlags::IN | epoll::EventFlags::OUT;
    epoll::add(&listener, bell, epoll::EventData::new_u64(0), all).unwrap();
    listener
}

/// Registers, and sends itself packets that it does not read until the deadline: the kernel works
/// for each of them in its name.
pub(crate) fn torrent() {
    pin(number("CPU") as usize);
    let _registration = Registration::new(&[(current_tid(), Role::Worker)]);
    let sink = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let source = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    source.connect(sink.local_addr().unwrap()).unwrap();
    println!("ready");
    let deadline = wait_for_go();
    let before = cpu_time();
    let bytes = [0u8; 1400];
    let mut sent = 0u64;
    while monotonic() < deadline {
        sent += u64::from(source.send(&bytes).is_ok());
    }
    println!("used {}", (cpu_time() - before) / 1000);
    println!("sent {sent}");
    wait_for_go();
}

/// Registers as many vCPUs as possible with 128 threads each, all asleep, and changes their levels
/// as fast as possible until the deadline.
pub(crate) fn switcher() {
    pin(number("CPU") as usize);
    let gate = std::sync::Mutex::new(());
    let closed = gate.lock().unwrap();
    std::thread::scope(|scope| {
        let tids = sleepers_behind(&gate, scope, 1024);
        let all: Vec<Registration> = tids.chunks(128).map_while(Registration::try_new).collect();
        println!("ready");
        let deadline = wait_for_go();
        let mut changes = 0u64;
        while monotonic() < deadline {
            for registration in &all {
                registration.run(if changes.is_multiple_of(2) { 3 } else { 62 });
            }
            changes += 1;
        }
        println!("changes {} of {}", changes, all.len());
        drop(closed);
    });
    wait_for_go();
}
