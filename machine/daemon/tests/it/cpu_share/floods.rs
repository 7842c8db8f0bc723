//! Child processes that register with the daemon and then flood the daemon, or the kernel, with
//! work.

use upshift_board::NO_LEVEL;
use upshift_board::wire::Role;
use upshift_elevate::current_tid;

use crate::child::{cpu_time, number, pin, setting, wait_for_parent};
use crate::client::{Registration, start_blocked_threads};
use crate::process::monotonic;

/// Changes its level as fast as possible, between `LEVEL` and seven less urgent levels, and rings
/// each time.
pub(crate) fn level_flapper() {
    pin(number("CPU") as usize);
    if setting("POLICY") == "batch" {
        let param = libc::sched_param { sched_priority: 0 };
        // SAFETY: `param` is valid for the duration of the call.
        unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const param) };
    }
    let registration = Registration::new(&[(current_tid(), Role::Worker)]);
    println!("ready");
    let deadline = wait_for_parent();
    let listeners = if setting("ROLE") == "listeners" {
        300
    } else {
        0
    };
    let _listeners: Vec<_> = (0..listeners)
        .map(|_| add_listener(&registration.doorbells[0]))
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
    wait_for_parent();
}

/// Clears `O_NONBLOCK` of the doorbell, and adds an epoll instance that the kernel has to notify at
/// every ring.
fn add_listener(doorbell: &std::os::fd::OwnedFd) -> std::os::fd::OwnedFd {
    use rustix::event::epoll;
    rustix::fs::fcntl_setfl(doorbell, rustix::fs::OFlags::empty()).unwrap();
    let listener = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let events = epoll::EventFlags::IN | epoll::EventFlags::OUT;
    epoll::add(&listener, doorbell, epoll::EventData::new_u64(0), events).unwrap();
    listener
}

/// Registers, and sends packets to a socket that it does not read, until the deadline. The kernel
/// charges the work for each packet to this process.
pub(crate) fn packet_flood() {
    pin(number("CPU") as usize);
    let _registration = Registration::new(&[(current_tid(), Role::Worker)]);
    let sink = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let source = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    source.connect(sink.local_addr().unwrap()).unwrap();
    println!("ready");
    let deadline = wait_for_parent();
    let before = cpu_time();
    let bytes = [0u8; 1400];
    let mut sent = 0u64;
    while monotonic() < deadline {
        sent += u64::from(source.send(&bytes).is_ok());
    }
    println!("used {}", (cpu_time() - before) / 1000);
    println!("sent {sent}");
    wait_for_parent();
}

/// Registers as many vCPUs as possible, each with 128 sleeping threads, and changes their levels as
/// fast as possible until the deadline.
pub(crate) fn mass_level_changer() {
    pin(number("CPU") as usize);
    let mutex = std::sync::Mutex::new(());
    let guard = mutex.lock().unwrap();
    std::thread::scope(|scope| {
        let tids = start_blocked_threads(&mutex, scope, 1024);
        let registrations: Vec<Registration> =
            tids.chunks(128).map_while(Registration::try_new).collect();
        println!("ready");
        let deadline = wait_for_parent();
        let mut changes = 0u64;
        while monotonic() < deadline {
            for registration in &registrations {
                registration.run(if changes.is_multiple_of(2) { 3 } else { 62 });
            }
            changes += 1;
        }
        println!("changes {} of {}", changes, registrations.len());
        drop(guard);
    });
    wait_for_parent();
}
