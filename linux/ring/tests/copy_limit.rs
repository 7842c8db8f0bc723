//! Tests of the limit on writes that copy to the page cache or a pipe. Large copies of less urgent
//! levels must be held back while an urgent operation is in flight.
#![cfg(not(loom))]

mod common;
use common::{block_on, drive_until, poll_once};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::task::Poll;
use upshift_ring::{Config, Fd, Ring, Submission, op};

/// Length of a copy in bytes, more than may be in the kernel while an urgent operation is in
/// flight.
const LARGE: usize = 300 << 10;
/// Capacity of a pipe in bytes, more than the copies of a test that must complete.
const CAPACITY: usize = 1 << 20;

struct Pipe {
    reader: std::io::PipeReader,
    writer: Fd,
}

impl Pipe {
    fn new() -> Pipe {
        let (reader, writer) = std::io::pipe().unwrap();
        // SAFETY: the call takes no pointers, so it has no preconditions.
        let capacity = unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETPIPE_SZ, CAPACITY) };
        assert_eq!(capacity, CAPACITY as i32);
        let writer = Fd::new(OwnedFd::from(writer));
        Pipe { reader, writer }
    }

    fn full() -> Pipe {
        let pipe = Pipe::new();
        let writer = pipe.writer.as_fd().try_clone_to_owned().unwrap();
        std::fs::File::from(writer)
            .write_all(&vec![0; CAPACITY])
            .unwrap();
        pipe
    }

    /// Starts to write `length` bytes of the value `byte` into the pipe.
    fn copy(
        &self,
        ring: &Ring,
        byte: u8,
        length: usize,
        level: u8,
    ) -> Submission<op::WriteAt<Vec<u8>>> {
        let write = op::WriteAt::new(self.writer.clone(), vec![byte; length], u64::MAX);
        ring.start(write.copied(true), level)
    }

    fn read(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.reader.read_exact(&mut bytes).unwrap();
        bytes
    }
}

/// Returns the number of copies that start regardless of their size: one if this thread is bound to
/// one CPU, otherwise two.
fn max_copies() -> usize {
    // SAFETY: zeroes are a valid `cpu_set_t`, and the calls access only `cpus`.
    unsafe {
        let mut cpus: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(
            libc::sched_getaffinity(0, size_of_val(&cpus), &raw mut cpus),
            0
        );
        libc::CPU_COUNT(&cpus).min(2) as usize
    }
}

/// Starts an operation at `level` that does not complete, because the pipe stays empty.
fn start_waiting(ring: &Ring, pipe: &Pipe, level: u8) -> Submission<op::PollAdd> {
    let reader = Fd::new(pipe.reader.try_clone().unwrap());
    ring.start(op::PollAdd::new(reader, libc::POLLIN as u32), level)
}

fn ring() -> Option<Ring> {
    common::has_io_uring().then(|| Ring::new(Config::default()).unwrap())
}

#[test]
fn copies_beside_an_urgent_operation_start_few_at_a_time_and_by_level() {
    let Some(ring) = ring() else { return };
    let (mut pipe, empty) = (Pipe::new(), Pipe::new());
    ring.submit().unwrap();
    let urgent = start_waiting(&ring, &empty, 10);
    assert_eq!(ring.pending_submissions(), 1);
    let first = (0..max_copies()).map(|_| pipe.copy(&ring, b'1', LARGE, 40));
    let mut copies: Vec<_> = first.collect();
    assert_eq!(ring.pending_submissions(), 1 + max_copies());
    // These copies are held. They add one entry, a timeout.
    copies.push(pipe.copy(&ring, b'4', 1, 60));
    copies.push(pipe.copy(&ring, b'2', 1, 50));
    copies.push(pipe.copy(&ring, b'3', 1, 50));
    assert_eq!(ring.pending_submissions(), 2 + max_copies());
    assert_eq!(ring.in_flight(), 4 + max_copies());
    // This copy is as urgent as the most urgent operation in flight, and is not held.
    copies.push(pipe.copy(&ring, b'0', LARGE, 10));
    assert_eq!(ring.pending_submissions(), 3 + max_copies());
    drive_until(&ring, || copies.iter_mut().all(|op| op.is_complete()));
    let bytes = pipe.read((max_copies() + 1) * LARGE + 3);
    let mut order = bytes.clone();
    order.dedup();
    assert_eq!(order, b"10234");
    drop(urgent);
}

#[test]
fn small_copies_are_not_held_and_large_copies_only_beside_urgent_operations() {
    let Some(ring) = ring() else { return };
    let (pipe, empty) = (Pipe::new(), Pipe::new());
    ring.submit().unwrap();
    let equal = start_waiting(&ring, &empty, 40);
    let large: Vec<_> = (0..3).map(|_| pipe.copy(&ring, 1, LARGE, 40)).collect();
    assert_eq!(ring.pending_submissions(), 4);
    drop((equal, large));
    drive_until(&ring, || ring.slots_in_use() == 0);
    let urgent = start_waiting(&ring, &empty, 0);
    let small: Vec<_> = (0..64).map(|_| pipe.copy(&ring, 1, 4096, 40)).collect();
    assert_eq!(ring.pending_submissions(), 65);
    drop((urgent, small));
}

#[test]
fn a_copy_dropped_while_it_is_held_is_never_started() {
    let Some(ring) = ring() else { return };
    let (mut pipe, empty) = (Pipe::new(), Pipe::new());
    let urgent = start_waiting(&ring, &empty, 0);
    let copies = (0..max_copies()).map(|_| pipe.copy(&ring, b'1', LARGE, 40));
    let first: Vec<_> = copies.collect();
    let dropped = pipe.copy(&ring, b'2', 1, 40);
    let mut cancelled = pipe.copy(&ring, b'3', 1, 40);
    let last = pipe.copy(&ring, b'4', 1, 40);
    drop(dropped);
    cancelled.cancel();
    let (result, buffer) = block_on(&ring, cancelled);
    assert_eq!(
        (result.unwrap_err().raw_os_error(), buffer),
        (Some(libc::ECANCELED), b"3".to_vec())
    );
    block_on(&ring, async {
        for copy in first {
            copy.await.0.unwrap();
        }
        last.await.0.unwrap();
    });
    assert_eq!(
        pipe.read(max_copies() * LARGE + 1)[max_copies() * LARGE - 1..],
        *b"14"
    );
    drop(urgent);
    drive_until(&ring, || ring.slots_in_use() == 0);
}

#[test]
fn a_copy_that_does_not_complete_holds_other_copies_only_briefly() {
    let Some(ring) = ring() else { return };
    let (stuck, mut free, empty) = (Pipe::full(), Pipe::new(), Pipe::new());
    let urgent = start_waiting(&ring, &empty, 0);
    let mut stuck_copies = [(); 2].map(|()| stuck.copy(&ring, 0, LARGE, 40));
    for byte in 0..4 {
        let held = free.copy(&ring, byte, LARGE, 50);
        block_on(&ring, held).0.unwrap();
        assert_eq!(free.read(LARGE), vec![byte; LARGE]);
        assert!(
            stuck_copies
                .iter_mut()
                .all(|copy| poll_once(copy).is_pending())
        );
    }
    drop((urgent, stuck_copies));
}

#[test]
fn copies_held_at_the_end_of_the_ring_are_cancelled() {
    let Some(ring) = ring() else { return };
    let (stuck, empty) = (Pipe::full(), Pipe::new());
    let urgent = start_waiting(&ring, &empty, 0);
    let stuck_copies = [(); 2].map(|()| stuck.copy(&ring, 0, LARGE, 40));
    let mut held = stuck.copy(&ring, 0, LARGE, 40);
    ring.submit().unwrap();
    ring.shutdown();
    let Poll::Ready((result, buffer)) = poll_once(&mut held) else {
        panic!("the held copy is still pending");
    };
    assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
    assert_eq!(buffer.len(), LARGE);
    drop((urgent, stuck_copies, held));
    assert_eq!(ring.slots_in_use(), 0);
}
