//! Tests of rings with small queues: submissions that must wait, completions that overflow, and the
//! number of system calls.
#![cfg(not(loom))]

mod common;
use common::{Job, block_on, drive_until, poll_once, run_all};
use std::cell::Cell;
use std::io::Read;
use upshift_ring::{Config, Fd, Mode, Ring, op};

#[test]
fn operations_beyond_the_queue_are_submitted_by_level_then_by_age() {
    let ring = Ring::new(Config {
        entries: 1,
        ..Config::default()
    })
    .unwrap();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let fd = Fd::new(std::os::fd::OwnedFd::from(writer));
    let write = |byte: u8, level| ring.start(op::WriteAt::new(fd.clone(), [byte], u64::MAX), level);
    // The first operation enters the queue regardless of its level.
    let mut operations = vec![write(b'0', 63)];
    // Level 200 counts as 63, so `h` follows `g`.
    for (byte, level) in [
        (b'g', 63),
        (b'e', 9),
        (b'a', 0),
        (b'f', 9),
        (b'b', 0),
        (b'h', 200),
        (b'c', 1),
        (b'd', 2),
    ] {
        operations.push(write(byte, level));
    }
    assert_eq!(ring.pending_submissions(), 9);
    ring.submit().unwrap();
    drive_until(&ring, || operations.iter_mut().all(|op| op.is_complete()));
    let mut bytes = [0; 9];
    reader.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"0abcdefgh");
    assert_eq!(ring.stats().backlog_max, 8);
    assert_eq!(ring.pending_submissions(), 0);
}

#[test]
fn an_operation_dropped_in_the_backlog_is_never_started() {
    let ring = Ring::new(Config {
        entries: 1,
        ..Config::default()
    })
    .unwrap();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let fd = Fd::new(std::os::fd::OwnedFd::from(writer));
    let write = |byte: u8| ring.start(op::WriteAt::new(fd.clone(), [byte], u64::MAX), 0);
    let (first, second, mut third) = (write(b'1'), write(b'2'), write(b'3'));
    let fourth = write(b'4');
    drop(second);
    third.cancel();
    let (result, buffer) = block_on(&ring, third);
    assert_eq!(
        (result.unwrap_err().raw_os_error(), buffer),
        (Some(libc::ECANCELED), *b"3")
    );
    block_on(&ring, async {
        first.await.0.unwrap();
        fourth.await.0.unwrap();
    });
    let mut bytes = [0; 2];
    reader.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"14");
    assert_eq!(ring.slots_in_use(), 0);
}

#[test]
fn a_completion_queue_that_overflows_loses_nothing() {
    if !common::has_io_uring() {
        return;
    }
    for mode in [Mode::DeferTaskrun, Mode::CoopTaskrun, Mode::Plain] {
        let ring = Ring::new(Config {
            entries: 4,
            cq_entries: 4,
            mode,
            ..common::io_uring_config()
        })
        .unwrap();
        let done = Cell::new(0);
        let jobs = (0..500)
            .map(|_| -> Job<'_> {
                Box::pin(async {
                    ring.start(op::Nop::new(), 0).await.unwrap();
                    done.set(done.get() + 1);
                })
            })
            .collect();
        run_all(&ring, jobs);
        assert_eq!(done.get(), 500);
        assert_eq!((ring.in_flight(), ring.slots_in_use()), (0, 0));
        assert!(ring.stats().overflows > 0, "{mode:?}: {:?}", ring.stats());
    }
}

#[test]
fn completions_of_hundreds_of_pollers_pass_through_a_tiny_queue() {
    let ring = Ring::new(Config {
        entries: 8,
        cq_entries: 8,
        ..Config::default()
    })
    .unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    let fd = Fd::new(std::os::fd::OwnedFd::from(reader));
    let mut polls: Vec<_> = (0..300)
        .map(|_| ring.start(op::PollAdd::new(fd.clone(), libc::POLLIN as u32), 0))
        .collect();
    ring.submit().unwrap();
    ring.reap();
    // One write completes all polls at once.
    std::io::Write::write_all(&mut &writer, b"x").unwrap();
    drive_until(&ring, || polls.iter_mut().all(|poll| poll.is_complete()));
    for poll in &mut polls {
        assert!(poll_once(poll).is_ready());
    }
    assert_eq!(ring.slots_in_use(), 0);
}

#[test]
fn has_arrivals_sees_completions_that_the_kernel_holds_back() {
    let ring = Ring::new(Config::default()).unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    let fd = Fd::new(std::os::fd::OwnedFd::from(reader));
    let mut poll = ring.start(op::PollAdd::new(fd, libc::POLLIN as u32), 0);
    ring.submit().unwrap();
    ring.reap();
    assert!(!ring.has_arrivals());
    std::io::Write::write_all(&mut &writer, b"x").unwrap();
    assert!(ring.has_arrivals());
    ring.submit().unwrap();
    assert_eq!(ring.reap(), 1);
    assert!(!ring.has_completions() && !ring.has_arrivals());
    assert!(poll_once(&mut poll).is_ready());
}

#[test]
fn an_idle_submit_makes_no_system_call() {
    let ring = Ring::new(Config::default()).unwrap();
    block_on(&ring, ring.start(op::Nop::new(), 0)).unwrap();
    let before = ring.stats().enters;
    for _ in 0..100 {
        ring.submit().unwrap();
        ring.reap();
    }
    assert_eq!(ring.stats().enters, before);
}

#[test]
fn a_waker_may_start_operations_and_reap() {
    use std::sync::{Arc, Mutex};
    use std::task::{Context, Wake, Waker};
    struct Restart(*const Ring, Mutex<Vec<upshift_ring::Submission<op::Nop>>>);
    // SAFETY: the test uses the waker on one thread.
    unsafe impl Send for Restart {}
    // SAFETY: as above.
    unsafe impl Sync for Restart {}
    impl Wake for Restart {
        fn wake(self: Arc<Self>) {
            // SAFETY: the ring outlives the wakers in this test.
            let ring = unsafe { &*self.0 };
            let next = ring.start(op::Nop::new(), 0);
            self.1.lock().unwrap().push(next);
            ring.submit().unwrap();
            ring.reap();
        }
    }
    let ring = Ring::new(Config::default()).unwrap();
    let restart = Arc::new(Restart(&raw const ring, Mutex::new(Vec::new())));
    let waker = Waker::from(restart.clone());
    let mut nops: Vec<_> = (0..10).map(|_| ring.start(op::Nop::new(), 0)).collect();
    for nop in &mut nops {
        assert!(
            std::pin::Pin::new(nop)
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
    }
    ring.submit().unwrap();
    ring.reap();
    assert!(nops.iter().all(|nop| nop.is_complete()));
    let started = std::mem::take(&mut *restart.1.lock().unwrap());
    assert_eq!(started.len(), 10);
    drive_until(&ring, || started.iter().all(|nop| nop.is_complete()));
    drop((nops, started));
    assert_eq!(ring.slots_in_use(), 0);
}
