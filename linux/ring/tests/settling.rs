//! Tests of `Ring::settle`, which ends all operations on a descriptor that have no handle.
#![cfg(not(loom))]

mod common;
use common::{TIMEOUT, block_on, pair, poll_once, ring};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::time::Instant;
use upshift_ring::{Config, Driver, Fd, Mode, Ring, op};

/// Returns a ring for each mode of io_uring, and one with the readiness driver.
fn rings() -> Vec<Ring> {
    let modes = [Mode::DeferTaskrun, Mode::CoopTaskrun, Mode::Plain];
    let io_uring_configs = modes.map(|mode| Config {
        mode,
        ..Config::default()
    });
    let readiness = Config {
        driver: Driver::Readiness,
        ..Config::default()
    };
    let configs = io_uring_configs.into_iter().chain([readiness]);
    configs.map(|config| Ring::new(config).unwrap()).collect()
}

fn listener() -> Fd {
    Fd::new(OwnedFd::from(
        std::net::TcpListener::bind("127.0.0.1:0").unwrap(),
    ))
}

#[test]
fn dropped_operations_end_in_every_state() {
    for ring in rings() {
        for submitted in [true, false] {
            let (fd, mut peer) = pair();
            let listening = listener();
            let mut recv = ring.start(op::Recv::new(fd.clone(), vec![0; 8]), 0);
            assert!(poll_once(&mut recv).is_pending());
            let poll = ring.start(op::PollAdd::new(fd.clone(), libc::POLLIN as u32), 0);
            let stream = ring.recv_multi(fd.clone(), 0);
            let accepting = ring.accept_multi(listening.clone(), 0);
            if submitted {
                ring.submit().unwrap();
            }
            drop((recv, poll, stream, accepting));
            ring.settle(&fd);
            ring.settle(&listening);
            drop(
                fd.try_into_owned()
                    .expect("an operation still holds the descriptor"),
            );
            drop(
                listening
                    .try_into_owned()
                    .expect("an operation still holds the listener"),
            );
            assert_eq!(peer.read(&mut [0]).unwrap(), 0);
            assert_eq!(ring.slots_in_use(), 0);
        }
    }
}

#[test]
fn dropped_operations_in_the_backlog_end_too() {
    let ring = Ring::new(Config {
        entries: 8,
        ..Config::default()
    })
    .unwrap();
    let (fd, _peer) = pair();
    let recvs: Vec<_> = (0..100)
        .map(|_| ring.start(op::Recv::new(fd.clone(), vec![0; 8]), 0))
        .collect();
    drop(recvs);
    ring.settle(&fd);
    assert!(fd.try_into_owned().is_ok());
}

#[test]
fn settling_ends_a_stream_that_receives_continuously() {
    for ring in rings() {
        for _ in 0..10 {
            let (fd, mut peer) = pair();
            let writer = std::thread::spawn(move || {
                // The writes fail when the ring has closed its end.
                while peer.write_all(&[1; 4096]).is_ok() {}
            });
            let mut stream = ring.recv_multi(fd.clone(), 0);
            block_on(&ring, async {
                assert!(!stream.next().await.unwrap().is_empty());
            });
            drop(stream);
            ring.settle(&fd);
            assert!(fd.try_into_owned().is_ok());
            writer.join().unwrap();
        }
    }
}

#[test]
fn settling_leaves_operations_with_a_handle_alone() {
    for ring in rings() {
        let (fd, mut peer) = pair();
        let recv = ring.start(op::Recv::new(fd.clone(), vec![0; 8]), 0);
        drop(ring.start(op::PollAdd::new(fd.clone(), libc::POLLIN as u32), 0));
        ring.settle(&fd);
        let enters = ring.stats().enters;
        ring.settle(&fd);
        assert_eq!(ring.stats().enters, enters);
        peer.write_all(b"hi").unwrap();
        let (count, buffer) = block_on(&ring, recv);
        assert_eq!(&buffer[..count.unwrap()], b"hi");
    }
}

#[test]
fn settling_a_stream_costs_one_enter() {
    let ring = ring();
    for _ in 0..20 {
        let (fd, _peer) = pair();
        let stream = ring.recv_multi(fd.clone(), 0);
        ring.submit().unwrap();
        let enters = ring.stats().enters;
        drop(stream);
        ring.settle(&fd);
        assert!(ring.stats().enters <= enters + 1);
        assert!(fd.try_into_owned().is_ok());
    }
}

#[test]
fn a_handle_dropped_on_another_thread_gives_a_busy_ring_a_completion_to_reap() {
    for ring in rings() {
        let (fd, _peer) = pair();
        let stream = ring.recv_multi(fd.clone(), 0);
        // The ring arms the poll of its eventfd.
        ring.submit().unwrap();
        ring.submit().unwrap();
        ring.reap();
        assert!(!ring.has_arrivals());
        std::thread::spawn(move || drop(stream)).join().unwrap();
        let deadline = Instant::now() + TIMEOUT;
        while !ring.has_arrivals() {
            assert!(Instant::now() < deadline, "the ring sees no arrival");
        }
        while fd.is_shared() {
            assert!(Instant::now() < deadline, "the descriptor stays open");
            ring.submit().unwrap();
            ring.reap();
        }
    }
}
