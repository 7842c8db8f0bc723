//! Tests of rings after `fork`. A child that uses its parent's ring must fault, because the queues
//! are not mapped in the child.
#![cfg(not(loom))]

mod common;
use common::block_on;
use std::io::{Read, Write};
use upshift_ring::{Fd, Mode, Ring, op};

/// Runs `f` in a forked child and returns the child's wait status.
fn run_in_child(f: impl FnOnce()) -> libc::c_int {
    // SAFETY: the child calls `f` and exits without returning to the parent's code.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        // SAFETY: the calls take no pointers to memory. The alarm ends a child that hangs; the
        // default action reports a fault.
        unsafe {
            libc::alarm(60);
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
        }
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
        // SAFETY: as above.
        unsafe { libc::_exit(i32::from(ended.is_err())) }
    }
    let mut status = 0;
    // SAFETY: `status` is writable and outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

#[test]
fn a_child_that_uses_the_ring_of_its_parent_faults_and_the_parent_continues() {
    let ring = Ring::new(upshift_ring::Config::default()).unwrap();
    if ring.mode() == Mode::Readiness {
        return println!("skipped: without io_uring, a ring shares no memory with the kernel");
    }
    let (reader, writer) = std::io::pipe().unwrap();
    let fd = Fd::new(std::os::fd::OwnedFd::from(writer));
    let write = |byte: u8| op::WriteAt::new(fd.clone(), [byte], u64::MAX);
    let status = run_in_child(|| {
        let started = ring.start(write(b'x'), 0);
        let _ = ring.submit();
        std::mem::forget(started);
    });
    let signal = libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status));
    assert_eq!(signal, Some(libc::SIGSEGV), "status {status}");
    for byte in *b"abc" {
        let (result, _) = block_on(&ring, ring.start(write(byte), 0));
        assert_eq!(result.unwrap(), 1);
    }
    drop(fd);
    drop(ring);
    let mut bytes = Vec::new();
    std::io::BufReader::new(reader)
        .take(64)
        .read_to_end(&mut bytes)
        .unwrap();
    assert_eq!(bytes, b"abc", "the child wrote into the parent's queue");
}

/// The parent has a ring, too. The child's ring must work.
#[test]
fn a_child_may_create_a_ring() {
    let _parent_ring = Ring::new(upshift_ring::Config::default()).unwrap();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let status = run_in_child(|| {
        let ring = Ring::new(upshift_ring::Config::default()).unwrap();
        let fd = Fd::new(std::os::fd::OwnedFd::from(writer.try_clone().unwrap()));
        let write = ring.start(op::WriteAt::new(fd, *b"x", u64::MAX), 0);
        assert_eq!(block_on(&ring, write).0.unwrap(), 1);
    });
    assert_eq!(status, 0);
    (&writer).write_all(b"y").unwrap();
    drop(writer);
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, b"xy");
}
