//! Tests of clients that connect to a process that only claims to be the daemon.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{MemfdFlags, SealFlags, ftruncate};
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use upshift_board::layout::GLOBAL_BYTES;
use upshift_board::wire::{self, Reply};
use upshift_board::{Board, JoinError, Standing, VcpuSpec, os};

use crate::process::wait_until;
use crate::{serial_test, socket};

/// Joins a false daemon at `path`, which answers the first request with `answer` and `fds`. Returns
/// the outcome for the client.
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
        // The false daemon ends after its answer, even if it has accepted the client.
        wait_until("the client notices the end of the daemon", || {
            !board.is_joined()
        });
        joined.map(drop)
    })
}

/// Creates a file of `bytes` with `seals`, which may be valid as a global page.
fn page(bytes: usize, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("a false page", flags).unwrap();
    ftruncate(&file, bytes as u64).unwrap();
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file
}

#[test]
fn a_client_refuses_pages_that_the_daemon_could_truncate_and_invalid_messages() {
    let _guard = serial_test();
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
    let page_and_doorbell = |bytes, seals| [page(bytes, seals), os::doorbell().unwrap()];
    for (case, fds) in [
        (
            "no seals",
            page_and_doorbell(GLOBAL_BYTES, SealFlags::empty()),
        ),
        (
            "may shrink",
            page_and_doorbell(GLOBAL_BYTES, SealFlags::GROW),
        ),
        ("short", page_and_doorbell(GLOBAL_BYTES - 4096, sealed)),
        ("empty", page_and_doorbell(0, sealed)),
        ("no file", [(); 2].map(|()| os::doorbell().unwrap())),
    ] {
        let error = join(&path, welcome, &fds).expect_err(case);
        assert!(!error.to_string().is_empty(), "{case}");
    }
    assert!(
        join(&path, welcome, &[]).is_err(),
        "a welcome without descriptors is accepted"
    );
    assert!(
        join(&path, b"UPBD", &[]).is_err(),
        "a truncated message is accepted"
    );
    assert!(
        join(&path, &[], &[]).is_err(),
        "an empty message is accepted"
    );
    // A valid page is accepted. The client's slot is beyond the page, so the client is alone.
    join(&path, welcome, &page_and_doorbell(GLOBAL_BYTES, sealed)).unwrap();
}
