//! Code of users is called while no lock of the runtime is held: wakers of other executors and
//! values, which report each call within a use. Only debug builds know the uses.

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
    /// Calls of each kind that came within a use.
    static AMISS: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

fn called(what: &'static str) {
    CALLS.set(CALLS.get() + 1);
    if is_used() {
        AMISS.with_borrow_mut(|amiss| amiss.push(what));
    }
}

/// A waker that reports each call. Each has its own data, so that none is taken for another.
fn probe() -> Waker {
    static TABLE: RawWakerVTable = RawWakerVTable::new(
        |data| {
            called("clone of a waker");
            RawWaker::new(data, &TABLE)
        },
        |_| called("wake"),
        |_| called("wake"),
        |_| called("drop of a waker"),
    );
    thread_local! {
        static NUMBER: Cell<usize> = const { Cell::new(1) };
    }
    let number = NUMBER.replace(NUMBER.get() + 1);
    let data = std::ptr::without_provenance(number);
    // SAFETY: the table keeps the contract: its functions use nothing of the data.
    unsafe { Waker::from_raw(RawWaker::new(data, &TABLE)) }
}

/// A value that reports its clones and its drop.
#[derive(Debug)]
struct Value;

impl Clone for Value {
    fn clone(&self) -> Value {
        called("clone of a value");
        Value
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        called("drop of a value");
    }
}

/// Polls a future twice with wakers of its own, runs `then`, polls it again, and drops it.
fn waits<F: Future>(future: F, then: impl FnOnce()) {
    let mut future = pin!(future);
    for _ in 0..2 {
        let polled = future.as_mut().poll(&mut Context::from_waker(&probe()));
        assert!(polled.is_pending());
    }
    then();
    drop(future.as_mut().poll(&mut Context::from_waker(&probe())));
}

/// The same, and is dropped while it waits.
fn gives_up<F: Future>(future: F) {
    let mut future = pin!(future);
    for _ in 0..2 {
        let polled = future.as_mut().poll(&mut Context::from_waker(&probe()));
        assert!(polled.is_pending());
    }
}

#[track_caller]
fn nothing_is_amiss() {
    assert_ne!(CALLS.replace(0), 0);
    let amiss = AMISS.take();
    assert!(amiss.is_empty(), "within a use: {amiss:?}");
}

#[test]
#[should_panic(expected = "while a lock of the runtime is held")]
fn a_call_under_a_lock_is_found() {
    let _critical = Critical::enter();
    super::catch_panic(|| ());
}

#[test]
fn no_primitive_calls_code_of_users_under_its_lock() {
    let notify = Notify::new();
    waits(notify.notified(), || notify.notify_one());
    waits(notify.notified(), || notify.notify_waiters());
    gives_up(notify.notified());
    nothing_is_amiss();

    let semaphore = Semaphore::new(0);
    waits(semaphore.acquire(), || semaphore.add_permits(1));
    gives_up(semaphore.acquire_many(9));
    waits(semaphore.acquire_many(9), || semaphore.close());
    nothing_is_amiss();

    let mutex = Mutex::new(());
    let mut guard = Some(mutex.try_lock().unwrap());
    gives_up(mutex.lock());
    waits(mutex.lock(), || drop(guard.take()));
    nothing_is_amiss();

    let lock = RwLock::new(());
    let mut guard = Some(lock.try_write().unwrap());
    gives_up(lock.read());
    gives_up(lock.write());
    waits(lock.read(), || drop(guard.take()));
    let mut guard = Some(lock.try_read().unwrap());
    waits(lock.write(), || drop(guard.take()));
    nothing_is_amiss();

    let cell = OnceCell::<Value>::new();
    gives_up(cell.get_or_init(std::future::pending));
    let once = SetOnce::<Value>::new();
    gives_up(once.wait());
    waits(once.wait(), || once.set(Value).unwrap());
    drop(once.set(Value));
    nothing_is_amiss();

    let barrier = Barrier::new(2);
    waits(barrier.wait(), || {
        let met = pin!(barrier.wait()).poll(&mut Context::from_waker(Waker::noop()));
        assert!(met.is_ready());
    });
    let token = CancellationToken::new();
    gives_up(token.cancelled());
    let child = token.child_token();
    waits(child.cancelled(), || token.cancel());
    nothing_is_amiss();
}

#[test]
fn no_channel_calls_code_of_users_under_its_lock() {
    let (sender, mut receiver) = mpsc::channel::<Value>(1);
    gives_up(receiver.recv());
    waits(receiver.recv(), || sender.try_send(Value).unwrap());
    sender.try_send(Value).unwrap();
    gives_up(sender.send(Value));
    waits(sender.send(Value), || drop(receiver.try_recv().unwrap()));
    waits(sender.closed(), || drop(receiver));
    assert!(sender.try_send(Value).is_err());
    nothing_is_amiss();

    let (sender, mut receiver) = mpsc::unbounded_channel::<Value>();
    waits(receiver.recv(), || sender.send(Value).unwrap());
    sender.send(Value).unwrap();
    receiver.close();
    drop(receiver);
    drop(sender);
    nothing_is_amiss();

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
    nothing_is_amiss();

    let (sender, mut receiver) = broadcast::channel::<Value>(1);
    gives_up(receiver.recv());
    waits(receiver.recv(), || {
        assert_eq!(sender.send(Value).unwrap(), 1)
    });
    let mut other = sender.subscribe();
    for _ in 0..3 {
        sender.send(Value).unwrap();
    }
    assert!(other.try_recv().is_err(), "it lags");
    drop(other.try_recv().unwrap());
    drop(other);
    drop(receiver);
    assert!(sender.send(Value).is_err());
    nothing_is_amiss();

    let (sender, mut receiver) = watch::channel(Value);
    gives_up(receiver.changed());
    waits(receiver.changed(), || sender.send(Value).unwrap());
    drop(sender.send_replace(Value));
    waits(sender.closed(), || drop(receiver));
    nothing_is_amiss();
}

/// Polls with the probe in a coroutine, runs `then`, and polls again and again until the future
/// ends.
async fn notify_local_arrival<F: Future>(future: F, then: impl FnOnce()) {
    let mut future = pin!(future);
    for _ in 0..2 {
        let polled = future.as_mut().poll(&mut Context::from_waker(&probe()));
        assert!(polled.is_pending());
    }
    then();
    let waker = probe();
    let end = std::time::Instant::now() + Duration::from_secs(20);
    poll_fn(|cx| {
        assert!(std::time::Instant::now() < end, "it does not end");
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
fn no_coroutine_timer_or_operation_calls_code_of_users_under_a_lock() {
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
        notify_local_arrival(wait(&notify), || notify.notify_one()).await;
        gives_up(wait(&notify));
        notify.notify_one();
        yield_now().await;
        nothing_is_amiss();

        let mut set = task::JoinSet::new();
        for _ in 0..2 {
            let notify = notify.clone();
            set.spawn(async move { notify.notified().await });
        }
        gives_up(set.join_next());
        notify_local_arrival(set.join_next(), || notify.notify_one()).await;
        drop(set);
        nothing_is_amiss();

        gives_up(time::sleep(Duration::from_secs(60)));
        notify_local_arrival(time::sleep(Duration::from_millis(2)), || ()).await;
        let mut sleep = time::sleep(Duration::from_secs(60));
        gives_up(&mut sleep);
        sleep.reset(time::Instant::now());
        sleep.await;
        nothing_is_amiss();

        let (one, mut other) = crate::net::UnixStream::pair().unwrap();
        gives_up(other.recv());
        notify_local_arrival(other.recv(), || drop(one)).await;
        nothing_is_amiss();

        let mut signals = signal::Signals::new([libc::SIGWINCH]).unwrap();
        gives_up(signals.recv());
        drop(signals);
        nothing_is_amiss();
    });
}
