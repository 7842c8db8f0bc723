//! Child processes that flood the daemon with connections, registrations or descriptors.

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

use crate::child::{number, pin, setting, wait_for_parent};
use crate::client::{Registration, connect, register, start_blocked_threads};
use crate::process::monotonic;

/// Registers as many vCPUs without threads as possible on `CPU`, and rings all their doorbells
/// until the deadline.
pub(crate) fn vcpu_flood() {
    let cpu = number("CPU") as u32;
    let path = PathBuf::from(setting("SOCKET"));
    let mut registrations = Vec::new();
    let mut count = 0;
    for vcpus in [63, 8, 1] {
        loop {
            let connection = connect(&path);
            let (file, page) = os::local_page().unwrap();
            for vcpu in 0..vcpus {
                let line = page.vcpu(vcpu).unwrap();
                line.set_running((16 + (count + vcpu) % 48) as u8);
            }
            let Ok(doorbells) = register(&connection, &vec![cpu; vcpus], &[], &file) else {
                break;
            };
            count += vcpus;
            registrations.push((connection, page, doorbells));
            if count > 2000 {
                break;
            }
        }
    }
    println!("ready {count}");
    let deadline = wait_for_parent();
    while monotonic() < deadline {
        for (_, _, doorbells) in &registrations {
            for doorbell in &doorbells[1..] {
                os::ring(doorbell).unwrap();
            }
        }
    }
    println!("done");
    wait_for_parent();
}

/// Opens a connection as each of `USERS` users, from the user `FIRST` on, and keeps the connections
/// open.
pub(crate) fn many_users() {
    let path = PathBuf::from(setting("SOCKET"));
    let (mut connections, first) = (Vec::new(), number("FIRST") as u32);
    for user in 0..number("USERS") as u32 {
        // SAFETY: the calls have only integer arguments. They change the user of this thread only.
        unsafe { libc::syscall(libc::SYS_setresuid, -1, first + user, -1) };
        connections.push(connect(&path));
        // SAFETY: the call has only integer arguments.
        unsafe { libc::syscall(libc::SYS_setresuid, -1, 0, -1) };
    }
    println!("ready {}", connections.len());
    wait_for_parent();
    let is_open = |socket: &&OwnedFd| {
        let mut answer = wire::buffer();
        let received = os::receive(socket.as_fd(), &mut answer, RecvFlags::DONTWAIT);
        received.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    };
    println!("open {}", connections.iter().filter(is_open).count());
    wait_for_parent();
}

/// Opens and closes connections in `THREADS` threads until the deadline. Prints the number of
/// connections.
pub(crate) fn connection_flood() {
    println!("ready");
    let deadline = wait_for_parent();
    let connections = AtomicU64::new(0);
    let path = PathBuf::from(setting("SOCKET"));
    std::thread::scope(|scope| {
        for _ in 0..number("THREADS") {
            scope.spawn(|| {
                while monotonic() < deadline {
                    drop(connect(&path));
                    connections.fetch_add(1, Relaxed);
                }
            });
        }
    });
    println!("connections {}", connections.load(Relaxed));
    wait_for_parent();
}

/// Registers over `CONNECTIONS` connections. Over each, adds and removes a thread as fast as the
/// daemon answers, until the deadline. Prints the number of updates.
pub(crate) fn update_flood() {
    pin(number("CPU") as usize);
    let path = PathBuf::from(setting("SOCKET"));
    println!("ready");
    let deadline = wait_for_parent();
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..number("CONNECTIONS") {
            scope.spawn(|| {
                let own_thread = Thread {
                    tid: current_tid(),
                    vcpu: 0,
                    role: Role::Worker,
                };
                let connection = connect(&path);
                let (file, _page) = os::local_page().unwrap();
                register(&connection, &[number("CPU") as u32], &[], &file).unwrap();
                let (mut add, mut remove) = (wire::buffer(), wire::buffer());
                let lengths = [
                    wire::encode_update(&mut add, &[own_thread], &[]).unwrap(),
                    wire::encode_update(&mut remove, &[], &[own_thread.tid]).unwrap(),
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
    wait_for_parent();
}

/// Registers `REGISTRATIONS` times with 64 threads each, and requests censuses over 64 connections
/// until the deadline. Prints the number of censuses with contents.
pub(crate) fn census_flood() {
    pin(number("CPU") as usize);
    let mutex = std::sync::Mutex::new(());
    let guard = mutex.lock().unwrap();
    std::thread::scope(|scope| {
        let tids = start_blocked_threads(&mutex, scope, number("REGISTRATIONS") * 64);
        let _registrations: Vec<Registration> = tids.chunks(64).map(Registration::new).collect();
        let path = PathBuf::from(setting("SOCKET"));
        let connections: Vec<OwnedFd> = (0..64).map(|_| connect(&path)).collect();
        println!("ready");
        let deadline = wait_for_parent();
        let mut message = wire::buffer();
        let length = wire::encode_census(&mut message);
        let (mut requested, mut answered, mut with_contents) = (0u64, 0u64, 0u64);
        while monotonic() < deadline {
            for connection in &connections {
                let mut answer = wire::buffer();
                while os::receive(connection.as_fd(), &mut answer, RecvFlags::DONTWAIT).is_ok_and(
                    |(length, files)| {
                        with_contents += u64::from(!files.is_empty());
                        length > 0
                    },
                ) {
                    answered += 1;
                }
                if requested < answered + 4 * connections.len() as u64 {
                    requested +=
                        u64::from(os::send(connection.as_fd(), &message[..length], &[]).is_ok());
                }
            }
        }
        println!("answered {with_contents}");
        drop(guard);
    });
}

fn memory_file(mb: u64) -> OwnedFd {
    let file = rustix::fs::memfd_create("upshift-test", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, mb << 20).unwrap();
    file
}

/// Sends registrations with descriptors over `CONNECTIONS` connections until the deadline, and
/// keeps no copies. The descriptors are memory files of `MB` MiB, or as many pipes as fit if `MB`
/// is 0.
pub(crate) fn descriptor_sender() {
    let path = PathBuf::from(setting("SOCKET"));
    let mut connections: Vec<OwnedFd> =
        (0..number("CONNECTIONS")).map(|_| connect(&path)).collect();
    println!("ready");
    let (deadline, mb) = (wait_for_parent(), number("MB"));
    let mut message = wire::buffer();
    let length = wire::encode_register(&mut message, &[0], &[]).unwrap();
    let mut sent = 0u64;
    while monotonic() < deadline {
        for connection in &mut connections {
            let files_to_send: Vec<OwnedFd> = match mb {
                0 => {
                    let pipes = (0..os::DESCRIPTORS / 2).map(|_| std::io::pipe().unwrap());
                    pipes
                        .flat_map(|(reader, writer)| [reader.into(), writer.into()])
                        .collect()
                }
                mb => vec![memory_file(mb)],
            };
            let files: Vec<_> = files_to_send.iter().map(AsFd::as_fd).collect();
            let outcome = os::send(connection.as_fd(), &message[..length], &files);
            // The daemon now has the last copy, unless it has closed its copy already.
            drop(files);
            drop(files_to_send);
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
    wait_for_parent();
}
