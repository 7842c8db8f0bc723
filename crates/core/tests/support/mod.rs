//! A host for tests: time is counted by hand, and the vCPU that a thread serves
//! is in a thread-local.

#![allow(dead_code, reason = "each test file uses a part of this")]

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use upshift_core::{Config, Domain, Executor, Host, Panic, Picked, Polled, Vcpu};

thread_local! {
    static SERVED: Cell<Option<NonNull<Vcpu<TestHost>>>> = const { Cell::new(None) };
}

#[derive(Default)]
pub struct TestHost {
    pub time: AtomicU64,
    pub pended: Mutex<Vec<usize>>,
}

// SAFETY: `SERVED` is set by `serve` only, which has the executor.
unsafe impl Host for TestHost {
    fn now(&self) -> u64 {
        self.time.load(Ordering::Relaxed)
    }
    fn current(&self) -> Option<NonNull<Vcpu<TestHost>>> {
        SERVED.get()
    }
    fn pend(&self, index: usize) {
        self.pended.lock().unwrap().push(index);
    }
    fn relax(&self, _: u32) {
        std::thread::yield_now();
    }
    fn catch<R>(f: impl FnOnce() -> R) -> Result<R, Panic> {
        catch_unwind(AssertUnwindSafe(f))
    }
}

pub fn domain(config: Config) -> Domain<TestHost> {
    Domain::new(TestHost::default(), config)
}

/// Makes the calling thread serve the vCPU for the time of `f`.
pub fn serving<R>(executor: &Executor<TestHost>, f: impl FnOnce() -> R) -> R {
    let before = SERVED.replace(Some(executor.vcpu()));
    let result = f();
    SERVED.set(before);
    result
}

/// Polls until nothing is ready; at most `limit` polls. Returns how many.
pub fn run(executor: &Executor<TestHost>, limit: usize) -> usize {
    serving(executor, || {
        let mut back = None;
        for polls in 0..limit {
            match executor.pick(back.take()) {
                None => return polls,
                Some(Picked::Resume(id)) => panic!("{id} was not suspended"),
                Some(Picked::Poll(running)) => {
                    if let Polled::Yielded(yielded) = running.poll() {
                        back = Some(yielded);
                    }
                }
            }
        }
        limit
    })
}
