//! Tests of the readiness driver, which these tests select even where io_uring works.
#![cfg(not(loom))]

mod common;

use common::{block_on, drive_until, pair, poll_once};
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

/// An offload that stores its jobs until the test takes them.
#[derive(Debug, Default)]
struct JobStore(Mutex<Vec<(u8, Job)>>);

impl Offload for JobStore {
    fn offload(&self, level: u8, job: Job) {
        self.0.lock().unwrap().push((level, job));
    }
}

impl JobStore {
    fn take(&self) -> Vec<(u8, Job)> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

fn ring_with_store() -> (Ring, Arc<JobStore>) {
    let store = Arc::new(JobStore::default());
    let config = Config {
        offload: Some(store.clone()),
        ..config()
    };
    (Ring::new(config).unwrap(), store)
}

/// Starts to open `/dev/null`, a call that the driver offloads.
fn open(ring: &Ring, level: u8) -> upshift_ring::Submission<op::OpenAt> {
    let open = op::OpenAt::new(None, "/dev/null", libc::O_RDONLY, 0).unwrap();
    ring.start(open, level)
}

#[test]
fn a_blocking_call_runs_in_the_offload_with_its_level() {
    let (ring, store) = ring_with_store();
    let mut opening = open(&ring, 5);
    ring.submit().unwrap();
    let mut jobs = store.take();
    let (level, job) = jobs.pop().unwrap();
    assert!(jobs.is_empty() && level == 5);
    assert!(poll_once(&mut opening).is_pending());
    std::thread::spawn(move || job.run()).join().unwrap();
    drive_until(&ring, || opening.is_complete());
    block_on(&ring, opening).unwrap();
}

#[test]
fn an_operation_whose_job_is_dropped_is_cancelled() {
    let (ring, store) = ring_with_store();
    let opening = open(&ring, 0);
    ring.submit().unwrap();
    drop(store.take());
    let error = block_on(&ring, opening).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
}

#[test]
fn an_operation_whose_job_is_refused_fails_with_the_given_error() {
    let (ring, store) = ring_with_store();
    let opening = open(&ring, 0);
    ring.submit().unwrap();
    for (_, job) in store.take() {
        job.refuse(libc::EAGAIN);
    }
    let error = block_on(&ring, opening).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EAGAIN));
}

#[test]
fn a_job_that_is_cancelled_before_it_runs_does_nothing() {
    let (ring, store) = ring_with_store();
    let path = std::env::temp_dir().join(format!("upshift-ring-{}-never", std::process::id()));
    let directory = op::MkDirAt::new(None, &path, 0o700).unwrap();
    let submission = ring.start(directory, 0);
    ring.submit().unwrap();
    let jobs = store.take();
    drop(submission);
    drive_until(&ring, || ring.in_flight() == 0);
    for (_, job) in jobs {
        job.run();
    }
    assert!(!path.exists());
    ring.submit().unwrap();
    ring.reap();
    assert_eq!((ring.slots_in_use(), ring.stats().stale), (0, 0));
}

#[test]
fn a_dropped_ring_waits_for_a_running_call() {
    let (ring, store) = ring_with_store();
    let opening = open(&ring, 0);
    ring.submit().unwrap();
    let (_, job) = store.take().pop().unwrap();
    // Nothing receives the result any more, so the ring closes the descriptor that the call
    // returns.
    drop(opening);
    let runner = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        job.run();
    });
    drop(ring);
    runner.join().unwrap();
}

#[test]
fn files_and_pipes_are_read_and_written() {
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
            let offset = read.len() as u64;
            let (count, bytes) = ring
                .start(op::ReadAt::new(file.clone(), buffer, offset), 0)
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
        let pending_read = ring.start(read, 0);
        ring.submit().unwrap();
        writer.write_all(b"piped").unwrap();
        let (count, bytes) = pending_read.await;
        assert_eq!((count.unwrap(), &bytes[..]), (5, &b"piped"[..]));
    });
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_descriptor_serves_both_directions_and_many_waiters() {
    let ring = ring();
    let (local, mut peer) = pair();
    let mut stream = ring.recv_multi(local.clone(), 0);
    // The send exceeds the socket's buffer, and waits for space while `stream` receives.
    let data = vec![7u8; 8 << 20];
    let mut send = ring.start(op::Send::new(local.clone(), data).all(), 0);
    let mut polls: Vec<_> = (0..3)
        .map(|_| ring.start(op::PollAdd::new(local.clone(), libc::POLLIN as u32), 0))
        .collect();
    ring.submit().unwrap();
    ring.reap();
    assert!(poll_once(&mut send).is_pending());
    // The driver removes an operation from the middle of its list.
    drop(polls.remove(1));
    peer.write_all(b"in").unwrap();
    let received = block_on(&ring, stream.next()).unwrap();
    assert_eq!(&received[..], b"in");
    for poll in polls {
        let events = block_on(&ring, poll).unwrap();
        assert_ne!(events & libc::POLLIN as u32, 0);
    }
    let reader = std::thread::spawn(move || {
        let mut all = vec![0; 8 << 20];
        peer.read_exact(&mut all).unwrap();
        all.iter().all(|byte| *byte == 7)
    });
    let (sent, _) = block_on(&ring, send);
    assert_eq!(sent.unwrap(), 8 << 20);
    assert!(reader.join().unwrap());
}

#[test]
fn a_receive_with_all_waits_until_its_buffer_is_full() {
    let ring = ring();
    let (local, mut peer) = pair();
    let mut recv = ring.start(op::Recv::new(local, Vec::with_capacity(10)).all(), 0);
    peer.write_all(b"01234").unwrap();
    for _ in 0..20 {
        ring.wait(Some(Duration::from_millis(1))).unwrap();
        ring.reap();
    }
    assert!(poll_once(&mut recv).is_pending());
    peer.write_all(b"56789").unwrap();
    let (count, bytes) = block_on(&ring, recv);
    assert_eq!((count.unwrap(), &bytes[..]), (10, &b"0123456789"[..]));
}

#[test]
fn a_connect_to_a_unix_socket_whose_queue_is_full_is_retried() {
    use std::os::unix::net::UnixListener;
    let ring = ring();
    let path = std::env::temp_dir().join(format!("upshift-ring-{}-full", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    // SAFETY: the call takes no pointers, so it has no preconditions.
    let shortened = unsafe { libc::listen(std::os::fd::AsRawFd::as_raw_fd(&listener), 0) };
    assert_eq!(shortened, 0);
    let address = upshift_ring::Address::unix(&path).unwrap();
    let connect = || {
        // SAFETY: `socket` returns a new descriptor, which has no other owner.
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
    // A cancelled connect does not delay the ring. The socket may have been connected before the
    // cancellation, so the number of accepted connections is not checked.
    drop(pending.pop());
    listener.set_nonblocking(true).unwrap();
    let mut accepted = Vec::new();
    drive_until(&ring, || {
        accepted.extend(listener.accept());
        pending.iter().all(|connect| connect.is_complete())
    });
    for connection in pending.drain(..) {
        block_on(&ring, connection).unwrap();
    }
    drop(pending);
    drive_until(&ring, || ring.in_flight() == 0);
    std::fs::remove_file(path).unwrap();
}

/// An operation that the driver does not support.
struct Unsupported;

// SAFETY: the entry has no pointers, so no memory must stay valid.
unsafe impl Operation for Unsupported {
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
fn an_unsupported_operation_fails_with_unsupported() {
    let ring = ring();
    let error = block_on(&ring, ring.start(Unsupported, 0));
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

/// An offload that panics and thereby drops its job.
#[derive(Debug)]
struct PanickingOffload;

impl Offload for PanickingOffload {
    fn offload(&self, _: u8, _: Job) {
        panic!("an offload that panics");
    }
}

#[test]
fn an_offload_that_panics_ends_its_operation_and_no_other() {
    let config = Config {
        offload: Some(Arc::new(PanickingOffload)),
        ..config()
    };
    let ring = Ring::new(config).unwrap();
    let opens: Vec<_> = (0..3).map(|level| open(&ring, level)).collect();
    let nop = ring.start(op::Nop::new(), 0);
    for open in opens {
        let error = block_on(&ring, open).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
    }
    block_on(&ring, nop).unwrap();
}
