//! Tests of cancellation: handles that are dropped before their operations complete, and rings that
//! are dropped before their handles.
#![cfg(not(loom))]

mod common;
use common::{block_on, drive_until, pair, poll_once, ring};
use std::io::{Read, Write};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use upshift_ring::{Config, Fd, Mode, Ring, op};

#[test]
fn a_buffer_outlives_the_handle_of_its_receive() {
    for mode in [Mode::DeferTaskrun, Mode::CoopTaskrun, Mode::Plain] {
        let ring = Ring::new(Config {
            mode,
            ..Config::default()
        })
        .unwrap();
        let (fd, mut peer) = pair();
        for round in 0..50 {
            let mut recv = ring.start(op::Recv::new(fd.clone(), vec![0; 4096]), 0);
            assert!(poll_once(&mut recv).is_pending());
            if round % 2 == 0 {
                ring.submit().unwrap();
            }
            drop(recv);
            // If the buffer had been freed, the allocator would reuse its memory here.
            let other = vec![0xaa; 4096];
            peer.write_all(&[0x55; 512]).unwrap();
            drive_until(&ring, || ring.slots_in_use() == 0);
            assert!(other.iter().all(|byte| *byte == 0xaa));
        }
    }
}

#[test]
fn a_cancelled_operation_returns_its_buffer() {
    let ring = ring();
    let (fd, _peer) = pair();
    let mut recv = ring.start(op::Recv::new(fd, vec![3; 77]), 0);
    assert!(poll_once(&mut recv).is_pending());
    ring.submit().unwrap();
    recv.cancel();
    recv.cancel();
    let (result, buffer) = block_on(&ring, recv);
    assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
    assert_eq!(buffer, vec![3; 77]);
}

#[test]
fn a_late_cancellation_does_not_hit_the_next_occupant_of_the_slot() {
    let ring = ring();
    let (fd, mut peer) = pair();
    for _ in 0..50 {
        // The operation is complete but not reaped, so its cancellation comes too late.
        let nop = ring.start(op::Nop::new(), 0);
        ring.submit().unwrap();
        drop(nop);
        assert_eq!(ring.pending_submissions(), 1);
        ring.reap();
        // The slot is reused before the cancellation reaches the kernel.
        assert_eq!(ring.slots_in_use(), 0);
        let mut recv = ring.start(op::Recv::new(fd.clone(), vec![0; 8]), 0);
        for _ in 0..3 {
            ring.submit().unwrap();
            ring.reap();
        }
        assert!(
            poll_once(&mut recv).is_pending(),
            "the wrong operation was cancelled"
        );
        peer.write_all(b"x").unwrap();
        assert_eq!(block_on(&ring, recv).0.unwrap(), 1);
    }
    assert_eq!(ring.stats().stale, 0);
}

#[test]
fn a_descriptor_stays_open_until_its_operation_completes() {
    let ring = ring();
    let (fd, mut peer) = pair();
    let recv = ring.start(op::Recv::new(fd.clone(), vec![0; 8]), 0);
    ring.submit().unwrap();
    drop(fd);
    peer.set_nonblocking(true).unwrap();
    assert_eq!(
        peer.read(&mut [0]).unwrap_err().kind(),
        std::io::ErrorKind::WouldBlock
    );
    drop(recv);
    drive_until(&ring, || ring.slots_in_use() == 0);
    peer.set_nonblocking(false).unwrap();
    assert_eq!(peer.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_ring_dropped_with_operations_in_flight_drains_first() {
    for mode in [Mode::DeferTaskrun, Mode::CoopTaskrun, Mode::Plain] {
        let ring = Ring::new(Config {
            mode,
            entries: 8,
            ..Config::default()
        })
        .unwrap();
        let marker: Arc<[u8]> = Arc::from(vec![1; 100]);
        let (fd, peer) = pair();
        let (listener, _) = listener();
        // The operations are submitted, queued, or in the backlog.
        let mut recvs = Vec::new();
        for _ in 0..20 {
            recvs.push(ring.start(op::Recv::new(fd.clone(), vec![7; 64]), 0));
        }
        ring.submit().unwrap();
        for _ in 0..20 {
            recvs.push(ring.start(op::Recv::new(fd.clone(), vec![7; 64]), 0));
        }
        let mut poll = ring.start(op::PollAdd::new(listener.clone(), libc::POLLIN as u32), 0);
        assert!(poll_once(&mut poll).is_pending());
        let mut incoming = ring.accept_multi(listener, 0);
        let mut stream = ring.recv_multi(fd.clone(), 0);
        drop(ring.start(op::Send::new(fd.clone(), marker.clone()), 0));
        drop(ring);
        for recv in recvs.iter_mut().take(39) {
            let Poll::Ready((result, buffer)) = poll_once(recv) else {
                panic!("an operation is still pending");
            };
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
            assert_eq!(buffer, vec![7; 64]);
        }
        let Poll::Ready(Err(error)) = poll_once(&mut poll) else {
            panic!("an operation is still pending");
        };
        assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        for _ in 0..2 {
            assert!(matches!(incoming.poll_next(&mut cx), Poll::Ready(Err(_))));
        }
        assert!(matches!(stream.poll_next(&mut cx), Poll::Ready(Err(_))));
        // The last receive is dropped without having been polled.
        drop((recvs, poll, incoming, stream));
        assert_eq!(Arc::strong_count(&marker), 1);
        assert!(
            fd.try_into_owned().is_ok(),
            "an operation still holds the descriptor"
        );
        drop(peer);
    }
}

fn listener() -> (Fd, std::net::SocketAddr) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (Fd::new(std::os::fd::OwnedFd::from(listener)), address)
}

#[test]
fn shutdown_wakes_waiters_and_refuses_later_operations() {
    let ring = ring();
    let (fd, _peer) = pair();
    let flag = common::Flag::new(&ring);
    flag.take();
    let waker = std::task::Waker::from(flag.clone());
    let mut cx = std::task::Context::from_waker(&waker);
    let mut recv = ring.start(op::Recv::new(fd.clone(), vec![0; 8]), 0);
    assert!(std::pin::Pin::new(&mut recv).poll(&mut cx).is_pending());
    ring.wait(Some(Duration::ZERO)).unwrap();
    ring.shutdown();
    assert!(flag.take(), "the waiter was not woken");
    assert_eq!(ring.in_flight(), 0);
    let late = ring.start(op::Recv::new(fd.clone(), vec![1; 3]), 0);
    let (result, buffer) = block_on(&ring, late);
    assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
    assert_eq!(buffer, [1; 3]);
    assert!(block_on(&ring, ring.recv_multi(fd, 0).next()).is_err());
    // A closed ring does not sleep, and a second shutdown has no effect.
    ring.wait(None).unwrap();
    ring.shutdown();
    let remote = ring.remote();
    drop(ring);
    remote.kick();
    drop(recv);
}

/// The buffer of the dropped operation is the last owner of the ring. Dropping the operation must
/// drop the ring, too, and close the connection.
#[test]
fn a_ring_may_be_dropped_by_one_of_its_operations() {
    struct RingOwner(std::rc::Rc<Ring>, [u8; 4]);
    // SAFETY: the ring and its owners stay on this thread, so no other thread uses them.
    unsafe impl Send for RingOwner {}
    // SAFETY: the bytes are inside the operation, which does not move.
    unsafe impl upshift_ring::IoBuf for RingOwner {
        fn io_ptr(&self) -> *const u8 {
            self.1.as_ptr()
        }
        fn io_len(&self) -> usize {
            self.0.mode();
            4
        }
    }
    let ring = std::rc::Rc::new(ring());
    let (fd, mut peer) = pair();
    let send = ring.start(op::Send::new(fd, RingOwner(ring.clone(), *b"last")), 0);
    drive_until(&ring, || send.is_complete());
    drop(ring);
    drop(send);
    let mut bytes = [0; 4];
    peer.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"last");
    assert_eq!(peer.read(&mut bytes).unwrap(), 0);
}

#[test]
fn streams_dropped_while_data_arrives_end() {
    let ring = Ring::new(Config {
        buffers: 256,
        buffer_size: 64,
        ..Config::default()
    })
    .unwrap();
    for _ in 0..20 {
        let (fd, mut peer) = pair();
        let writer = std::thread::spawn(move || {
            // The writes fail when the ring has closed its end.
            while peer.write_all(&[1; 4096]).is_ok() {}
        });
        let mut stream = ring.recv_multi(fd, 0);
        block_on(&ring, async {
            assert!(!stream.next().await.unwrap().is_empty());
        });
        drop(stream);
        drive_until(&ring, || ring.slots_in_use() == 0);
        writer.join().unwrap();
    }
}
