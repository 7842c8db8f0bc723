//! Children that connect, register or send more than the daemon should spend on them.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::net::RecvFlags;
use upshift_board::os::{self};
use upshift_board::wire;
use upshift_board::wire::{Reply, Role, Thread};
use upshift_elevate::current_tid;

use crate::child::{number, pin, setting, wait_for_go};
use crate::client::{Registration, connect, register, sleepers_behind};
use crate::process::monotonic;

/// Registers as many vCPUs without threads as possible, all on `CPU`, and rings for all of them
/// until the deadline.
pub(crate) fn crowd() {
    let cpu = number("CPU") as u32;
    let path = PathBuf::from(setting("SOCKET"));
    let mut all = Vec::new();
    let mut count = 0;
    for per in [63, 8, 1] {
        loop {
            let connection = connect(&path);
            let (file, page) = os::local_page().unwrap();
            for vcpu in 0..per {
                let line = page.vcpu(vcpu).unwrap();
                line.set_running((16 + (count + vcpu) % 48) as u8);
            }
            let Ok(bells) = register(&connection, &vec![cpu; per], &[], &file) else {
                break;
            };
            count += per;
            all.push((connection, page, bells));
            if count > 2000 {
                break;
            }
        }
    }
    println!("ready {count}");
    let deadline = wait_for_go();
    while monotonic() < deadline {
        for (_, _, bells) in &all {
            for bell in &bells[1..] {
                os::ring(bell).unwrap();
            }
        }
    }
    println!("done");
    wait_for_go();
}

/// Connects once as each of `USERS` users, and stays connected.
pub(crate) fn legion() {
    let path = PathBuf::from(setting("SOCKET"));
    let (mut all, first) = (Vec::new(), number("FIRST") as u32);
    for user in 0..number("USERS") as u32 {
        // SAFETY: plain calls, of this thread only.
        unsafe { libc::syscall(libc::SYS_setresuid, -1, first + user, -1) };
        all.push(connect(&path));
        // SAFETY: as above.
        unsafe { libc::syscall(libc::SYS_setresuid, -1, 0, -1) };
    }
    println!("ready {}", all.len());
    wait_for_go();
    let is_open = |socket: &&OwnedFd| {
        let mut answer = wire::buffer();
        let received = os::receive(socket.as_fd(), &mut answer, RecvFlags::DONTWAIT);
        received.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    };
    println!("open {}", all.iter().filter(is_open).count());
    wait_for_go();
}

/// Connects and closes until the deadline, in `THREADS` threads; prints the number of connections.
pub(crate) fn knocker() {
    println!("ready");
    let deadline = wait_for_go();
    let knocks = AtomicU64::new(0);
    let path = PathBuf::from(setting("SOCKET"));
    std::thread::scope(|scope| {
        for _ in 0..number("THREADS") {
            scope.spawn(|| {
                while monotonic() < deadline {
                    drop(connect(&path));
                    knocks.fetch_add(1, Relaxed);
                }
            });
        }
    });
    println!("knocks {}", knocks.load(Relaxed));
    wait_for_go();
}

/// Registers, and adds and removes a thread over `CONNECTIONS` connections as fast as it is
/// answered, until the deadline; prints the number of updates.
pub(crate) fn updater() {
    pin(number("CPU") as usize);
    let path = PathBuf::from(setting("SOCKET"));
    println!("ready");
    let deadline = wait_for_go();
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..number("CONNECTIONS") {
            scope.spawn(|| {
                let own = Thread {
                    tid: current_tid(),
                    vcpu: 0,
                    role: Role::Worker,
                };
                let connection = connect(&path);
                let (file, _page) = os::local_page().unwrap();
                register(&connection, &[number("CPU") as u32], &[], &file).unwrap();
                let (mut add, mut remove) = (wire::buffer(), wire::buffer());
                let lengths = [
                    wire::encode_update(&mut add, &[own], &[]).unwrap(),
                    wire::encode_update(&mut remove, &[], &[own.tid]).unwrap(),
                ];
                while monotonic() < deadline {
                    for message in [&add[..lengths[0]], &remove[..lengths[1]]] {
                        os::send(connection.as_fd(), message, &[]).unwrap();
                        let mut answer = wire::buffer();
                        let flags = RecvFlags::empty();
                        let (length, _) =
                            os::receive(connection.as_fd(), &mut answer, flags).unwrap();
                        let reply = Reply::decode(&answer[..length]).unwrap();
                        done.fetch_add(u64::from(matches!(reply, Reply::Done(_))), Relaxed);
                    }
                }
            });
        }
    });
    println!("done {}", done.load(Relaxed));
    wait_for_go();
}

/// Registers `REGISTRATIONS` times with 64 threads each, and requests censuses over 64 connections,
/// without end.
pub(crate) fn asker() {
    pin(number("CPU") as usize);
    let gate = std::sync::Mutex::new(());
    let closed = gate.lock().unwrap();
    std::thread::scope(|scope| {
        let tids = sleepers_behind(&gate, scope, number("REGISTRATIONS") * 64);
        let _footholds: Vec<Registration> = tids.chunks(64).map(Registration::new).collect();
        let path = PathBuf::from(setting("SOCKET"));
        let connections: Vec<OwnedFd> = (0..64).map(|_| connect(&path)).collect();
        println!("ready");
        let deadline = wait_for_go();
        let mut message = wire::buffer();
        let length = wire::encode_census(&mut message);
        let (mut asked, mut answered, mut full) = (0u64, 0u64, 0u64);
        while monotonic() < deadline {
            for connection in &connections {
                let mut answer = wire::buffer();
                while os::receive(connection.as_fd(), &mut answer, RecvFlags::DONTWAIT).is_ok_and(
                    |(length, files)| {
                        full += u64::from(!files.is_empty());
                        length > 0
                    },
                ) {
                    answered += 1;
                }
                if asked < answered + 4 * connections.len() as u64 {
                    asked +=
                        u64::from(os::send(connection.as_fd(), &message[..length], &[]).is_ok());
                }
            }
        }
        println!("answered {full}");
        drop(closed);
    });
}

/// Creates a file of `mb` MB of allocated memory.
fn memory(mb: u64) -> OwnedFd {
    let file = rustix::fs::memfd_create("burden", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, mb << 20).unwrap();
    file
}

/// Sends registrations with descriptors that it keeps no copy of until the deadline, over
/// `CONNECTIONS`: files of `MB` in memory, or if that is 0 as many pipes as fit.
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
            // The daemon has the last copy, if it has not been quicker.
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
