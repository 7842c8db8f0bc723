//! A client against a process that claims to be the daemon.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{MemfdFlags, SealFlags, ftruncate};
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use upshift_board::layout::GLOBAL_BYTES;
use upshift_board::wire::{self, Reply};
use upshift_board::{Board, JoinError, Standing, VcpuSpec, os};

use crate::process::until;
use crate::{socket, turn};

/// Joins a process that answers the first request at `path` with `answer` and `fds`.
fn join(path: &Path, answer: &[u8], fds: &[OwnedFd]) -> Result<(), JoinError> {
    let _ = std::fs::remove_file(path);
    let listener = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    rustix::net::bind(&listener, &SocketAddrUnix::new(path).unwrap()).unwrap();
    rustix::net::listen(&listener, 1).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let client = rustix::net::accept(&listener).unwrap();
            let mut request = wire::buffer();
            os::receive(client.as_fd(), &mut request, RecvFlags::empty()).unwrap();
            let fds: Vec<_> = fds.iter().map(OwnedFd::as_fd).collect();
            os::send(client.as_fd(), answer, &fds).unwrap();
        });
        let board = Board::new().unwrap();
        let threads = Vec::new();
        let joined = board.join(path, &[VcpuSpec { cpu: 0, threads }]);
        let vcpu = board.vcpu(0).unwrap();
        assert_eq!(vcpu.standing(), Standing::UNCONTESTED);
        // After a welcome, too, the sender exits.
        until("it is alone", || !board.is_joined());
        joined.map(drop)
    })
}

/// Creates a possible global page.
fn page(bytes: usize, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("a false page", flags).unwrap();
    ftruncate(&file, bytes as u64).unwrap();
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file
}

#[test]
fn pages_that_a_false_daemon_could_truncate_and_garbage_are_refused() {
    let _turn = turn();
    let path = socket("false");
    let mut message = wire::buffer();
    let welcome = Reply::Welcome {
        generation: 1,
        session: 1,
        slot: u32::MAX,
        vcpus: 1,
        enforcing: true,
    };
    let length = welcome.encode(&mut message);
    let welcome = &message[..length];
    let sealed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let with = |bytes, seals| [page(bytes, seals), os::doorbell().unwrap()];
    for (what, fds) in [
        ("no seals", with(GLOBAL_BYTES, SealFlags::empty())),
        ("may shrink", with(GLOBAL_BYTES, SealFlags::GROW)),
        ("short", with(GLOBAL_BYTES - 4096, sealed)),
        ("empty", with(0, sealed)),
        ("no file", [(); 2].map(|()| os::doorbell().unwrap())),
    ] {
        let error = join(&path, welcome, &fds).expect_err(what);
        assert!(!error.to_string().is_empty(), "{what}");
    }
    assert!(join(&path, welcome, &[]).is_err(), "no descriptors");
    assert!(join(&path, b"UPBD", &[]).is_err(), "no message");
    assert!(join(&path, &[], &[]).is_err(), "nothing");
    // A complete page is accepted, and a slot beyond it is alone there.
    join(&path, welcome, &with(GLOBAL_BYTES, sealed)).unwrap();
}
