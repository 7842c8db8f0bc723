//! Implements the scheduler's host (its operating system) for tests. The test sets the clock, and a
//! thread-local contains the vCPU that a thread serves.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file includes this and uses a part of it"
)]

use std::cell::Cell;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use upshift_core::QueueEnd;
use upshift_core::preempt::WaitingWork;
use upshift_core::{
    Config, CoroutineId, Domain, Executor, Host, JoinError, JoinHandle, Level, Panic, Picked,
    Polled, Priority, ServedVcpu, Vcpu,
};

thread_local! {
    static SERVED: Cell<Option<NonNull<Vcpu<TestHost>>>> = const { Cell::new(None) };
    /// Number of critical sections that this thread is in.
    static ENTERED: Cell<u32> = const { Cell::new(0) };
    /// Function to call when this thread next leaves its critical section.
    static LEAVING: Cell<Option<Box<dyn FnOnce()>>> = const { Cell::new(None) };
}

#[derive(Default)]
pub struct TestHost {
    pub time: AtomicU64,
    /// Indices of the vCPUs that were kicked.
    pub kicked: Mutex<Vec<usize>>,
    /// Indices of the vCPUs that `notify_arrival` named.
    pub notified: Mutex<Vec<usize>>,
    /// Arguments of `notify_local_arrival`: the urgency of work that a poll made ready on the vCPU
    /// that runs the poll.
    pub waiting: Mutex<Vec<WaitingWork>>,
    /// Watched polls, each with its end time.
    pub watched: Mutex<Vec<(upshift_core::Poll, u64)>>,
}

// SAFETY: `current` returns a vCPU only inside `serving`, whose caller has the vCPU's executor, and
// only to the calling thread.
unsafe impl Host for TestHost {
    #[inline]
    fn waker_table() -> &'static core::task::RawWakerVTable {
        upshift_core::waker_table!(TestHost)
    }

    fn now(&self) -> u64 {
        self.time.load(Ordering::Relaxed)
    }
    fn current(&self) -> Option<ServedVcpu> {
        SERVED.get().map(ServedVcpu::from)
    }
    fn kick(&self, index: usize) {
        self.kicked.lock().unwrap().push(index);
    }
    fn notify_arrival(&self, index: usize) {
        self.notified.lock().unwrap().push(index);
    }
    fn notify_local_arrival(&self, waits: WaitingWork) {
        self.waiting.lock().unwrap().push(waits);
    }
    fn on_watched_poll_end(&self, _: usize, poll: &upshift_core::Poll, ended: u64) {
        self.watched.lock().unwrap().push((*poll, ended));
    }
    fn enter_critical() {
        ENTERED.set(ENTERED.get() + 1);
    }
    fn leave_critical() {
        ENTERED.set(ENTERED.get() - 1);
        if let Some(action) = LEAVING.take() {
            action();
        }
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

pub fn is_critical() -> bool {
    ENTERED.get() != 0
}

/// Calls `action` at the end of the calling thread's next critical section.
#[allow(dead_code, reason = "not every test does")]
pub fn when_leaving(action: impl FnOnce() + 'static) {
    LEAVING.set(Some(Box::new(action)));
}

/// Makes the calling thread serve the vCPU during `f`.
pub fn serving<R>(executor: &Executor<TestHost>, f: impl FnOnce() -> R) -> R {
    let before = SERVED.replace(Some(executor.vcpu()));
    let result = f();
    SERVED.set(before);
    result
}

/// Makes the poll under way on this thread keep its place in the queue when it yields.
#[allow(dead_code, reason = "not every test does")]
pub fn keep_place() {
    // SAFETY: the vCPU is alive, since `serving` borrows its executor.
    unsafe { SERVED.get().unwrap().as_ref() }.keep_place();
}

/// Returns true if the poll under way on this thread is asked to yield.
pub fn need_preempt() -> bool {
    // SAFETY: the vCPU is alive, since `serving` borrows its executor.
    unsafe { SERVED.get().unwrap().as_ref() }.need_preempt()
}

/// Returns the coroutine that this thread polls, and its level.
pub fn polled_here() -> (Option<CoroutineId>, Option<Level>) {
    // SAFETY: the vCPU is alive, since `serving` borrows its executor.
    let vcpu = unsafe { SERVED.get().unwrap().as_ref() };
    (vcpu.current_id(), vcpu.running_level())
}

#[allow(dead_code, reason = "not every test asks")]
pub fn quantum_began() -> u64 {
    // SAFETY: the vCPU is alive, since `serving` borrows its executor.
    unsafe { SERVED.get().unwrap().as_ref() }.quantum_began()
}

/// Polls until no coroutine is ready, at most `limit` times. Returns the number of polls.
pub fn run(executor: &Executor<TestHost>, limit: usize) -> usize {
    serving(executor, || {
        let mut back = None;
        for polls in 0..limit {
            match executor.pick(back.take()) {
                None => return polls,
                Some(Picked::Resume { id, .. }) => panic!("{id} was not suspended"),
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

#[derive(Clone, Default)]
pub struct Trace(Arc<Mutex<Vec<String>>>);

impl Trace {
    pub fn push(&self, event: impl Into<String>) {
        self.0.lock().unwrap().push(event.into());
    }

    /// Returns the events since the last call, joined by spaces.
    pub fn take(&self) -> String {
        std::mem::take(&mut *self.0.lock().unwrap()).join(" ")
    }

    /// Returns a future that records `name` in its only poll.
    pub fn say(&self, name: &str) -> impl Future<Output = ()> + Send + use<> {
        let (trace, name) = (self.clone(), name.to_owned());
        async move { trace.push(name) }
    }
}

pub fn level(n: u8) -> Level {
    Level::new(n).unwrap()
}

pub fn at(n: u8) -> Priority {
    Priority::At(level(n))
}

/// Returns a future that is pending once and does not use its waker.
pub fn block_once() -> impl Future<Output = ()> + Send {
    let mut blocked = false;
    poll_fn(move |_| {
        if std::mem::replace(&mut blocked, true) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
}

/// Returns a future that is pending once and wakes itself at once.
pub fn yield_now() -> impl Future<Output = ()> + Send {
    let mut yielded = false;
    poll_fn(move |cx| {
        if std::mem::replace(&mut yielded, true) {
            Poll::Ready(())
        } else {
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    })
}

/// Polls the next coroutine once, and returns its id and level; `None` if no coroutine is ready.
pub fn step(executor: &Executor<TestHost>) -> Option<(CoroutineId, Level)> {
    serving(executor, || match executor.pick(None)? {
        Picked::Resume { id, .. } => panic!("{id} was not suspended"),
        Picked::Poll(running) => {
            let polled = (running.id(), running.level());
            // Dropping a yielded coroutine queues it again.
            let _ = running.poll();
            Some(polled)
        }
    })
}

/// Runs coroutines until the one of this handle has exited, and returns its result.
pub fn join<T>(
    executor: &Executor<TestHost>,
    handle: JoinHandle<T, TestHost>,
) -> Result<T, JoinError> {
    let mut handle = handle;
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..100 {
        if let Poll::Ready(result) = Pin::new(&mut handle).poll(&mut cx) {
            return result;
        }
        run(executor, 100);
    }
    panic!("the coroutine does not exit");
}

/// A pointer to an executor, for a coroutine that itself picks and polls other coroutines.
pub struct Server(*const Executor<TestHost>);

// SAFETY: no other thread uses the pointer, since the tests that use `Server` have one thread.
unsafe impl Send for Server {}

impl Server {
    pub fn of(executor: &Executor<TestHost>) -> Server {
        Server(executor)
    }

    pub fn get(&self) -> &Executor<TestHost> {
        // SAFETY: the pointer is valid, since the executor outlives the run of its coroutines.
        unsafe { &*self.0 }
    }

    /// Suspends the current coroutine in the middle of its poll, and polls other coroutines until
    /// the suspended one is resumed.
    pub fn suspend(&self) {
        let executor = self.get();
        // SAFETY: no other thread serves the vCPU, and the poll that calls this continues only when
        // the loop below ends, that is, after the coroutine was picked again.
        let own_id = unsafe { executor.suspend_current(QueueEnd::Tail) }.unwrap();
        loop {
            match executor.pick(None).expect("the suspended poll is ready") {
                Picked::Resume { id, .. } => return assert_eq!(id, own_id),
                Picked::Poll(running) => drop(running.poll()),
            }
        }
    }
}

/// Ends all coroutines, because a coroutine that holds a handle to its own domain keeps itself and
/// the domain alive.
pub fn finish(domain: &Domain<TestHost>, executor: &Executor<TestHost>) {
    domain.close();
    while domain.cancel_all() != 0 {
        run(executor, 1_000);
    }
}

#[derive(Clone, Default)]
pub struct Drops(Arc<AtomicU64>);

impl Drops {
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    pub fn token(&self) -> DropToken {
        DropToken(self.clone())
    }
}

pub struct DropToken(Drops);

impl Drop for DropToken {
    fn drop(&mut self) {
        self.0.0.fetch_add(1, Ordering::SeqCst);
    }
}

pub fn block_on<F: Future>(future: F) -> F::Output {
    struct Thread(std::thread::Thread);
    impl std::task::Wake for Thread {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Thread(std::thread::current())));
    let mut cx = Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        std::thread::park();
    }
}
