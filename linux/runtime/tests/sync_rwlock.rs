//! Tests of `RwLock`: the concurrent holders, the order in which waiters acquire the lock, and the
//! levels that are lent to a writer. Also tests the levels that are lent to the initializer of a
//! `OnceCell`.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use upshift::sync::{OnceCell, RwLock, RwLockReadGuard, RwLockWriteGuard};
use upshift::{Level, Runtime, current_level, yield_now};

fn runtime_with_one_vcpu() -> Runtime {
    Runtime::builder().vcpus(1).build().unwrap()
}

fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn a_reader_waits_behind_an_equally_urgent_waiting_writer() {
    let lock = RwLock::new(());
    let reader = lock.try_read().unwrap();
    let mut writer = Box::pin(lock.write());
    assert!(poll(writer.as_mut()).is_pending());
    let mut later_reader = pin!(lock.read());
    assert!(poll(later_reader.as_mut()).is_pending());
    assert!(lock.try_read().is_err());
    drop(writer);
    assert!(poll(later_reader.as_mut()).is_ready());
    drop(reader);
}

#[test]
fn waiters_acquire_the_lock_most_urgent_first() {
    runtime_with_one_vcpu().block_on(async {
        let lock = Arc::new(RwLock::new(Vec::new()));
        let held = lock.write().await;
        let waiting: Vec<_> = [40_u8, 8, 20, 8]
            .into_iter()
            .map(|level| {
                let lock = lock.clone();
                let write = async move { lock.write().await.push(level) };
                upshift::spawn(write, Level::new(level).unwrap())
            })
            .collect();
        // Give all writers time to start waiting.
        for _ in 0..8 {
            upshift::time::sleep(std::time::Duration::from_micros(100)).await;
        }
        drop(held);
        for writer in waiting {
            writer.await.unwrap();
        }
        assert_eq!(*lock.read().await, [8, 8, 20, 40]);
    });
}

/// While the reader waits, the writer has the reader's level. After the writer has released the
/// lock, it has its own level again.
#[test]
fn a_writer_is_as_urgent_as_its_waiters() {
    runtime_with_one_vcpu().block_on(async {
        let lock = Arc::new(RwLock::new(0));
        let last_level = Arc::new(Mutex::new(None));
        let has_lock = Arc::new(AtomicBool::new(false));
        let (writer_lock, writer_last_level, writer_has_lock) =
            (lock.clone(), last_level.clone(), has_lock.clone());
        let writer = upshift::spawn(
            async move {
                let mut value = writer_lock.write().await;
                writer_has_lock.store(true, Ordering::SeqCst);
                while *writer_last_level.lock().unwrap() != Level::new(4).ok() {
                    *writer_last_level.lock().unwrap() = current_level();
                    yield_now().await;
                }
                *value += 1;
                drop(value);
                current_level()
            },
            Level::at::<40>(),
        );
        while !has_lock.load(Ordering::SeqCst) {
            upshift::time::sleep(std::time::Duration::from_micros(100)).await;
        }
        let reader_lock = lock.clone();
        let reader = upshift::spawn(async move { *reader_lock.read().await }, Level::at::<4>());
        assert_eq!(reader.await.unwrap(), 1);
        // Awaiting the handle would also lend this coroutine's level to the writer, so wait until
        // the writer has ended.
        while !writer.is_finished() {
            upshift::time::sleep(std::time::Duration::from_micros(100)).await;
        }
        assert_eq!(writer.await.unwrap(), Level::new(40).ok());
    });
}

#[test]
fn the_initializer_of_a_cell_is_as_urgent_as_its_waiters() {
    runtime_with_one_vcpu().block_on(async {
        static CELL: OnceCell<u32> = OnceCell::const_new();
        let has_begun = Arc::new(AtomicBool::new(false));
        let flag = has_begun.clone();
        let initializer = upshift::spawn(
            async move {
                let initialize = async || {
                    flag.store(true, Ordering::SeqCst);
                    while current_level() != Level::new(4).ok() {
                        yield_now().await;
                    }
                    7
                };
                *CELL.get_or_init(initialize).await
            },
            Level::at::<40>(),
        );
        while !has_begun.load(Ordering::SeqCst) {
            upshift::time::sleep(std::time::Duration::from_micros(100)).await;
        }
        let other = upshift::spawn(
            async { *CELL.get_or_init(async || 8).await },
            Level::at::<4>(),
        );
        assert_eq!(other.await.unwrap(), 7);
        assert_eq!(initializer.await.unwrap(), 7);
    });
}

#[test]
fn a_downgraded_writer_admits_readers_but_no_writer() {
    let lock = RwLock::new((1, 2));
    let writer = lock.try_write().unwrap();
    let mut other = pin!(lock.write());
    assert!(poll(other.as_mut()).is_pending());
    let reader = RwLockReadGuard::map(writer.downgrade(), |pair| &pair.1);
    assert_eq!(*reader, 2);
    assert!(poll(other.as_mut()).is_pending());
    drop(reader);
    let Poll::Ready(writer) = poll(other.as_mut()) else {
        panic!("the writer did not get the released lock")
    };
    let mut part = RwLockWriteGuard::map(writer, |pair| &mut pair.0);
    *part += 1;
    drop(part);
    assert_eq!(*lock.try_read().unwrap(), (2, 2));
}
