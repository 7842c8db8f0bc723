//! Implements the scheduler's host (its operating system) for the model checker `loom`, which
//! explores all interleavings of a few threads. A thread-local of the checker contains the vCPU
//! that a thread of the model serves. The clock stands still unless a model advances it, and a
//! thread can wait until its vCPU is kicked (woken from a park). Invariants have the numbers that
//! the documentation of `upshift_core` gives them.
//!
//! A model has one or two vCPUs (in one model three), one or two coroutines, and at most two
//! threads besides the first. The checker preempts at most three times with two threads, and twice
//! with three. The steps of one thread alone and the effects of the memory model are not bounded.
//! The checker treats sequentially consistent loads and stores as acquire and release; only fences
//! are exact.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each file of models includes this and uses a part of it"
)]

use std::cell::Cell;
use std::future::poll_fn;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::task::Poll;

use loom::cell::UnsafeCell;
use loom::sync::Notify;
use loom::sync::atomic::{AtomicUsize as ModelledUsize, Ordering::SeqCst, fence};
use loom::thread::{self, JoinHandle};
use upshift_core::{
    Config, CoroutineId, Domain, Executor, Host, Kind, Level, Picked, Polled, Priority, ServedVcpu,
    SpawnOptions, Vcpu,
};

/// Ticks after which a poll is long, in models in which idle vCPUs watch the others for long polls.
pub const AFTER: u64 = 50;
/// Ticks between two examinations of the other vCPUs by a vCPU that finds nothing.
pub const PERIOD: u64 = 20 * AFTER;
/// Time at which models begin. It is many periods after the start of the clock, so that a vCPU that
/// was never served counts as unserved.
const EPOCH: u64 = 1000 * PERIOD;

loom::thread_local! {
    static SERVED: Cell<Option<NonNull<Vcpu<ModelHost>>>> = Cell::new(None);
}

/// Fields that only the end of a model reads are invisible to the checker.
pub struct ModelHost {
    time: AtomicU64,
    /// True if the locks of vCPUs are biased to their owners.
    biases: bool,
    /// Number of kicks of each vCPU.
    kicks: [AtomicUsize; 3],
    /// Wake-up of a kicked vCPU, which is kept until the vCPU waits, as by an eventfd or a pending
    /// interrupt.
    wakes: [Notify; 3],
}

// SAFETY: `current` returns a vCPU only inside `serving`, whose caller has the vCPU's executor, and
// only to the calling thread.
unsafe impl Host for ModelHost {
    #[inline]
    fn waker_table() -> &'static core::task::RawWakerVTable {
        upshift_core::waker_table!(ModelHost)
    }

    fn now(&self) -> u64 {
        self.time.load(Relaxed)
    }
    fn current(&self) -> Option<ServedVcpu> {
        SERVED.with(Cell::get).map(ServedVcpu::from)
    }
    fn kick(&self, index: usize) {
        self.kicks[index].fetch_add(1, Relaxed);
        self.wakes[index].notify();
    }
    fn relax(&self, _: u32) {
        loom::thread::yield_now();
    }
    fn has_heavy_barrier(&self) -> bool {
        self.biases
    }
    /// Passes a full fence; under the checker, the light barrier of the owner is a full fence, too.
    fn heavy_barrier(&self) {
        fence(SeqCst);
    }
}

impl ModelHost {
    pub fn kicks(&self, index: usize) -> usize {
        self.kicks[index].load(Relaxed)
    }

    /// Waits until the vCPU is kicked; may return without cause.
    pub fn wait(&self, index: usize) {
        self.wakes[index].wait();
    }

    /// Advances the clock, before the threads of a model start.
    pub fn pass(&self, ticks: u64) {
        self.time.fetch_add(ticks, Relaxed);
    }
}

/// Checks a model with at most two threads besides the first, and at most this number of
/// preemptions. `LOOM_MAX_PREEMPTIONS` may lower that number, but not raise it.
pub fn check(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.max_threads = 3;
    builder.max_branches = 10_000;
    builder.preemption_bound = Some(match builder.preemption_bound {
        Some(bound) => bound.min(preemptions),
        None => preemptions,
    });
    builder.check(model);
}

pub fn domain(long_poll_after: u64) -> Domain<ModelHost> {
    domain_of(long_poll_after, false)
}

/// Creates a domain in which a vCPU's lock is biased as soon as its owner has taken it.
pub fn biased_domain(long_poll_after: u64) -> Domain<ModelHost> {
    domain_of(long_poll_after, true)
}

fn domain_of(long_poll_after: u64, biases: bool) -> Domain<ModelHost> {
    let host = ModelHost {
        biases,
        time: AtomicU64::new(EPOCH),
        kicks: [const { AtomicUsize::new(0) }; 3],
        wakes: [Notify::new(), Notify::new(), Notify::new()],
    };
    let config = Config {
        long_poll_after,
        ..Config::default()
    };
    Domain::new(host, config)
}

pub fn level(n: u8) -> Level {
    Level::new(n).unwrap()
}

/// Makes the calling thread serve the vCPU during `f`.
pub fn serving<R>(vcpu: &Executor<ModelHost>, f: impl FnOnce() -> R) -> R {
    let before = SERVED.with(|served| served.replace(Some(vcpu.vcpu())));
    let result = f();
    SERVED.with(|served| served.set(before));
    result
}

/// Calls `f` as an interrupt handler, which serves no vCPU.
pub fn interrupting<R>(f: impl FnOnce() -> R) -> R {
    let before = SERVED.with(Cell::take);
    let result = f();
    SERVED.with(|served| served.set(before));
    result
}

/// Polls until no coroutine is ready.
pub fn run(vcpu: &Executor<ModelHost>) {
    serving(vcpu, || {
        let mut back = None;
        while let Some(Picked::Poll(running)) = vcpu.pick(back.take()) {
            if let Polled::Yielded(yielded) = running.poll() {
                back = Some(yielded);
            }
        }
    });
}

/// Serves a vCPU on another thread until it has no work, and gives it back.
pub fn run_elsewhere(vcpu: Executor<ModelHost>) -> JoinHandle<Executor<ModelHost>> {
    thread::spawn(move || {
        run(&vcpu);
        vcpu
    })
}

pub fn reprio_elsewhere(domain: &Domain<ModelHost>, id: CoroutineId, to: u8) -> JoinHandle<()> {
    let domain = domain.clone();
    thread::spawn(move || domain.reprio(id, level(to)).unwrap())
}

/// Polls the next coroutine, once. Returns false if none is ready.
pub fn poll_next(vcpu: &Executor<ModelHost>) -> bool {
    serving(vcpu, || {
        let Some(Picked::Poll(running)) = vcpu.pick(None) else {
            return false;
        };
        drop(running.poll());
        true
    })
}

/// Begins a poll, calls `during`, and then polls the future.
pub fn polling<R>(vcpu: &Executor<ModelHost>, during: impl FnOnce() -> R) -> R {
    serving(vcpu, || {
        let Some(Picked::Poll(running)) = vcpu.pick(None) else {
            panic!("no coroutine is ready")
        };
        let result = during();
        drop(running.poll());
        result
    })
}

/// A coroutine that is never done.
#[derive(Clone)]
pub struct Work {
    inner: Arc<Inner>,
}

struct Inner {
    /// Accessed only by polls, so that the checker detects polls that overlap.
    polls: UnsafeCell<usize>,
    /// Written before the wake.
    data: ModelledUsize,
    /// Value of `data` that the last poll saw.
    seen: AtomicUsize,
    /// Number of polls, invisible to the checker.
    poll_count: AtomicUsize,
}

// SAFETY: the checker verifies that no two threads use a cell at once.
unsafe impl Sync for Inner {}

impl Work {
    pub fn new() -> Work {
        let inner = Inner {
            polls: UnsafeCell::new(0),
            data: ModelledUsize::new(0),
            seen: AtomicUsize::new(0),
            poll_count: AtomicUsize::new(0),
        };
        Work {
            inner: Arc::new(inner),
        }
    }

    fn future(&self) -> impl Future<Output = ()> + Send + 'static {
        let inner = self.inner.clone();
        poll_fn(move |_| {
            // SAFETY: the access is exclusive, since one thread at a time polls a coroutine; the
            // checker verifies this.
            inner.polls.with_mut(|polls| unsafe { *polls += 1 });
            inner.seen.store(inner.data.load(Relaxed), Relaxed);
            inner.poll_count.fetch_add(1, Relaxed);
            Poll::Pending
        })
    }

    pub fn spawn(&self, domain: &Domain<ModelHost>, at: u8) -> CoroutineId {
        let handle = domain
            .spawn(self.future(), Priority::At(level(at)))
            .unwrap();
        let id = handle.id();
        handle.detach();
        id
    }

    pub fn spawn_pinned(&self, vcpu: &Executor<ModelHost>, at: u8, kind: Kind) -> CoroutineId {
        let options = SpawnOptions {
            kind,
            ..SpawnOptions::from(Priority::At(level(at)))
        };
        // SAFETY: the future and its output are `Send`.
        let handle = unsafe { vcpu.spawn_pinned(self.future(), options).unwrap() };
        let id = handle.id();
        handle.detach();
        id
    }

    /// Creates work that is blocked on the vCPU, after its first poll.
    pub fn blocked(
        domain: &Domain<ModelHost>,
        vcpu: &Executor<ModelHost>,
        at: u8,
    ) -> (Work, CoroutineId) {
        let work = Work::new();
        let id = serving(vcpu, || work.spawn(domain, at));
        run(vcpu);
        (work, id)
    }

    /// Wakes the coroutine after storing new data.
    pub fn wake(&self, domain: &Domain<ModelHost>, id: CoroutineId) {
        self.inner.data.store(1, Relaxed);
        domain.wake(id).unwrap();
    }

    pub fn wake_elsewhere(&self, domain: &Domain<ModelHost>, id: CoroutineId) -> JoinHandle<()> {
        let (domain, work) = (domain.clone(), self.clone());
        thread::spawn(move || work.wake(&domain, id))
    }

    pub fn polls(&self) -> usize {
        self.inner.poll_count.load(Relaxed)
    }

    /// Returns true if the last poll has seen the data of a wake.
    pub fn has_seen(&self) -> bool {
        self.inner.seen.load(Relaxed) != 0
    }
}
