//! Tests of priority inheritance: the holder of a lock is as urgent as its waiters, beside programs
//! that compute on every hart. A waiter *lends* its level to the holder.
//!
//! [`Hogs`], threads that only compute, keep all harts at level 25. So less urgent threads, and the
//! kernel's work for them, do not run until a waiter stops the hogs. Without a loan no waiter stops
//! the hogs, and they reach their time limit. The tests then fail, on a machine of any number of
//! harts and any speed.

#![no_std]
#![no_main]

extern crate alloc;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::{AtomicBool, AtomicU32};

use os_user::asynchronous;
use os_user::coroutine::{self, current, reprio, yield_now};
use os_user::hogs::{COUNT, Hogs, LIMIT_SECONDS, RunTimeLimit, hog};
use os_user::sync::Mutex;
use os_user::testing::{Outcome, message, run_all};
use os_user::thread::{self, JoinHandle};
use os_user::{ensure, number, pipe, read, sleep, sleep_micros, spawn, sys, tests, wait, write};

os_user::coroutine_entry!(main);

tests! {
    mutex_lends_to_its_holder,
    mutex_is_given_to_the_most_urgent,
    joining_lends_to_a_thread,
    loans_go_along_a_chain,
    loan_reaches_a_holder_in_a_call,
    loan_ends_with_the_lock,
    loan_ends_with_the_waiter,
    call_in_flight_follows_its_coroutine,
    joining_lends_to_a_coroutine,
    joined_coroutine_lends_to_its_call,
    completion_raises_a_program_beside_others,
}

/// Level of the tests.
const TESTS_LEVEL: u8 = 5;
/// Level of waiters.
const URGENT_LEVEL: usize = 10;
/// Level of [`Hogs`].
const HOGS_LEVEL: usize = 25;
/// Level of the threads and coroutines that others wait for.
const HOLDER_LEVEL: usize = 40;

async fn main() -> isize {
    if os_user::argument() == b"hog" {
        return isize::from(hog(&AtomicBool::new(false)));
    }
    reprio(current(), TESTS_LEVEL);
    run_all(TESTS).await
}

/// Polls `holds` until it returns true, at most for half of the time limit of [`Hogs`].
async fn wait_until(holds: impl Fn() -> bool) -> bool {
    let mut limit = RunTimeLimit::seconds(LIMIT_SECONDS / 2);
    while !holds() && !limit.is_over() {
        sleep(1_000).await;
    }
    holds()
}

/// Gate at which a thread waits without lending.
#[derive(Clone)]
struct Gate(Arc<AtomicU32>);

impl Gate {
    fn new() -> Gate {
        Gate(Arc::new(AtomicU32::new(0)))
    }

    fn address(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }

    fn open(&self) {
        self.0.store(1, SeqCst);
        let _ = sys::futex_wake(self.address(), usize::MAX);
    }

    fn is_open(&self) -> bool {
        self.0.load(SeqCst) != 0
    }

    /// Waits in the kernel until the gate is open.
    fn pass(&self) {
        while !self.is_open() {
            let _ = sys::futex_wait(self.address(), 0, usize::MAX);
        }
    }

    /// Spins until the gate is open.
    fn spin(&self) {
        while !self.is_open() {
            core::hint::spin_loop();
        }
    }
}

/// Starts a thread that runs `f` at a level.
fn thread_at<T: Send + 'static>(
    level: usize,
    f: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, alloc::string::String> {
    let started = thread::spawn(move || {
        let _ = sys::set_level(level);
        f()
    });
    started.map_err(message)
}

async fn mutex_lends_to_its_holder() -> Outcome {
    let lock = Arc::new(Mutex::new(()));
    let (held, begun) = (Gate::new(), Gate::new());
    let holder = {
        let (lock, held, begun) = (lock.clone(), held.clone(), begun.clone());
        thread_at(HOLDER_LEVEL, move || {
            let guard = lock.lock();
            held.open();
            begun.spin();
            drop(guard);
        })
    }?;
    held.pass();
    let hogs = Hogs::start(HOGS_LEVEL)?;
    let stop = hogs.end();
    let waiter = thread_at(URGENT_LEVEL, move || {
        begun.open();
        drop(lock.lock());
        stop.store(true, SeqCst);
    })?;
    hogs.join().await?;
    waiter.join().map_err(message)?;
    holder.join().map_err(message)
}

async fn mutex_is_given_to_the_most_urgent() -> Outcome {
    let order = Arc::new(Mutex::new(Vec::new()));
    let finished = Arc::new(AtomicU32::new(0));
    let guard = order.lock();
    let mut threads = Vec::new();
    for level in [20, 12, 20, 7] {
        let (order, finished, begun) = (order.clone(), finished.clone(), Gate::new());
        let gate = begun.clone();
        threads.push(thread_at(level, move || {
            gate.open();
            order.lock().push(level);
            finished.fetch_add(1, SeqCst);
        })?);
        begun.pass();
        // The thread must be blocked in the kernel by then, under any load of the machine.
        sleep_micros(10_000);
    }
    drop(guard);
    // A join lends the level of its caller, so it must not start earlier.
    wait_until(|| finished.load(SeqCst) == 4).await;
    for thread in threads {
        thread.join().map_err(message)?;
    }
    let mut order = order.lock().clone();
    if os_user::argument() != b"exact" {
        // A thread may have blocked later than expected.
        order.sort_unstable();
    }
    ensure!(order == [7, 12, 20, 20], "{order:?}");
    Ok(())
}

async fn joining_lends_to_a_thread() -> Outcome {
    let begun = Gate::new();
    let slow = {
        let begun = begun.clone();
        thread_at(HOLDER_LEVEL, move || begun.pass())?
    };
    let hogs = Hogs::start(HOGS_LEVEL)?;
    let stop = hogs.end();
    let waiter = thread_at(URGENT_LEVEL, move || {
        begun.open();
        let _ = slow.join();
        stop.store(true, SeqCst);
    })?;
    hogs.join().await?;
    waiter.join().map_err(message)
}

/// A thread joins `joined`, which waits for a lock of `middle`, which waits for a lock of `last`.
/// The loan must reach `last`.
async fn loans_go_along_a_chain() -> Outcome {
    let (first, second) = (Arc::new(Mutex::new(())), Arc::new(Mutex::new(())));
    let (held, begun) = (Gate::new(), Gate::new());
    let last = {
        let (second, held, begun) = (second.clone(), held.clone(), begun.clone());
        thread_at(HOLDER_LEVEL + 2, move || {
            let guard = second.lock();
            held.open();
            begun.spin();
            drop(guard);
        })?
    };
    held.pass();
    let is_chained = Gate::new();
    let middle = {
        let (first, is_chained) = (first.clone(), is_chained.clone());
        thread_at(HOLDER_LEVEL + 1, move || {
            let guard = first.lock();
            is_chained.open();
            drop(second.lock());
            drop(guard);
        })?
    };
    is_chained.pass();
    let joined = thread_at(HOLDER_LEVEL, move || drop(first.lock()))?;
    // By then each of these threads waits for another.
    sleep_micros(10_000);
    let hogs = Hogs::start(HOGS_LEVEL)?;
    let stop = hogs.end();
    let waiter = thread_at(URGENT_LEVEL, move || {
        begun.open();
        let _ = joined.join();
        stop.store(true, SeqCst);
    })?;
    hogs.join().await?;
    for thread in [waiter, middle, last] {
        thread.join().map_err(message)?;
    }
    Ok(())
}

/// The holder of a lock waits for a byte. The kernel's part of the holder's call must become as
/// urgent as the waiter, too.
async fn loan_reaches_a_holder_in_a_call() -> Outcome {
    let pipe = pipe().map_err(message)?;
    let lock = Arc::new(Mutex::new(()));
    let held = Gate::new();
    let holder = {
        let (lock, held) = (lock.clone(), held.clone());
        thread_at(HOLDER_LEVEL, move || {
            let guard = lock.lock();
            held.open();
            let received = read(pipe.reader, &mut [0]);
            drop(guard);
            received
        })?
    };
    held.pass();
    // Let the holder start its read.
    sleep_micros(10_000);
    let hogs = Hogs::start(HOGS_LEVEL)?;
    let stop = hogs.end();
    let waiter = thread_at(URGENT_LEVEL, move || {
        drop(lock.lock());
        stop.store(true, SeqCst);
    })?;
    sleep_micros(10_000);
    write(pipe.writer, &[1]).map_err(message)?;
    hogs.join().await?;
    waiter.join().map_err(message)?;
    ensure!(
        holder.join().map_err(message)? == Ok(1),
        "the byte was not read"
    );
    close(pipe)
}

fn close(pipe: os_user::Pipe) -> Outcome {
    sys::close(pipe.reader).map_err(message)?;
    sys::close(pipe.writer).map_err(message)?;
    Ok(())
}

async fn loan_ends_with_the_lock() -> Outcome {
    let lock = Arc::new(Mutex::new(()));
    let (held, begun, after) = (Gate::new(), Gate::new(), Gate::new());
    let holder = {
        let (lock, held) = (lock.clone(), held.clone());
        let (begun, after) = (begun.clone(), after.clone());
        thread_at(HOLDER_LEVEL, move || {
            let guard = lock.lock();
            held.open();
            begun.spin();
            drop(guard);
            after.open();
        })?
    };
    held.pass();
    let hogs = Hogs::start(HOGS_LEVEL)?;
    let waiter = thread_at(URGENT_LEVEL, move || {
        begun.open();
        drop(lock.lock());
    })?;
    waiter.join().map_err(message)?;
    sleep_micros(20_000);
    let still_ran = after.is_open();
    hogs.end().store(true, SeqCst);
    hogs.join().await?;
    holder.join().map_err(message)?;
    ensure!(
        !still_ran,
        "the holder was still as urgent as the former waiter"
    );
    Ok(())
}

/// An asynchronous wait lends its level to the thread that it waits for. When the wait is
/// cancelled, the thread must stop running at that level.
async fn loan_ends_with_the_waiter() -> Outcome {
    static STEPS: AtomicU32 = AtomicU32::new(0);
    let begun = Gate::new();
    let slow = {
        let begun = begun.clone();
        thread_at(HOLDER_LEVEL, move || {
            STEPS.store(0, SeqCst);
            while !begun.is_open() {
                STEPS.fetch_add(1, SeqCst);
            }
        })?
    };
    let hogs = Hogs::start(HOGS_LEVEL)?;
    let joining = asynchronous::thread_join(slow.number(), current());
    let before = STEPS.load(SeqCst);
    let lent = wait_until(|| STEPS.load(SeqCst) != before).await;
    joining.cancel();
    let answer = joining.await;
    // A hart that the host has stopped learns of the lower level only when the hart resumes.
    let mut limit = RunTimeLimit::seconds(LIMIT_SECONDS / 2);
    let steps = loop {
        let before = STEPS.load(SeqCst);
        sleep(20_000).await;
        let steps = STEPS.load(SeqCst) - before;
        if steps == 0 || limit.is_over() {
            break steps;
        }
    };
    hogs.end().store(true, SeqCst);
    begun.open();
    hogs.join().await?;
    slow.join().map_err(message)?;
    ensure!(lent, "the wait lent no level");
    ensure!(answer == Err(os_user::Error::Cancelled), "{answer:?}");
    ensure!(steps == 0, "{steps} steps without a waiter");
    Ok(())
}

async fn call_in_flight_follows_its_coroutine() -> Outcome {
    let (first, second) = (pipe().map_err(message)?, pipe().map_err(message)?);
    let received = Arc::new(AtomicU32::new(0));
    let polls = [(); 2].map(|()| Arc::new(AtomicU32::new(0)));
    let readers = [(first, &polls[0]), (second, &polls[1])].map(|(pipe, polls)| {
        let (received, polls) = (received.clone(), polls.clone());
        let reader = async move {
            let read = os_user::read!(pipe.reader, Vec::from([0]), current());
            let mut read = core::pin::pin!(read);
            let counted = core::future::poll_fn(|cx| {
                polls.fetch_add(1, SeqCst);
                read.as_mut().poll(cx)
            });
            let (count, _) = counted.await;
            received.fetch_add(1, SeqCst);
            count
        };
        coroutine::spawn(reader, Some(HOLDER_LEVEL as u8))
    });
    let [raised, lowered] = readers;
    let (raised, lowered) = (raised.map_err(message)?, lowered.map_err(message)?);
    let counts = || [0, 1].map(|n: usize| polls[n].load(SeqCst));
    let are_polled = async |before: [u32; 2], expected: [bool; 2]| {
        wait_until(|| (0..2).all(|n| !expected[n] || counts()[n] > before[n])).await
    };
    ensure!(
        are_polled([0, 0], [true, true]).await,
        "the coroutines do not read"
    );
    // First raise the coroutine that is lowered later, so that its level becomes less urgent than
    // an earlier level. A call learns of a level when its coroutine is polled at that level.
    let before = counts();
    ensure!(
        reprio(lowered.cid(), URGENT_LEVEL as u8),
        "the coroutine has ended"
    );
    ensure!(
        are_polled(before, [false, true]).await,
        "the coroutine is not polled when raised"
    );
    let before = counts();
    reprio(raised.cid(), URGENT_LEVEL as u8);
    reprio(lowered.cid(), HOLDER_LEVEL as u8);
    ensure!(
        are_polled(before, [true, true]).await,
        "the coroutines are not polled at their new levels"
    );
    let hogs = Hogs::start(HOGS_LEVEL)?;
    write(first.writer, &[1]).map_err(message)?;
    write(second.writer, &[1]).map_err(message)?;
    wait_until(|| received.load(SeqCst) != 0).await;
    sleep(20_000).await;
    // Read the count before the coroutines are awaited, because awaiting them would lend.
    let count = received.load(SeqCst);
    hogs.end().store(true, SeqCst);
    hogs.join().await?;
    ensure!(raised.await == Some(Ok(1)), "the byte was not read");
    ensure!(lowered.await == Some(Ok(1)), "the byte was not read");
    ensure!(
        count == 1,
        "{count} of two calls were urgent instead of one"
    );
    close(first)?;
    close(second)
}

/// Within a program, an awaited coroutine runs before a coroutine that computes.
async fn joining_lends_to_a_coroutine() -> Outcome {
    let stop = Arc::new(AtomicBool::new(false));
    let hog = {
        let stop = stop.clone();
        let mut limit = RunTimeLimit::seconds(LIMIT_SECONDS);
        async move {
            while !stop.load(SeqCst) {
                if limit.is_over() {
                    return false;
                }
                yield_now().await;
            }
            true
        }
    };
    let hog = coroutine::spawn(hog, Some(HOGS_LEVEL as u8)).map_err(message)?;
    // A chain of two joins.
    let last = async {
        for _ in 0..10 {
            yield_now().await;
        }
    };
    let last = coroutine::spawn(last, Some(HOLDER_LEVEL as u8)).map_err(message)?;
    let middle = coroutine::spawn(last, Some(HOLDER_LEVEL as u8)).map_err(message)?;
    ensure!(
        middle.await.flatten().is_some(),
        "the coroutine was cancelled"
    );
    stop.store(true, SeqCst);
    ensure!(
        hog.await == Some(true),
        "the coroutine waited behind less urgent work"
    );
    Ok(())
}

/// The loan passes from a coroutine to a coroutine that reads, and to the kernel's part of that
/// read.
async fn joined_coroutine_lends_to_its_call() -> Outcome {
    let pipe = pipe().map_err(message)?;
    let reader = async move {
        let (count, _) = os_user::read!(pipe.reader, Vec::from([0]), current()).await;
        count
    };
    let reader = coroutine::spawn(reader, Some(HOLDER_LEVEL as u8)).map_err(message)?;
    // Let the reader start its read.
    sleep(10_000).await;
    let hogs = Hogs::start(HOGS_LEVEL)?;
    let stop = hogs.end();
    let waiter = async move {
        let count = reader.await;
        stop.store(true, SeqCst);
        count
    };
    let waiter = coroutine::spawn(waiter, Some(URGENT_LEVEL as u8)).map_err(message)?;
    sleep(10_000).await;
    write(pipe.writer, &[1]).map_err(message)?;
    // The hogs end, so that the vCPU is free for the coroutines.
    hogs.join().await?;
    ensure!(
        waiter.await.flatten() == Some(Ok(1)),
        "the byte was not read"
    );
    close(pipe)
}

/// A program whose ready coroutines are less urgent than other programs receives a more urgent
/// completion, and must run although the other programs compute.
async fn completion_raises_a_program_beside_others() -> Outcome {
    let stop = Arc::new(AtomicBool::new(false));
    let busy = {
        let stop = stop.clone();
        async move {
            while !stop.load(SeqCst) {
                yield_now().await;
            }
        }
    };
    let busy = coroutine::spawn(busy, Some(HOLDER_LEVEL as u8)).map_err(message)?;
    let mut hogs = Vec::new();
    for _ in 0..COUNT {
        hogs.push(spawn("lends", b"hog", &[], HOGS_LEVEL as u8).map_err(message)?);
    }
    sleep(10_000).await;
    stop.store(true, SeqCst);
    let mut all_were_killed = true;
    for hog in hogs {
        sys::kill(hog).map_err(message)?;
        all_were_killed &= wait(hog) == Ok(number::KILLED);
    }
    ensure!(busy.await.is_some(), "the coroutine was cancelled");
    ensure!(
        all_were_killed,
        "the completion waited behind less urgent work"
    );
    Ok(())
}
