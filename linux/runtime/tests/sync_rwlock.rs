//! The lock for one writer or several readers: the holders at a time, the order in which waiters
//! are let in, and the levels that a writer is lent.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use upshift::sync::{OnceCell, RwLock, RwLockReadGuard, RwLockWriteGuard};
use upshift::{Level, Runtime, current_level, yield_now};

fn one() -> Runtime {
    Runtime::builder().vcpus(1).build().unwrap()
}

fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn a_reader_does_not_overtake_an_equal_writer_and_a_dropped_writer_lets_it_in() {
    let lock = RwLock::new(());
    let reader = lock.try_read().unwrap();
    let mut writer = Box::pin(lock.write());
    assert!(poll(writer.as_mut()).is_pending());
    let mut late = pin!(lock.read());
    assert!(poll(late.as_mut()).is_pending());
    assert!(lock.try_read().is_err());
    drop(writer);
    assert!(poll(late.as_mut()).is_ready());
    drop(reader);
}

#[test]
fn waiters_are_let_in_most_urgent_first() {
    one().block_on(async {
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

/// Without the loan the busy one of level 20 would keep the writer of level 40 from going on.
#[test]
fn a_writer_is_as_urgent_as_its_waiters() {
    one().block_on(async {
        let lock = Arc::new(RwLock::new(0));
        let seen = Arc::new(Mutex::new(None));
        let inside = Arc::new(AtomicBool::new(false));
        let (theirs, level, flag) = (lock.clone(), seen.clone(), inside.clone());
        let writer = upshift::spawn(
            async move {
                let mut value = theirs.write().await;
                flag.store(true, Ordering::SeqCst);
                while *level.lock().unwrap() != Level::new(4).ok() {
                    *level.lock().unwrap() = current_level();
                    yield_now().await;
                }
                *value += 1;
                drop(value);
                current_level()
            },
            Level::at::<40>(),
        );
        while !inside.load(Ordering::SeqCst) {
            upshift::time::sleep(std::time::Duration::from_micros(100)).await;
        }
        let theirs = lock.clone();
        let reader = upshift::spawn(async move { *theirs.read().await }, Level::at::<4>());
        assert_eq!(reader.await.unwrap(), 1);
        // Joining lends, too: so not looked at before it has exited.
        while !writer.is_finished() {
            upshift::time::sleep(std::time::Duration::from_micros(100)).await;
        }
        assert_eq!(writer.await.unwrap(), Level::new(40).ok());
    });
}

#[test]
fn the_initializer_of_a_cell_is_as_urgent_as_its_waiters() {
    one().block_on(async {
        static CELL: OnceCell<u32> = OnceCell::const_new();
        let making = Arc::new(AtomicBool::new(false));
        let flag = making.clone();
        let maker = upshift::spawn(
            async move {
                let make = async || {
                    flag.store(true, Ordering::SeqCst);
                    while current_level() != Level::new(4).ok() {
                        yield_now().await;
                    }
                    7
                };
                *CELL.get_or_init(make).await
            },
            Level::at::<40>(),
        );
        while !making.load(Ordering::SeqCst) {
            upshift::time::sleep(std::time::Duration::from_micros(100)).await;
        }
        let other = upshift::spawn(
            async { *CELL.get_or_init(async || 8).await },
            Level::at::<4>(),
        );
        assert_eq!(other.await.unwrap(), 7);
        assert_eq!(maker.await.unwrap(), 7);
    });
}

#[test]
fn a_downgraded_writer_lets_readers_in_and_no_writer() {
    let lock = RwLock::new((1, 2));
    let writer = lock.try_write().unwrap();
    let mut other = pin!(lock.write());
    assert!(poll(other.as_mut()).is_pending());
    let reader = RwLockReadGuard::map(writer.downgrade(), |pair| &pair.1);
    assert_eq!(*reader, 2);
    assert!(poll(other.as_mut()).is_pending());
    drop(reader);
    let Poll::Ready(writer) = poll(other.as_mut()) else {
        panic!("the lock was released")
    };
    let mut part = RwLockWriteGuard::map(writer, |pair| &mut pair.0);
    *part += 1;
    drop(part);
    assert_eq!(*lock.try_read().unwrap(), (2, 2));
}
