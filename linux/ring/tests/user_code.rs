//! Tests of user code in wakers, buffers and destructors. Such code may call back into the ring,
//! panic, or leak a handle. It must never run between the calls of the hooks that mark a use of the
//! ring ([`UseHooks`]).
#![cfg(not(loom))]

mod common;
use common::{Flag, block_on, drive_until, pair, poll_once, ring};
use std::cell::Cell;
use std::future::Future;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Wake, Waker};
use upshift_ring::{Config, Fd, IoBuf, IoBufMut, Ring, UseHooks, op};

thread_local! {
    /// Number of uses of a ring on this thread that have not ended.
    static USES: Cell<u32> = const { Cell::new(0) };
    /// Name of the user code that ran within a use, if any did.
    static VIOLATION: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Records a violation if a use of the ring is in progress.
fn check_outside_use(name: &'static str) {
    if USES.get() != 0 {
        VIOLATION.set(Some(name));
    }
}

fn ring_with_hooks() -> Ring {
    Ring::new(Config {
        use_hooks: Some(UseHooks {
            enter: || USES.set(USES.get() + 1),
            leave: || USES.set(USES.get() - 1),
        }),
        ..Config::default()
    })
    .unwrap()
}

/// Creates a waker that calls [`on_call`] at each clone, wake and drop.
fn waker(data: *const ()) -> Waker {
    static TABLE: RawWakerVTable = RawWakerVTable::new(
        |data| {
            on_call(data, "clone");
            RawWaker::new(data, &TABLE)
        },
        |data| on_call(data, "wake"),
        |data| on_call(data, "wake"),
        |data| on_call(data, "drop"),
    );
    // SAFETY: the functions of the table free nothing, and the data outlives the test.
    unsafe { Waker::from_raw(RawWaker::new(data, &TABLE)) }
}

fn on_call(data: *const (), name: &'static str) {
    check_outside_use(name);
    // SAFETY: the data of `waker` is null or points to a live ring of this thread.
    if let Some(ring) = unsafe { data.cast::<Ring>().as_ref() } {
        ring.submit().unwrap();
        ring.reap();
    }
}

/// A buffer that records a violation if its code runs within a use.
struct Buffer(Vec<u8>);

// SAFETY: the memory is the vector's heap allocation, which does not move.
unsafe impl IoBuf for Buffer {
    fn io_ptr(&self) -> *const u8 {
        self.0.io_ptr()
    }
    fn io_len(&self) -> usize {
        self.0.io_len()
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for Buffer {
    fn io_mut_ptr(&mut self) -> *mut u8 {
        self.0.io_mut_ptr()
    }
    fn io_capacity(&self) -> usize {
        self.0.io_capacity()
    }
    unsafe fn set_filled(&mut self, count: usize) {
        check_outside_use("set_filled");
        // SAFETY: the caller fulfils the same contract.
        unsafe { self.0.set_filled(count) };
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        check_outside_use("drop of a buffer");
    }
}

#[test]
fn a_waker_that_reaps_when_it_is_cloned_loses_no_completion() {
    let ring = ring();
    let waker = waker((&raw const ring).cast());
    for _ in 0..3 {
        // The operation completes at the latest when the first poll clones the waker.
        let mut nop = ring.start(op::Nop::new(), 0);
        let mut cx = Context::from_waker(&waker);
        let first = Pin::new(&mut nop).poll(&mut cx);
        assert!(first.is_ready() || Pin::new(&mut nop).poll(&mut cx).is_ready());
        let (fd, mut peer) = pair();
        let mut stream = ring.recv_multi(fd, 0);
        ring.submit().unwrap();
        peer.write_all(b"x").unwrap();
        drive_until(&ring, || stream.poll_next(&mut cx).is_ready());
    }
}

#[test]
fn user_code_runs_outside_of_uses() {
    let ring = ring_with_hooks();
    let waker = waker(std::ptr::null());
    let mut cx = Context::from_waker(&waker);
    let (fd, mut peer) = pair();
    // The result is taken, dropped when complete, or dropped before.
    for round in 0..3 {
        let buffer = Buffer(vec![0; 100]);
        let mut recv = ring.start(op::Recv::new(fd.clone(), buffer), 0);
        assert!(Pin::new(&mut recv).poll(&mut cx).is_pending());
        // The second poll replaces the waker.
        assert!(poll_once(&mut recv).is_pending());
        assert!(Pin::new(&mut recv).poll(&mut cx).is_pending());
        if round < 2 {
            peer.write_all(b"some").unwrap();
            drive_until(&ring, || recv.is_complete());
        }
        if round == 0 {
            let Poll::Ready((result, buffer)) = Pin::new(&mut recv).poll(&mut cx) else {
                panic!("the complete operation is pending");
            };
            assert_eq!((result.unwrap(), &buffer.0[..]), (4, &b"some"[..]));
        }
        drop(recv);
        drive_until(&ring, || ring.slots_in_use() == 0);
    }
    let mut stream = ring.recv_multi(fd, 0);
    assert!(stream.poll_next(&mut cx).is_pending());
    drop(stream);
    drive_until(&ring, || ring.slots_in_use() == 0);
    assert_eq!(VIOLATION.get(), None);
}

/// A waker that sets a flag and panics.
struct PanickingWaker(Arc<Flag>);

impl Wake for PanickingWaker {
    fn wake(self: Arc<Self>) {
        self.0.clone().wake();
        panic!("a waker that panics");
    }
}

struct PanickingBuffer(Vec<u8>);

// SAFETY: the memory is the vector's heap allocation, which does not move.
unsafe impl IoBuf for PanickingBuffer {
    fn io_ptr(&self) -> *const u8 {
        self.0.io_ptr()
    }
    fn io_len(&self) -> usize {
        self.0.io_len()
    }
}

impl Drop for PanickingBuffer {
    fn drop(&mut self) {
        panic!("a destructor that panics");
    }
}

#[test]
fn a_panic_in_a_waker_or_a_destructor_harms_no_other_operation() {
    let ring = ring();
    let flag = Flag::new(&ring);
    flag.take();
    let panics = Waker::from(Arc::new(PanickingWaker(flag.clone())));
    let mut first = ring.start(op::Nop::new(), 0);
    let mut second = ring.start(op::Nop::new(), 0);
    assert!(
        Pin::new(&mut first)
            .poll(&mut Context::from_waker(&panics))
            .is_pending()
    );
    assert!(poll_once(&mut second).is_pending());
    drive_until(&ring, || second.is_complete());
    assert!(flag.take() && first.is_complete());
    assert!(poll_once(&mut first).is_ready() && poll_once(&mut second).is_ready());
    // The ring drops the buffer of the first operation; the handle drops the buffer of the second.
    let (fd, mut peer) = pair();
    for drops_early in [true, false] {
        let mut send = ring.start(op::Send::new(fd.clone(), PanickingBuffer(vec![7; 3])), 0);
        assert!(poll_once(&mut send).is_pending());
        if !drops_early {
            drive_until(&ring, || send.is_complete());
        }
        let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(send)));
        assert_eq!(dropped.is_ok(), drops_early);
        drive_until(&ring, || ring.slots_in_use() == 0);
    }
    peer.read_exact(&mut [0; 3]).unwrap();
    block_on(&ring, ring.start(op::Nop::new(), 0)).unwrap();
}

#[test]
fn an_operation_leaked_in_flight_keeps_its_buffer_and_its_descriptor() {
    let (fd, mut peer) = pair();
    let number = fd.as_raw_fd();
    let (stream_fd, mut stream_peer) = pair();
    let handles = {
        let ring = ring();
        let mut recv = ring.start(op::Recv::new(fd, vec![0; 4096]), 0);
        assert!(poll_once(&mut recv).is_pending());
        let mut stream = ring.recv_multi(stream_fd, 0);
        let mut cx = Context::from_waker(Waker::noop());
        assert!(stream.poll_next(&mut cx).is_pending());
        ring.submit().unwrap();
        let handles = ring.slots_in_use();
        std::mem::forget((recv, stream));
        // The operation keeps its descriptor open, so the kernel does not reuse the number.
        let other = Fd::new(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
        assert_ne!(other.as_raw_fd(), number);
        let other_memory = vec![0xaa_u8; 4096];
        peer.write_all(&[0x55; 512]).unwrap();
        stream_peer.write_all(&[0x55; 512]).unwrap();
        drive_until(&ring, || ring.in_flight() == 1);
        assert!(other_memory.iter().all(|byte| *byte == 0xaa));
        handles
        // The ring ends before the leaked operations.
    };
    assert_eq!(handles, 2);
}

#[test]
fn a_descriptor_that_only_the_operation_holds_stays_open() {
    let ring = ring();
    let (fd, mut peer) = pair();
    let number = fd.as_raw_fd();
    let recv = ring.start(op::Recv::new(fd.clone(), vec![0; 16]), 0);
    // The last other owner of the descriptor is dropped before the entry is submitted.
    drop(fd);
    let other = std::fs::File::open("/dev/null").unwrap();
    assert_ne!(other.as_raw_fd(), number);
    peer.write_all(b"late").unwrap();
    let (result, buffer) = block_on(&ring, recv);
    assert_eq!((result.unwrap(), &buffer[..4]), (4, &b"late"[..]));
    // The end of the operation closes the descriptor.
    assert_eq!(peer.read(&mut [0; 1]).unwrap(), 0);
}

/// A buffer that owns the ring on which it is used.
struct RingOwner(#[expect(dead_code, reason = "owned for its drop")] Rc<Ring>);

// SAFETY: the ring and its owners stay on the thread of the test, so no other thread uses them.
unsafe impl Send for RingOwner {}

// SAFETY: the bytes are static.
unsafe impl IoBuf for RingOwner {
    fn io_ptr(&self) -> *const u8 {
        b"x".as_ptr()
    }
    fn io_len(&self) -> usize {
        1
    }
}

#[test]
fn a_ring_may_be_dropped_by_its_last_buffer() {
    let ring = Rc::new(ring());
    let (fd, mut peer) = pair();
    let send = ring.start(op::Send::new(fd, RingOwner(ring.clone())), 0);
    drive_until(&ring, || send.is_complete());
    let remote = ring.remote();
    drop(ring);
    drop(send);
    remote.kick();
    peer.read_exact(&mut [0; 1]).unwrap();
}
