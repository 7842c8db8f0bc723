//! Tests of submissions, streams and buffers that are used on other threads than their ring's, and
//! of waking the ring's thread.
#![cfg(not(loom))]

mod common;
use common::{TIMEOUT, block_on, drive_until, pair, poll_once, ring};
use std::future::Future;
use std::io::{Read, Write};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};
use upshift_ring::{Config, Ring, op};

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future to its end on a thread that has no ring.
fn park_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut cx = Context::from_waker(&waker);
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        assert!(Instant::now() < deadline, "the future was not woken");
        thread::park_timeout(TIMEOUT);
    }
}

/// Waits on the ring and reaps until the other threads have set `done`. If a wake is lost, the wait
/// lasts too long, which fails the test.
fn serve(ring: &Ring, done: &AtomicBool) {
    let start = Instant::now();
    while !done.load(Ordering::SeqCst) {
        ring.wait(Some(TIMEOUT)).unwrap();
        ring.reap();
        assert!(start.elapsed() < TIMEOUT, "a wake-up was lost");
    }
}

#[test]
fn handles_are_send() {
    fn check<T: Send + Sync>() {}
    check::<upshift_ring::Submission<op::Recv<Vec<u8>>>>();
    check::<upshift_ring::AcceptMulti>();
    check::<upshift_ring::RecvMulti>();
    check::<upshift_ring::RecvBuf>();
    check::<upshift_ring::Remote>();
}

#[test]
fn a_submission_is_polled_on_two_threads_in_turn() {
    let ring = ring();
    for _ in 0..200 {
        let (fd, mut peer) = std::os::unix::net::UnixStream::pair().unwrap();
        let fd = upshift_ring::Fd::new(std::os::fd::OwnedFd::from(fd));
        let mut recv = ring.start(op::Recv::new(fd, vec![0; 16]), 0);
        assert!(poll_once(&mut recv).is_pending());
        ring.submit().unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let (finished, remote) = (done.clone(), ring.remote());
        let other = thread::spawn(move || {
            let (count, buffer) = park_on(recv);
            finished.store(true, Ordering::SeqCst);
            remote.kick();
            (count.unwrap(), buffer)
        });
        peer.write_all(b"moved").unwrap();
        serve(&ring, &done);
        let (count, buffer) = other.join().unwrap();
        assert_eq!((count, buffer.as_slice()), (5, &b"moved"[..]));
    }
    drive_until(&ring, || ring.slots_in_use() == 0);
}

#[test]
fn a_submission_dropped_on_another_thread_is_cancelled() {
    let ring = ring();
    let (fd, _peer) = pair();
    for round in 0..200 {
        let mut recv = ring.start(op::Recv::new(fd.clone(), vec![0; 1024]), 0);
        if round % 2 == 0 {
            assert!(poll_once(&mut recv).is_pending());
        }
        ring.submit().unwrap();
        let other = thread::spawn(move || {
            if round % 3 == 0 {
                assert!(poll_once(&mut recv).is_pending());
            }
            drop(recv);
        });
        // Only the message of the drop wakes the ring.
        while ring.slots_in_use() > 0 {
            ring.wait(Some(TIMEOUT)).unwrap();
            ring.reap();
        }
        other.join().unwrap();
    }
    assert!(fd.try_into_owned().is_ok());
}

#[test]
fn a_cancellation_on_another_thread_reaches_the_ring() {
    let ring = ring();
    let (fd, _peer) = pair();
    let mut recv = ring.start(op::Recv::new(fd, vec![0; 8]), 0);
    ring.submit().unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let (finished, remote) = (done.clone(), ring.remote());
    let other = thread::spawn(move || {
        recv.cancel();
        let (result, _) = park_on(recv);
        finished.store(true, Ordering::SeqCst);
        remote.kick();
        result.unwrap_err().raw_os_error()
    });
    serve(&ring, &done);
    assert_eq!(other.join().unwrap(), Some(libc::ECANCELED));
}

#[test]
fn a_stream_is_read_on_another_thread_and_its_buffers_return() {
    let config = Config {
        buffers: 8,
        buffer_size: 512,
        recv_window: 2,
        ..Config::default()
    };
    let ring = Ring::new(config).unwrap();
    let (done, readers_left) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(3)),
    );
    let mut threads = Vec::new();
    for _ in 0..3 {
        let (fd, mut peer) = pair();
        let mut stream = ring.recv_multi(fd, 0);
        let data: Vec<u8> = (0..300_000u32).map(|i| (i / 3) as u8).collect();
        let sent = data.clone();
        threads.push(thread::spawn(move || peer.write_all(&sent).unwrap()));
        let (done, readers_left, remote) = (done.clone(), readers_left.clone(), ring.remote());
        threads.push(thread::spawn(move || {
            let mut all = Vec::new();
            loop {
                let buffer = park_on(stream.next()).unwrap();
                if buffer.is_empty() {
                    break;
                }
                all.extend_from_slice(&buffer);
            }
            assert!(all == data);
            drop(stream);
            if readers_left.fetch_sub(1, Ordering::SeqCst) == 1 {
                done.store(true, Ordering::SeqCst);
            }
            remote.kick();
        }));
    }
    serve(&ring, &done);
    for thread in threads {
        thread.join().unwrap();
    }
    drive_until(&ring, || ring.slots_in_use() == 0);
    assert!(ring.stats().messages > 0);
}

#[test]
fn another_thread_accepts_connections_beyond_the_window() {
    let ring = Ring::new(Config {
        accept_window: 2,
        ..Config::default()
    })
    .unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let fd = upshift_ring::Fd::new(std::os::fd::OwnedFd::from(listener));
    let mut incoming = ring.accept_multi(fd, 0);
    let done = Arc::new(AtomicBool::new(false));
    let (finished, remote) = (done.clone(), ring.remote());
    let other = thread::spawn(move || {
        let mut all = Vec::new();
        while all.len() < 60 {
            all.push(park_on(incoming.next()).unwrap());
        }
        finished.store(true, Ordering::SeqCst);
        remote.kick();
    });
    let clients: Vec<_> = (0..60)
        .map(|_| std::net::TcpStream::connect(address).unwrap())
        .collect();
    serve(&ring, &done);
    other.join().unwrap();
    drop(clients);
    drive_until(&ring, || ring.slots_in_use() == 0);
}

#[test]
fn a_stream_moves_between_threads_repeatedly() {
    let ring = ring();
    let (fd, mut peer) = pair();
    let mut stream = ring.recv_multi(fd, 0);
    for round in 0..100u8 {
        peer.write_all(&[round; 10]).unwrap();
        let buffer = block_on(&ring, stream.next()).unwrap();
        assert_eq!(&*buffer, &[round; 10]);
        let mut cx = Context::from_waker(Waker::noop());
        assert!(stream.poll_next(&mut cx).is_pending());
        let done = Arc::new(AtomicBool::new(false));
        let (finished, remote) = (done.clone(), ring.remote());
        let other = thread::spawn(move || {
            drop(buffer);
            let buffer = park_on(stream.next()).unwrap();
            finished.store(true, Ordering::SeqCst);
            remote.kick();
            (stream, buffer)
        });
        peer.write_all(&[round; 5]).unwrap();
        serve(&ring, &done);
        let buffer;
        (stream, buffer) = other.join().unwrap();
        assert_eq!(&*buffer, &[round; 5]);
    }
}

#[test]
fn handles_outlive_the_ring_on_other_threads() {
    for _ in 0..50 {
        let ring = ring();
        let (fd, mut peer) = pair();
        let recv = ring.start(op::Recv::new(fd.clone(), vec![0; 64]), 0);
        let mut nop = ring.start(op::Nop::new(), 0);
        assert!(poll_once(&mut nop).is_pending());
        let mut stream = ring.recv_multi(fd.clone(), 0);
        peer.write_all(b"12345").unwrap();
        drive_until(&ring, || nop.is_complete());
        let other = thread::spawn(move || {
            let mut cx = Context::from_waker(Waker::noop());
            for _ in 0..20 {
                let _ = stream.poll_next(&mut cx);
                thread::yield_now();
            }
            drop((nop, recv, stream));
        });
        // The ring ends while the other thread uses its handles.
        drop(ring);
        other.join().unwrap();
        assert!(fd.try_into_owned().is_ok());
        let _ = peer.read(&mut [0; 8]);
    }
}

#[test]
fn kicks_are_coalesced_and_none_is_lost() {
    let ring = ring();
    // Kicks of a ring that is awake make no system call, and its next wait does not sleep.
    let remote = ring.remote();
    for _ in 0..1000 {
        remote.kick();
    }
    let start = Instant::now();
    ring.wait(Some(TIMEOUT)).unwrap();
    assert!(start.elapsed() < TIMEOUT);
    ring.reap();
    assert_eq!(ring.stats().kicks, 0);

    let work = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (work, remote) = (work.clone(), ring.remote());
            thread::spawn(move || {
                for round in 0..2000 {
                    work.fetch_add(1, Ordering::Relaxed);
                    remote.kick();
                    if round % 100 == 0 {
                        thread::sleep(Duration::from_micros(50));
                    }
                }
            })
        })
        .collect();
    while work.load(Ordering::Relaxed) < 8000 {
        ring.wait(Some(TIMEOUT)).unwrap();
        ring.reap();
        assert!(start.elapsed() < TIMEOUT);
    }
    for thread in threads {
        thread.join().unwrap();
    }
    // The threads have kicked 8,000 times; only kicks of a sleeping ring signal the eventfd.
    assert!(ring.stats().kicks < 8000);
}

#[test]
fn a_kick_reaches_a_ring_whose_first_queue_was_full() {
    let config = Config {
        entries: 1,
        ..Config::default()
    };
    let ring = Ring::new(config).unwrap();
    let (fd, _peer) = pair();
    let recv = ring.start(op::Recv::new(fd, vec![0; 8]), 0);
    let remote = ring.remote();
    let other = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        remote.kick();
    });
    let start = Instant::now();
    ring.wait(Some(TIMEOUT)).unwrap();
    assert!(start.elapsed() < TIMEOUT, "the kick was lost");
    other.join().unwrap();
    drop(recv);
}

#[test]
fn a_wait_ends_at_its_timeout() {
    let ring = ring();
    let start = Instant::now();
    // The first wait may end early, while the poll of the eventfd is set up.
    while start.elapsed() < Duration::from_millis(20) {
        ring.wait(Some(Duration::from_millis(5))).unwrap();
        ring.reap();
    }
    // About four waits of 5 ms suffice; waits that do not sleep would enter far more often.
    assert!(ring.stats().enters < 1000, "the waits did not sleep");
}
