//! Properties of the readiness driver alone, tested whether io_uring works here or not.
#![cfg(not(loom))]

mod common;

use common::{block_on, pair, poll_once, turn_until};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use upshift_ring::{Config, Driver, Entry, Fd, Job, Offload, Operation, Ring, op};

fn config() -> Config {
    Config {
        driver: Driver::Readiness,
        ..Config::default()
    }
}

fn ring() -> Ring {
    Ring::new(config()).unwrap()
}

/// An offload that keeps its jobs.
#[derive(Debug, Default)]
struct Keeper(Mutex<Vec<(u8, Job)>>);

impl Offload for Keeper {
    fn offload(&self, level: u8, job: Job) {
        self.0.lock().unwrap().push((level, job));
    }
}

impl Keeper {
    fn take(&self) -> Vec<(u8, Job)> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

fn ring_with_keeper() -> (Ring, Arc<Keeper>) {
    let keeper = Arc::new(Keeper::default());
    let config = Config {
        offload: Some(keeper.clone()),
        ..config()
    };
    (Ring::new(config).unwrap(), keeper)
}

fn open(ring: &Ring, level: u8) -> upshift_ring::Submission<op::OpenAt> {
    let open = op::OpenAt::new(None, "/dev/null", libc::O_RDONLY, 0).unwrap();
    ring.start(open, level)
}

#[test]
fn a_blocking_call_runs_in_the_offload_with_its_level() {
    let (ring, keeper) = ring_with_keeper();
    let mut file = open(&ring, 5);
    ring.submit().unwrap();
    let mut jobs = keeper.take();
    let (level, job) = jobs.pop().unwrap();
    assert!(jobs.is_empty() && level == 5);
    assert!(poll_once(&mut file).is_pending());
    std::thread::spawn(move || job.run()).join().unwrap();
    turn_until(&ring, || file.is_complete());
    block_on(&ring, file).unwrap();
}

#[test]
fn a_job_that_is_dropped_ends_its_operation() {
    let (ring, keeper) = ring_with_keeper();
    let file = open(&ring, 0);
    ring.submit().unwrap();
    drop(keeper.take());
    let error = block_on(&ring, file).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
}

#[test]
fn a_job_that_is_refused_ends_its_operation_with_the_reason() {
    let (ring, keeper) = ring_with_keeper();
    let file = open(&ring, 0);
    ring.submit().unwrap();
    for (_, job) in keeper.take() {
        job.refuse(libc::EAGAIN);
    }
    let error = block_on(&ring, file).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EAGAIN));
}

#[test]
fn a_job_that_is_cancelled_before_it_runs_does_nothing() {
    let (ring, keeper) = ring_with_keeper();
    let path = std::env::temp_dir().join(format!("upshift-ring-{}-never", std::process::id()));
    let directory = op::MkDirAt::new(None, &path, 0o700).unwrap();
    let submission = ring.start(directory, 0);
    ring.submit().unwrap();
    let jobs = keeper.take();
    drop(submission);
    turn_until(&ring, || ring.in_flight() == 0);
    for (_, job) in jobs {
        job.run();
    }
    assert!(!path.exists());
    ring.submit().unwrap();
    ring.reap();
    assert_eq!((ring.slots_in_use(), ring.stats().stale), (0, 0));
}

#[test]
fn a_ring_waits_for_a_call_that_is_under_way() {
    let (ring, keeper) = ring_with_keeper();
    let file = open(&ring, 0);
    ring.submit().unwrap();
    let (_, job) = keeper.take().pop().unwrap();
    // The handle is dropped; the ring closes the result, a descriptor.
    drop(file);
    let late = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        job.run();
    });
    drop(ring);
    late.join().unwrap();
}

#[test]
fn files_are_read_and_written_from_the_cache_or_by_a_thread() {
    let ring = ring();
    let path = std::env::temp_dir().join(format!("upshift-ring-{}-file", std::process::id()));
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC;
    block_on(&ring, async {
        let open = op::OpenAt::new(None, &path, flags, 0o600).unwrap();
        let file = Fd::new(ring.start(open, 0).await.unwrap());
        let data: Vec<u8> = (0..100_000u32).map(|n| n as u8).collect();
        let mut written = 0;
        while written < data.len() {
            let rest = data[written..].to_vec();
            let write = op::WriteAt::new(file.clone(), rest, written as u64);
            written += ring.start(write, 0).await.0.unwrap();
        }
        ring.start(op::Fsync::data(file.clone()), 0).await.unwrap();
        let mut read = Vec::new();
        loop {
            let buffer = Vec::with_capacity(7777);
            let at = read.len() as u64;
            let (count, bytes) = ring
                .start(op::ReadAt::new(file.clone(), buffer, at), 0)
                .await;
            if count.unwrap() == 0 {
                break;
            }
            read.extend_from_slice(&bytes);
        }
        assert!(read == data);
        // A descriptor without a position is read in order, regardless of the offset.
        let (reader, mut writer) = std::io::pipe().unwrap();
        let reader = Fd::new(OwnedFd::from(reader));
        let read = op::ReadAt::new(reader, Vec::with_capacity(9), 3);
        let waits = ring.start(read, 0);
        ring.submit().unwrap();
        writer.write_all(b"piped").unwrap();
        let (count, bytes) = waits.await;
        assert_eq!((count.unwrap(), &bytes[..]), (5, &b"piped"[..]));
    });
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_descriptor_serves_both_directions_and_many_waiters() {
    let ring = ring();
    let (ours, mut theirs) = pair();
    let mut stream = ring.recv_multi(ours.clone(), 0);
    // More than the socket takes: the send waits for room while the other direction receives.
    let much = vec![7u8; 8 << 20];
    let mut sends = ring.start(op::Send::new(ours.clone(), much).all(), 0);
    let mut waits: Vec<_> = (0..3)
        .map(|_| ring.start(op::PollAdd::new(ours.clone(), libc::POLLIN as u32), 0))
        .collect();
    ring.submit().unwrap();
    ring.reap();
    assert!(poll_once(&mut sends).is_pending());
    // Removes an operation from the middle of the list.
    drop(waits.remove(1));
    theirs.write_all(b"in").unwrap();
    let received = block_on(&ring, stream.next()).unwrap();
    assert_eq!(&received[..], b"in");
    for wait in waits {
        let events = block_on(&ring, wait).unwrap();
        assert_ne!(events & libc::POLLIN as u32, 0);
    }
    let reader = std::thread::spawn(move || {
        let mut all = vec![0; 8 << 20];
        theirs.read_exact(&mut all).unwrap();
        all.iter().all(|byte| *byte == 7)
    });
    let (sent, _) = block_on(&ring, sends);
    assert_eq!(sent.unwrap(), 8 << 20);
    assert!(reader.join().unwrap());
}

#[test]
fn a_receive_of_all_waits_for_all() {
    let ring = ring();
    let (ours, mut theirs) = pair();
    let mut all = ring.start(op::Recv::new(ours, Vec::with_capacity(10)).all(), 0);
    theirs.write_all(b"01234").unwrap();
    for _ in 0..20 {
        ring.wait(Some(Duration::from_millis(1))).unwrap();
        ring.reap();
    }
    assert!(poll_once(&mut all).is_pending());
    theirs.write_all(b"56789").unwrap();
    let (count, bytes) = block_on(&ring, all);
    assert_eq!((count.unwrap(), &bytes[..]), (10, &b"0123456789"[..]));
}

#[test]
fn a_local_socket_whose_queue_is_full_is_tried_again() {
    use std::os::unix::net::UnixListener;
    let ring = ring();
    let path = std::env::temp_dir().join(format!("upshift-ring-{}-full", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    // SAFETY: no pointers involved.
    let shortened = unsafe { libc::listen(std::os::fd::AsRawFd::as_raw_fd(&listener), 0) };
    assert_eq!(shortened, 0);
    let address = upshift_ring::Address::unix(&path).unwrap();
    let connect = || {
        // SAFETY: a fresh descriptor.
        let socket = unsafe {
            let fd = libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
            <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd)
        };
        ring.start(op::Connect::new(Fd::new(socket), address), 0)
    };
    let mut pending: Vec<_> = (0..4).map(|_| connect()).collect();
    ring.submit().unwrap();
    ring.reap();
    assert!(!pending.iter().all(|connect| connect.is_complete()));
    // A cancelled connect does not delay the ring.
    // One that gives up does not hold the ring up.
    drop(pending.pop());
    // The cancelled one may have connected all the same, so the number of connections is open.
    listener.set_nonblocking(true).unwrap();
    let mut accepted = Vec::new();
    turn_until(&ring, || {
        accepted.extend(listener.accept());
        pending.iter().all(|connect| connect.is_complete())
    });
    for connection in pending.drain(..) {
        block_on(&ring, connection).unwrap();
    }
    drop(pending);
    turn_until(&ring, || ring.in_flight() == 0);
    std::fs::remove_file(path).unwrap();
}

/// An operation whose entry the driver does not support.
struct Unknown;

// SAFETY: the entry has no pointers.
unsafe impl Operation for Unknown {
    type Output = std::io::Error;

    fn entry(&mut self) -> Entry {
        io_uring::opcode::EpollCtl::new(
            io_uring::types::Fd(-1),
            io_uring::types::Fd(-1),
            0,
            std::ptr::null(),
        )
        .build()
    }

    fn complete(self, result: i32, _flags: u32) -> std::io::Error {
        std::io::Error::from_raw_os_error(-result)
    }
}

#[test]
fn an_unsupported_operation_fails_as_such() {
    let ring = ring();
    let error = block_on(&ring, ring.start(Unknown, 0));
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

/// An offload that panics, and so drops its job.
#[derive(Debug)]
struct Panics;

impl Offload for Panics {
    fn offload(&self, _: u8, _: Job) {
        panic!("an offload that panics");
    }
}

#[test]
fn an_offload_that_panics_ends_its_operation_and_no_other() {
    let config = Config {
        offload: Some(Arc::new(Panics)),
        ..config()
    };
    let ring = Ring::new(config).unwrap();
    let opens: Vec<_> = (0..3).map(|level| open(&ring, level)).collect();
    let nop = ring.start(op::Nop::new(), 0);
    for open in opens {
        let ended = block_on(&ring, open).unwrap_err();
        assert_eq!(ended.raw_os_error(), Some(libc::ECANCELED));
    }
    block_on(&ring, nop).unwrap();
}
