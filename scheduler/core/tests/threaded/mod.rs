//! Implements the scheduler's host with real threads. Each thread serves one vCPU and parks when
//! the vCPU has no work; `kick` unparks the thread. A lost wake shows as a wait that does not end.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file includes this and uses a part of it"
)]

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, Thread, ThreadId};
use std::time::{Duration, Instant};

use upshift_core::{Config, Domain, Executor, Host, Panic, Picked, Polled, ServedVcpu, Vcpu};

thread_local! {
    static SERVED: Cell<Option<NonNull<Vcpu<ThreadHost>>>> = const { Cell::new(None) };
}

const VCPUS: usize = 8;

pub struct ThreadHost {
    threads: [Mutex<Option<Thread>>; VCPUS],
    start: Instant,
}

// SAFETY: `current` returns a vCPU only inside `serve`, which has the vCPU's executor, and only to
// the calling thread.
unsafe impl Host for ThreadHost {
    #[inline]
    fn waker_table() -> &'static core::task::RawWakerVTable {
        upshift_core::waker_table!(ThreadHost)
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
    fn current(&self) -> Option<ServedVcpu> {
        SERVED.get().map(ServedVcpu::from)
    }
    fn kick(&self, index: usize) {
        let thread = self.threads[index].lock().unwrap().clone();
        thread.expect("a parked vCPU is served").unpark();
    }
    fn relax(&self, spins: u32) {
        if cfg!(miri) || spins > 16 {
            thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
    fn catch<R>(f: impl FnOnce() -> R) -> Result<R, Panic> {
        catch_unwind(AssertUnwindSafe(f))
    }
}

pub fn domain(config: Config) -> Domain<ThreadHost> {
    let host = ThreadHost {
        threads: Default::default(),
        start: Instant::now(),
    };
    Domain::new(host, config)
}

#[derive(Default)]
pub struct Stop(AtomicBool);

impl Stop {
    /// Asks the threads of the domain to stop serving.
    pub fn set(&self, domain: &Domain<ThreadHost>) {
        self.0.store(true, Ordering::SeqCst);
        for thread in &domain.host().threads {
            if let Some(thread) = &*thread.lock().unwrap() {
                thread.unpark();
            }
        }
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Serves the vCPU with the calling thread for a number of polls, or until `stop`; then retires the
/// vCPU.
pub fn serve(
    executor: Executor<ThreadHost>,
    stop: &Stop,
    polls: usize,
    begin: impl FnOnce(&Executor<ThreadHost>),
) {
    let host = executor.domain().host();
    *host.threads[executor.index()].lock().unwrap() = Some(thread::current());
    SERVED.set(Some(executor.vcpu()));
    begin(&executor);
    let (mut polls_left, mut back) = (polls, None);
    while polls_left != 0 && !stop.is_set() {
        match executor.pick(back.take()) {
            Some(Picked::Resume { id, .. }) => panic!("{id} was not suspended"),
            Some(Picked::Poll(running)) => {
                polls_left -= 1;
                if let Polled::Yielded(yielded) = running.poll() {
                    back = Some(yielded);
                }
            }
            None => {
                if executor.prepare_park() {
                    if !stop.is_set() {
                        thread::park();
                    }
                    executor.unpark();
                }
            }
        }
    }
    drop(back);
    executor.retire();
    SERVED.set(None);
}

/// Waits until `is_done` returns true, and panics if it does not within 60 s.
pub fn eventually(event: &str, mut is_done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_done() {
        assert!(
            cfg!(miri) || Instant::now() < deadline,
            "has not happened in 60 s: {event}"
        );
        thread::yield_now();
    }
}

pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }
}

/// A check that at most one thread is in the poll of a coroutine and that, if the coroutine is
/// pinned, it is always the same thread.
#[derive(Default)]
pub struct OneAtATime {
    inside: AtomicUsize,
    pinned: Option<ThreadId>,
}

impl OneAtATime {
    pub fn pinned_here() -> OneAtATime {
        OneAtATime {
            pinned: Some(thread::current().id()),
            ..OneAtATime::default()
        }
    }

    pub fn during<R>(&self, failures: &AtomicU64, f: impl FnOnce() -> R) -> R {
        let is_wrong_thread = self.pinned.is_some_and(|on| on != thread::current().id());
        if self.inside.fetch_add(1, Ordering::SeqCst) != 0 || is_wrong_thread {
            failures.fetch_add(1, Ordering::SeqCst);
        }
        let result = f();
        self.inside.fetch_sub(1, Ordering::SeqCst);
        result
    }
}
