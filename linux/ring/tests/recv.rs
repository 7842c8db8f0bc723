//! Tests of multishot receive: the buffer pool, the limit of unread buffers (window), lack of
//! buffers, errors, and buffers that outlive the ring.
#![cfg(not(loom))]

mod common;
use common::{Job, block_on, drive_until, pair, ring, run_all};
use std::cell::Cell;
use std::io::{Read, Write};
use std::task::{Context, Poll, Waker};
use upshift_ring::{Config, Mode, RecvMulti, Ring, op};

fn poll(stream: &mut RecvMulti) -> Poll<std::io::Result<upshift_ring::RecvBuf>> {
    stream.poll_next(&mut Context::from_waker(Waker::noop()))
}

async fn collect(stream: &mut RecvMulti, count: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < count {
        let buffer = stream.next().await.unwrap();
        assert!(
            !buffer.is_empty(),
            "the stream ended after {} of {count} bytes",
            all.len()
        );
        all.extend_from_slice(&buffer);
    }
    all
}

#[test]
fn bytes_arrive_in_order_until_the_end() {
    let ring = ring();
    let (fd, mut peer) = pair();
    let mut stream = ring.recv_multi(fd, 0);
    let data: Vec<u8> = (0..3_000_000u32).map(|i| (i / 7) as u8).collect();
    let sent = data.clone();
    let writer = std::thread::spawn(move || peer.write_all(&sent).unwrap());
    block_on(&ring, async {
        assert!(collect(&mut stream, data.len()).await == data);
        for _ in 0..3 {
            assert!(stream.next().await.unwrap().is_empty());
        }
    });
    writer.join().unwrap();
    drop(stream);
    assert_eq!((ring.in_flight(), ring.slots_in_use()), (0, 0));
}

#[test]
fn a_reset_is_returned_as_one_error_and_then_ends_the_stream() {
    let ring = ring();
    let (fd, peer) = pair();
    let mut stream = ring.recv_multi(fd, 0);
    ring.submit().unwrap();
    // With a linger time of zero, close sends a reset.
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    // SAFETY: `linger` is a valid value of the option.
    unsafe {
        libc::setsockopt(
            std::os::fd::AsRawFd::as_raw_fd(&peer),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size_of_val(&linger) as u32,
        );
    }
    drop(peer);
    let error = block_on(&ring, stream.next()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ECONNRESET));
    assert!(block_on(&ring, stream.next()).unwrap().is_empty());
}

#[test]
fn half_close_leaves_the_other_direction_open() {
    let ring = ring();
    let (fd, mut peer) = pair();
    let mut stream = ring.recv_multi(fd.clone(), 0);
    peer.write_all(b"last").unwrap();
    peer.shutdown(std::net::Shutdown::Write).unwrap();
    block_on(&ring, async {
        assert_eq!(collect(&mut stream, 4).await, b"last");
        assert!(stream.next().await.unwrap().is_empty());
        let (sent, _) = ring.start(op::Send::new(fd.clone(), "answer"), 0).await;
        assert_eq!(sent.unwrap(), 6);
    });
    let mut answer = [0; 6];
    peer.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"answer");
}

#[test]
fn a_received_buffer_can_be_sent_back_without_a_copy() {
    let ring = ring();
    let (fd, mut peer) = pair();
    let mut stream = ring.recv_multi(fd.clone(), 0);
    peer.write_all(b"xecho").unwrap();
    block_on(&ring, async {
        let mut buffer = stream.next().await.unwrap();
        buffer.advance(1);
        ring.start(op::Send::new(fd.clone(), buffer), 0)
            .await
            .0
            .unwrap();
    });
    let mut answer = [0; 4];
    peer.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"echo");
}

#[test]
fn a_slow_consumer_holds_no_more_than_its_window() {
    let config = Config {
        buffers: 64,
        buffer_size: 256,
        recv_window: 4,
        ..Config::default()
    };
    let ring = Ring::new(config).unwrap();
    let (slow, mut slow_peer) = pair();
    let (quick, mut quick_peer) = pair();
    let mut slow = ring.recv_multi(slow, 0);
    let mut quick = ring.recv_multi(quick, 0);
    let data: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
    slow_peer.write_all(&data).unwrap();
    for _ in 0..50 {
        ring.submit().unwrap();
        ring.reap();
    }
    assert_eq!(ring.stats().stalled, 1);
    // The kernel may receive a batch of 32 buffers beyond the window, but does not exhaust the
    // pool, so the other stream continues. Slots: 2 streams, 4 events of the window, 32 events of
    // the batch, and, with a margin, the event that reports the stop.
    let slots = ring.slots_in_use();
    assert!(slots <= 2 + 4 + 32 + 2, "{slots} slots are in use");
    block_on(&ring, async {
        for _ in 0..20 {
            quick_peer.write_all(&[1; 1000]).unwrap();
            assert_eq!(collect(&mut quick, 1000).await.len(), 1000);
        }
        // The slow stream has lost no bytes.
        assert!(collect(&mut slow, data.len()).await == data);
    });
    // The readiness driver may never need to stop the stream a second time.
    assert!(ring.stats().stalled > 1 || ring.mode() == Mode::Readiness);
    drop((slow, quick));
    drive_until(&ring, || ring.slots_in_use() == 0);
}

#[test]
fn two_hundred_connections_share_sixteen_buffers() {
    let config = Config {
        buffers: 16,
        buffer_size: 128,
        recv_window: 4,
        ..Config::default()
    };
    let ring = Ring::new(config).unwrap();
    let (mut streams, mut peers) = (Vec::new(), Vec::new());
    for _ in 0..200 {
        let (fd, peer) = pair();
        streams.push(ring.recv_multi(fd, 0));
        peers.push(peer);
    }
    for (index, peer) in peers.iter_mut().enumerate() {
        peer.write_all(&vec![index as u8; 1000]).unwrap();
    }
    let jobs = streams
        .iter_mut()
        .enumerate()
        .map(|(index, stream)| -> Job<'_> {
            Box::pin(async move {
                assert_eq!(collect(stream, 1000).await, vec![index as u8; 1000]);
            })
        })
        .collect();
    run_all(&ring, jobs);
    assert!(ring.stats().enobufs > 0);
    drop(streams);
    drive_until(&ring, || ring.slots_in_use() == 0);
}

#[test]
fn a_stream_that_holds_all_buffers_does_not_prevent_others_from_receiving() {
    let config = Config {
        buffers: 2,
        buffer_size: 16,
        recv_window: 1,
        ..Config::default()
    };
    let ring = Ring::new(config).unwrap();
    let (first, mut first_peer) = pair();
    let (second, mut second_peer) = pair();
    let mut first = ring.recv_multi(first, 0);
    first_peer.write_all(&[1; 32]).unwrap();
    let mut held = Vec::new();
    drive_until(&ring, || {
        if let Poll::Ready(buffer) = poll(&mut first) {
            held.push(buffer.unwrap());
        }
        held.len() == 2
    });
    // From here on the pool is empty.
    let mut second = ring.recv_multi(second, 0);
    let data: Vec<u8> = (0..100).collect();
    second_peer.write_all(&data).unwrap();
    assert!(block_on(&ring, collect(&mut second, 100)) == data);
    // Each buffer outside of the pool has 16 bytes.
    assert!(ring.stats().unpooled >= 100 / 16);
    // Unread data stays bounded, because the stream stops after one buffer, and the ring is idle.
    second_peer.write_all(&[7; 64]).unwrap();
    for _ in 0..10 {
        ring.submit().unwrap();
        ring.reap();
    }
    let before = ring.stats();
    for _ in 0..100 {
        ring.submit().unwrap();
        ring.reap();
    }
    assert_eq!(
        ring.stats().enters,
        before.enters,
        "the starved stream made system calls"
    );
    assert_eq!(ring.stats().unpooled, before.unpooled);
    let unread = block_on(&ring, second.next()).unwrap();
    assert_eq!(unread[..], [7; 16]);
    drop(held);
    assert_eq!(block_on(&ring, collect(&mut second, 48)), [7; 48]);
    drop((first, second));
    drive_until(&ring, || ring.slots_in_use() == 0);
    assert_eq!(unread[..], [7; 16]);
}

#[test]
fn unpooled_buffers_are_freed_on_every_path() {
    let config = Config {
        buffers: 1,
        buffer_size: 16,
        ..Config::default()
    };
    let ring = Ring::new(config).unwrap();
    let (hoarder, mut peer) = pair();
    let mut hoarder = ring.recv_multi(hoarder, 0);
    peer.write_all(&[1; 16]).unwrap();
    let held = block_on(&ring, hoarder.next()).unwrap();
    let (mut streams, mut peers) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        let (fd, mut peer) = pair();
        peer.write_all(&[2; 40]).unwrap();
        streams.push(ring.recv_multi(fd, 0));
        peers.push(peer);
    }
    drive_until(&ring, || ring.stats().unpooled >= 4);
    drive_until(&ring, || ring.in_flight() == 1);
    // One stream is dropped unread, one on another thread; one buffer is read after the end of the
    // ring, and one is not.
    drop(streams.pop());
    let moved_stream = streams.pop().unwrap();
    std::thread::spawn(move || drop(moved_stream))
        .join()
        .unwrap();
    drop(ring);
    let unread = poll(&mut streams[0]);
    assert!(matches!(&unread, Poll::Ready(Ok(bytes)) if bytes[..] == [2; 16]));
    drop(streams);
    assert_eq!(held[..], [1; 16]);
}

#[test]
fn idle_streams_keep_no_buffers_from_streams_with_data() {
    let config = Config {
        buffers: 4,
        buffer_size: 64,
        recv_window: 2,
        ..Config::default()
    };
    let ring = Ring::new(config).unwrap();
    let (mut streams, mut peers) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        let (fd, peer) = pair();
        streams.push(ring.recv_multi(fd, 0));
        peers.push(peer);
    }
    // All streams have data, so most starve. Then only the last stream has more data, and must
    // receive it.
    for peer in &mut peers {
        peer.write_all(&[1; 64]).unwrap();
    }
    let finished = Cell::new(0);
    let jobs = streams
        .iter_mut()
        .map(|stream| -> Job<'_> {
            let finished = &finished;
            Box::pin(async move {
                collect(stream, 64).await;
                finished.set(finished.get() + 1);
            })
        })
        .collect();
    run_all(&ring, jobs);
    assert_eq!(finished.get(), 20);
    for _ in 0..50 {
        peers[19].write_all(&[2; 64]).unwrap();
        assert_eq!(block_on(&ring, collect(&mut streams[19], 64)), [2; 64]);
    }
}

#[test]
fn a_starved_stream_can_be_dropped() {
    let config = Config {
        buffers: 2,
        buffer_size: 16,
        recv_window: 1,
        ..Config::default()
    };
    let ring = Ring::new(config).unwrap();
    let (first, mut first_peer) = pair();
    let (second, mut second_peer) = pair();
    let first = ring.recv_multi(first, 0);
    first_peer.write_all(&[1; 64]).unwrap();
    let second = ring.recv_multi(second, 0);
    second_peer.write_all(b"x").unwrap();
    for _ in 0..10 {
        ring.submit().unwrap();
        ring.reap();
    }
    drop(second);
    second_peer.set_nonblocking(false).unwrap();
    drive_until(&ring, || {
        ring.stats().enobufs > 0 || ring.stats().stalled > 0
    });
    drop(first);
    drive_until(&ring, || ring.slots_in_use() == 0);
    assert!(
        matches!(second_peer.read(&mut [0]), Ok(0) | Err(_)),
        "the descriptor stayed open"
    );
}

#[test]
fn without_a_pool_a_stream_fails_and_ends() {
    let ring = Ring::new(Config {
        buffers: 0,
        ..Config::default()
    })
    .unwrap();
    let (fd, _peer) = pair();
    let mut stream = ring.recv_multi(fd, 0);
    let error = block_on(&ring, stream.next()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP));
    assert!(block_on(&ring, stream.next()).unwrap().is_empty());
}

#[test]
fn a_received_buffer_outlives_the_ring() {
    let ring = ring();
    let (fd, mut peer) = pair();
    let mut stream = ring.recv_multi(fd, 0);
    peer.write_all(b"kept").unwrap();
    let buffer = block_on(&ring, stream.next()).unwrap();
    peer.write_all(b"unread").unwrap();
    // The stream, the event of `buffer` and the unread event have a slot each.
    drive_until(&ring, || ring.slots_in_use() == 3);
    drop(ring);
    assert_eq!(&*buffer, b"kept");
    let unread = poll(&mut stream);
    assert!(matches!(&unread, Poll::Ready(Ok(bytes)) if **bytes == *b"unread"));
    assert!(
        matches!(poll(&mut stream), Poll::Ready(Err(error)) if error.raw_os_error() == Some(libc::ECANCELED))
    );
    drop((stream, unread));
    std::thread::spawn(move || assert_eq!(&*buffer, b"kept"))
        .join()
        .unwrap();
}
