//! Tests that user code is called only outside of *uses*. A use is a section that holds a lock of
//! the runtime, or works on state that the threads of a vCPU share. The tests pass probes (wakers
//! of another executor, and values) to the runtime; a probe records each call that comes within a
//! use. Only debug builds count uses.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};
use std::time::Duration;

use upshift_core::Level;

use crate::preempt::permit::{Critical, is_used};
use crate::sync::{
    Barrier, CancellationToken, Mutex, Notify, OnceCell, RwLock, Semaphore, SetOnce, broadcast,
    mpsc, oneshot, watch,
};
use crate::{Runtime, signal, spawn, task, time, yield_now};

thread_local! {
    /// Kinds of the calls that came within a use.
    static WITHIN_USE: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
    /// Number of calls, within a use or not.
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

fn record_call(kind: &'static str) {
    CALLS.set(CALLS.get() + 1);
    if is_used() {
        WITHIN_USE.with_borrow_mut(|kinds| kinds.push(kind));
    }
}

/// Returns a waker that records each call. Each waker has its own data, so that `will_wake` is
/// false for two different probes.
fn probe() -> Waker {
    static TABLE: RawWakerVTable = RawWakerVTable::new(
        |data| {
            record_call("clone of a waker");
            RawWaker::new(data, &TABLE)
        },
        |_| record_call("wake"),
        |_| record_call("wake"),
        |_| record_call("drop of a waker"),
    );
    thread_local! {
        static NUMBER: Cell<usize> = const { Cell::new(1) };
    }
    let number = NUMBER.replace(NUMBER.get() + 1);
    let data = std::ptr::without_provenance(number);
    // SAFETY: the functions of the table meet the contract of `RawWaker`, because they never
    // dereference the data.
    unsafe { Waker::from_raw(RawWaker::new(data, &TABLE)) }
}

#[derive(Debug)]
struct Value;

impl Clone for Value {
    fn clone(&self) -> Value {
        record_call("clone of a value");
        Value
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        record_call("drop of a value");
    }
}

/// Polls a future twice with a new probe each, runs `then`, polls the future again, and drops it.
fn waits<F: Future>(future: F, then: impl FnOnce()) {
    let mut future = pin!(future);
    for _ in 0..2 {
        let polled = future.as_mut().poll(&mut Context::from_waker(&probe()));
        assert!(polled.is_pending());
    }
    then();
    drop(future.as_mut().poll(&mut Context::from_waker(&probe())));
}

/// Polls a future twice with a new probe each, and drops it while it is pending.
fn gives_up<F: Future>(future: F) {
    let mut future = pin!(future);
    for _ in 0..2 {
        let polled = future.as_mut().poll(&mut Context::from_waker(&probe()));
        assert!(polled.is_pending());
    }
}

#[track_caller]
fn assert_no_call_within_a_use() {
    assert_ne!(CALLS.replace(0), 0);
    let kinds = WITHIN_USE.take();
    assert!(kinds.is_empty(), "called within a use: {kinds:?}");
}

#[test]
#[should_panic(expected = "while a lock of the runtime is held")]
fn a_call_under_a_lock_is_found() {
    let _critical = Critical::enter();
    super::catch_panic(|| ());
}

#[test]
fn no_primitive_calls_user_code_under_its_lock() {
    let notify = Notify::new();
    waits(notify.notified(), || notify.notify_one());
    waits(notify.notified(), || notify.notify_waiters());
    gives_up(notify.notified());
    assert_no_call_within_a_use();

    let semaphore = Semaphore::new(0);
    waits(semaphore.acquire(), || semaphore.add_permits(1));
    gives_up(semaphore.acquire_many(9));
    waits(semaphore.acquire_many(9), || semaphore.close());
    assert_no_call_within_a_use();

    let mutex = Mutex::new(());
    let mut guard = Some(mutex.try_lock().unwrap());
    gives_up(mutex.lock());
    waits(mutex.lock(), || drop(guard.take()));
    assert_no_call_within_a_use();

    let lock = RwLock::new(());
    let mut guard = Some(lock.try_write().unwrap());
    gives_up(lock.read());
    gives_up(lock.write());
    waits(lock.read(), || drop(guard.take()));
    let mut guard = Some(lock.try_read().unwrap());
    waits(lock.write(), || drop(guard.take()));
    assert_no_call_within_a_use();

    let cell = OnceCell::<Value>::new();
    gives_up(cell.get_or_init(std::future::pending));
    let once = SetOnce::<Value>::new();
    gives_up(once.wait());
    waits(once.wait(), || once.set(Value).unwrap());
    drop(once.set(Value));
    assert_no_call_within_a_use();

    let barrier = Barrier::new(2);
    waits(barrier.wait(), || {
        let polled = pin!(barrier.wait()).poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_ready());
    });
    let token = CancellationToken::new();
    gives_up(token.cancelled());
    let child = token.child_token();
    waits(child.cancelled(), || token.cancel());
    assert_no_call_within_a_use();
}

#[test]
fn no_channel_calls_user_code_under_its_lock() {
    let (sender, mut receiver) = mpsc::channel::<Value>(1);
    gives_up(receiver.recv());
    waits(receiver.recv(), || sender.try_send(Value).unwrap());
    sender.try_send(Value).unwrap();
    gives_up(sender.send(Value));
    waits(sender.send(Value), || drop(receiver.try_recv().unwrap()));
    waits(sender.closed(), || drop(receiver));
    assert!(sender.try_send(Value).is_err());
    assert_no_call_within_a_use();

    let (sender, mut receiver) = mpsc::unbounded_channel::<Value>();
    waits(receiver.recv(), || sender.send(Value).unwrap());
    sender.send(Value).unwrap();
    receiver.close();
    drop(receiver);
    drop(sender);
    assert_no_call_within_a_use();

    let (sender, mut receiver) = oneshot::channel::<Value>();
    let mut sender = Some(sender);
    waits(&mut receiver, || {
        let sender = sender.take().expect("sent once");
        sender.send(Value).unwrap();
    });
    let (mut sender, receiver) = oneshot::channel::<Value>();
    waits(sender.closed(), || drop(receiver));
    assert!(sender.send(Value).is_err());
    let (sender, receiver) = oneshot::channel::<Value>();
    sender.send(Value).unwrap();
    drop(receiver);
    assert_no_call_within_a_use();

    let (sender, mut receiver) = broadcast::channel::<Value>(1);
    gives_up(receiver.recv());
    waits(receiver.recv(), || {
        assert_eq!(sender.send(Value).unwrap(), 1)
    });
    let mut other = sender.subscribe();
    for _ in 0..3 {
        sender.send(Value).unwrap();
    }
    assert!(other.try_recv().is_err(), "no lag is reported");
    drop(other.try_recv().unwrap());
    drop(other);
    drop(receiver);
    assert!(sender.send(Value).is_err());
    assert_no_call_within_a_use();

    let (sender, mut receiver) = watch::channel(Value);
    gives_up(receiver.changed());
    waits(receiver.changed(), || sender.send(Value).unwrap());
    drop(sender.send_replace(Value));
    waits(sender.closed(), || drop(receiver));
    assert_no_call_within_a_use();
}

/// Polls a future twice with a new probe each, runs `then`, and polls the future until it is ready.
async fn waits_in_coroutine<F: Future>(future: F, then: impl FnOnce()) {
    let mut future = pin!(future);
    for _ in 0..2 {
        let polled = future.as_mut().poll(&mut Context::from_waker(&probe()));
        assert!(polled.is_pending());
    }
    then();
    let waker = probe();
    let end = std::time::Instant::now() + Duration::from_secs(20);
    poll_fn(|cx| {
        assert!(std::time::Instant::now() < end, "the future hangs");
        let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
        if polled.is_pending() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    })
    .await;
}

#[test]
fn no_coroutine_timer_or_operation_calls_user_code_under_a_lock() {
    let runtime = Runtime::builder().vcpus(1).build().unwrap();
    runtime.block_on(async {
        let notify = Arc::new(Notify::new());
        let wait = |notify: &Arc<Notify>| {
            let notify = notify.clone();
            spawn(
                async move {
                    notify.notified().await;
                    Value
                },
                Level::default(),
            )
        };
        waits_in_coroutine(wait(&notify), || notify.notify_one()).await;
        gives_up(wait(&notify));
        notify.notify_one();
        yield_now().await;
        assert_no_call_within_a_use();

        let mut set = task::JoinSet::new();
        for _ in 0..2 {
            let notify = notify.clone();
            set.spawn(async move { notify.notified().await });
        }
        gives_up(set.join_next());
        waits_in_coroutine(set.join_next(), || notify.notify_one()).await;
        drop(set);
        assert_no_call_within_a_use();

        gives_up(time::sleep(Duration::from_secs(60)));
        waits_in_coroutine(time::sleep(Duration::from_millis(2)), || ()).await;
        let mut sleep = time::sleep(Duration::from_secs(60));
        gives_up(&mut sleep);
        sleep.reset(time::Instant::now());
        sleep.await;
        assert_no_call_within_a_use();

        let (one, mut other) = crate::net::UnixStream::pair().unwrap();
        gives_up(other.recv());
        waits_in_coroutine(other.recv(), || drop(one)).await;
        assert_no_call_within_a_use();

        let mut signals = signal::Signals::new([libc::SIGWINCH]).unwrap();
        gives_up(signals.recv());
        drop(signals);
        assert_no_call_within_a_use();
    });
}
