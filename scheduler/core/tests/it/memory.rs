//! Tests when the memory of a future is freed.

use std::alloc::Layout;
use std::cell::Cell;
use std::future::poll_fn;
use std::task::{Poll, Waker};

use upshift_core::{Config, Domain, Executor, Host, Level, Picked, Polled, Priority, ServedVcpu};

thread_local! {
    /// Number of allocations for futures that the test's thread has made and not yet freed.
    static LIVE_FUTURES: Cell<isize> = const { Cell::new(0) };
    static OUT_OF_MEMORY: Cell<bool> = const { Cell::new(false) };
}

struct Counting;

// SAFETY: `current` returns no vCPU, and `allocate` passes the layout to the global allocator.
unsafe impl Host for Counting {
    #[inline]
    fn waker_table() -> &'static core::task::RawWakerVTable {
        upshift_core::waker_table!(Counting)
    }

    fn now(&self) -> u64 {
        0
    }
    fn current(&self) -> Option<ServedVcpu> {
        None
    }
    fn kick(&self, _: usize) {}

    unsafe fn allocate(layout: Layout) -> *mut u8 {
        if OUT_OF_MEMORY.get() {
            return std::ptr::null_mut();
        }
        LIVE_FUTURES.set(LIVE_FUTURES.get() + 1);
        // SAFETY: the contract is the caller's.
        unsafe { std::alloc::alloc(layout) }
    }

    unsafe fn free(memory: *mut u8, layout: Layout) {
        LIVE_FUTURES.set(LIVE_FUTURES.get() - 1);
        // SAFETY: the contract is the caller's.
        unsafe { std::alloc::dealloc(memory, layout) }
    }
}

const LEVEL: Priority = Priority::At(Level::DEFAULT);

fn run(executor: &Executor<Counting>) {
    let mut back = None;
    while let Some(Picked::Poll(coroutine)) = executor.pick(back.take()) {
        if let Polled::Yielded(yielded) = coroutine.poll() {
            back = Some(yielded);
        }
    }
}

/// Returns a future that stores its waker and never ends.
fn store_waker_forever(
    place: &'static std::thread::LocalKey<Cell<Option<Waker>>>,
) -> impl Future<Output = ()> {
    poll_fn(move |cx| {
        place.set(Some(cx.waker().clone()));
        Poll::Pending
    })
}

thread_local! {
    static WAKER: Cell<Option<Waker>> = const { Cell::new(None) };
}

#[test]
fn a_waker_does_not_keep_the_memory_of_the_future() {
    let domain = Domain::new(Counting, Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let handle = domain.spawn(store_waker_forever(&WAKER), LEVEL).unwrap();
    run(&vcpu);
    assert_eq!(LIVE_FUTURES.get(), 1);
    handle.cancel();
    handle.detach();
    run(&vcpu);
    assert_eq!(LIVE_FUTURES.get(), 0, "although the waker remains");
    let waker = WAKER.take().unwrap();
    drop((vcpu, domain));
    waker.wake();
}

#[test]
fn the_output_is_freed_with_the_handle() {
    let domain = Domain::new(Counting, Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    let handle = domain.spawn(async { [7; 20] }, LEVEL).unwrap();
    run(&vcpu);
    assert_eq!(LIVE_FUTURES.get(), 1);
    drop((vcpu, domain));
    assert_eq!(LIVE_FUTURES.get(), 1);
    drop(handle);
    assert_eq!(LIVE_FUTURES.get(), 0);
}

#[test]
fn without_memory_for_the_future_a_spawn_fails_and_no_slot_is_lost() {
    let domain = Domain::new(Counting, Config::default());
    let vcpu = domain.add_vcpu().unwrap();
    OUT_OF_MEMORY.set(true);
    for _ in 0..100 {
        assert!(domain.spawn(async {}, LEVEL).is_err());
    }
    OUT_OF_MEMORY.set(false);
    let handle = domain.spawn(async {}, LEVEL).unwrap();
    assert_eq!(handle.id().index(), 1);
    run(&vcpu);
    drop(handle);
    assert_eq!(LIVE_FUTURES.get(), 0);
}
