//! The tests of lending: a holder is as urgent as its waiters, beside programs that compute on
//! every hart.
//!
//! [`Hogs`] keep all harts at level 25, so less urgent threads, and the kernel's work for them,
//! stand still until the hogs are told to end. Without a loan nothing tells them, and their time
//! runs out: that is the failure, in a machine of any number of harts and any speed.

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

/// Levels of the tests, of waiters, of [`Hogs`], and of holders.
const TESTS_LEVEL: u8 = 5;
const URGENT: usize = 10;
const HOGS: usize = 25;
const LATER: usize = 40;

async fn main() -> isize {
    if os_user::argument() == b"hog" {
        return isize::from(hog(&AtomicBool::new(false)));
    }
    reprio(current(), TESTS_LEVEL);
    run_all(TESTS).await
}

/// Polls a condition until it holds, at most for half as long as [`Hogs`] compute.
async fn until(holds: impl Fn() -> bool) -> bool {
    let mut limit = RunTimeLimit::seconds(LIMIT_SECONDS / 2);
    while !holds() && !limit.is_over() {
        sleep(1_000).await;
    }
    holds()
}

/// A gate to wait at without lending.
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

/// Starts a thread at a level.
fn at<T: Send + 'static>(
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
        at(LATER, move || {
            let guard = lock.lock();
            held.open();
            begun.spin();
            drop(guard);
        })
    }?;
    held.pass();
    let hogs = Hogs::start(HOGS)?;
    let over = hogs.end();
    let waiter = at(URGENT, move || {
        begun.open();
        drop(lock.lock());
        over.store(true, SeqCst);
    })?;
    hogs.join().await?;
    waiter.join().map_err(message)?;
    holder.join().map_err(message)
}

async fn mutex_is_given_to_the_most_urgent() -> Outcome {
    let order = Arc::new(Mutex::new(Vec::new()));
    let over = Arc::new(AtomicU32::new(0));
    let guard = order.lock();
    let mut threads = Vec::new();
    for level in [20, 12, 20, 7] {
        let (order, over, waits) = (order.clone(), over.clone(), Gate::new());
        let waiting = waits.clone();
        threads.push(at(level, move || {
            waiting.open();
            order.lock().push(level);
            over.fetch_add(1, SeqCst);
        })?);
        waits.pass();
        // The thread has to be in the kernel by then, under any load of the machine.
        sleep_micros(10_000);
    }
    drop(guard);
    // Joining lends, so not before.
    until(|| over.load(SeqCst) == 4).await;
    for thread in threads {
        thread.join().map_err(message)?;
    }
    let mut order = order.lock().clone();
    if os_user::argument() != b"exact" {
        // Some may have come later.
        order.sort_unstable();
    }
    ensure!(order == [7, 12, 20, 20], "{order:?}");
    Ok(())
}

async fn joining_lends_to_a_thread() -> Outcome {
    let begun = Gate::new();
    let slow = {
        let begun = begun.clone();
        at(LATER, move || begun.pass())?
    };
    let hogs = Hogs::start(HOGS)?;
    let over = hogs.end();
    let waiter = at(URGENT, move || {
        begun.open();
        let _ = slow.join();
        over.store(true, SeqCst);
    })?;
    hogs.join().await?;
    waiter.join().map_err(message)
}

/// A thread joins another that waits for a lock whose holder waits for a third.
async fn loans_go_along_a_chain() -> Outcome {
    let (first, second) = (Arc::new(Mutex::new(())), Arc::new(Mutex::new(())));
    let (held, begun) = (Gate::new(), Gate::new());
    let last = {
        let (second, held, begun) = (second.clone(), held.clone(), begun.clone());
        at(LATER + 2, move || {
            let guard = second.lock();
            held.open();
            begun.spin();
            drop(guard);
        })?
    };
    held.pass();
    let both = Gate::new();
    let middle = {
        let (first, both) = (first.clone(), both.clone());
        at(LATER + 1, move || {
            let guard = first.lock();
            both.open();
            drop(second.lock());
            drop(guard);
        })?
    };
    both.pass();
    let joined = at(LATER, move || drop(first.lock()))?;
    // By then all of them wait for each other.
    sleep_micros(10_000);
    let hogs = Hogs::start(HOGS)?;
    let over = hogs.end();
    let waiter = at(URGENT, move || {
        begun.open();
        let _ = joined.join();
        over.store(true, SeqCst);
    })?;
    hogs.join().await?;
    for thread in [waiter, middle, last] {
        thread.join().map_err(message)?;
    }
    Ok(())
}

/// The holder of a lock waits for a byte: the kernel's part of that call becomes as urgent, too.
async fn loan_reaches_a_holder_in_a_call() -> Outcome {
    let pipe = pipe().map_err(message)?;
    let lock = Arc::new(Mutex::new(()));
    let held = Gate::new();
    let holder = {
        let (lock, held) = (lock.clone(), held.clone());
        at(LATER, move || {
            let guard = lock.lock();
            held.open();
            let got = read(pipe.reader, &mut [0]);
            drop(guard);
            got
        })?
    };
    held.pass();
    // Until it reads.
    sleep_micros(10_000);
    let hogs = Hogs::start(HOGS)?;
    let over = hogs.end();
    let waiter = at(URGENT, move || {
        drop(lock.lock());
        over.store(true, SeqCst);
    })?;
    sleep_micros(10_000);
    write(pipe.writer, &[1]).map_err(message)?;
    hogs.join().await?;
    waiter.join().map_err(message)?;
    ensure!(holder.join().map_err(message)? == Ok(1), "no byte");
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
        at(LATER, move || {
            let guard = lock.lock();
            held.open();
            begun.spin();
            drop(guard);
            after.open();
        })?
    };
    held.pass();
    let hogs = Hogs::start(HOGS)?;
    let waiter = at(URGENT, move || {
        begun.open();
        drop(lock.lock());
    })?;
    waiter.join().map_err(message)?;
    sleep_micros(20_000);
    let went_on = after.is_open();
    hogs.end().store(true, SeqCst);
    hogs.join().await?;
    holder.join().map_err(message)?;
    ensure!(
        !went_on,
        "the holder was still as urgent as the former waiter"
    );
    Ok(())
}

/// An asynchronous wait for a thread is cancelled.
async fn loan_ends_with_the_waiter() -> Outcome {
    static STEPS: AtomicU32 = AtomicU32::new(0);
    let begun = Gate::new();
    let slow = {
        let begun = begun.clone();
        at(LATER, move || {
            STEPS.store(0, SeqCst);
            while !begun.is_open() {
                STEPS.fetch_add(1, SeqCst);
            }
        })?
    };
    let hogs = Hogs::start(HOGS)?;
    let waiting = asynchronous::thread_join(slow.number(), current());
    let before = STEPS.load(SeqCst);
    let lent = until(|| STEPS.load(SeqCst) != before).await;
    waiting.cancel();
    let answer = waiting.await;
    // A hart that the host keeps from running learns of the level when it resumes.
    let mut limit = RunTimeLimit::seconds(LIMIT_SECONDS / 2);
    let went_on = loop {
        let before = STEPS.load(SeqCst);
        sleep(20_000).await;
        let went_on = STEPS.load(SeqCst) - before;
        if went_on == 0 || limit.is_over() {
            break went_on;
        }
    };
    hogs.end().store(true, SeqCst);
    begun.open();
    hogs.join().await?;
    slow.join().map_err(message)?;
    ensure!(lent, "nothing was lent");
    ensure!(answer == Err(os_user::Error::Cancelled), "{answer:?}");
    ensure!(went_on == 0, "{went_on} steps without anything that waits");
    Ok(())
}

async fn call_in_flight_follows_its_coroutine() -> Outcome {
    let (first, second) = (pipe().map_err(message)?, pipe().map_err(message)?);
    let got = Arc::new(AtomicU32::new(0));
    let polls = [(); 2].map(|()| Arc::new(AtomicU32::new(0)));
    let readers = [(first, &polls[0]), (second, &polls[1])].map(|(pipe, polls)| {
        let (got, polls) = (got.clone(), polls.clone());
        let reader = async move {
            let read = os_user::read!(pipe.reader, Vec::from([0]), current());
            let mut read = core::pin::pin!(read);
            let counted = core::future::poll_fn(|cx| {
                polls.fetch_add(1, SeqCst);
                read.as_mut().poll(cx)
            });
            let (count, _) = counted.await;
            got.fetch_add(1, SeqCst);
            count
        };
        coroutine::spawn(reader, Some(LATER as u8))
    });
    let [raised, lowered] = readers;
    let (raised, lowered) = (raised.map_err(message)?, lowered.map_err(message)?);
    let counts = || [0, 1].map(|n: usize| polls[n].load(SeqCst));
    let polled = async |before: [u32; 2], which: [bool; 2]| {
        until(|| (0..2).all(|n| !which[n] || counts()[n] > before[n])).await
    };
    ensure!(polled([0, 0], [true, true]).await, "they do not read");
    // First the lowered coroutine, so that its level is below an earlier one. A call learns of a
    // level when its coroutine is polled at it.
    let before = counts();
    ensure!(reprio(lowered.cid(), URGENT as u8), "the file exists");
    ensure!(
        polled(before, [false, true]).await,
        "the coroutine is not polled when raised"
    );
    let before = counts();
    reprio(raised.cid(), URGENT as u8);
    reprio(lowered.cid(), LATER as u8);
    ensure!(
        polled(before, [true, true]).await,
        "they are not polled at their new levels"
    );
    let hogs = Hogs::start(HOGS)?;
    write(first.writer, &[1]).map_err(message)?;
    write(second.writer, &[1]).map_err(message)?;
    until(|| got.load(SeqCst) != 0).await;
    sleep(20_000).await;
    // Without awaiting one, which would lend.
    let count = got.load(SeqCst);
    hogs.end().store(true, SeqCst);
    hogs.join().await?;
    ensure!(raised.await == Some(Ok(1)), "no byte");
    ensure!(lowered.await == Some(Ok(1)), "no byte");
    ensure!(
        count == 1,
        "{count} of two calls were urgent instead of one"
    );
    close(first)?;
    close(second)
}

/// An awaited coroutine runs before one that computes, in the program.
async fn joining_lends_to_a_coroutine() -> Outcome {
    let over = Arc::new(AtomicBool::new(false));
    let hog = {
        let over = over.clone();
        let mut limit = RunTimeLimit::seconds(LIMIT_SECONDS);
        async move {
            while !over.load(SeqCst) {
                if limit.is_over() {
                    return false;
                }
                yield_now().await;
            }
            true
        }
    };
    let hog = coroutine::spawn(hog, Some(HOGS as u8)).map_err(message)?;
    // Two deep.
    let last = async {
        for _ in 0..10 {
            yield_now().await;
        }
    };
    let last = coroutine::spawn(last, Some(LATER as u8)).map_err(message)?;
    let middle = coroutine::spawn(last, Some(LATER as u8)).map_err(message)?;
    ensure!(
        middle.await.flatten().is_some(),
        "the coroutine was cancelled"
    );
    over.store(true, SeqCst);
    ensure!(
        hog.await == Some(true),
        "it waited behind what is less urgent"
    );
    Ok(())
}

/// The loan goes from a coroutine to one that reads, and on to the kernel's part of that call.
async fn joined_coroutine_lends_to_its_call() -> Outcome {
    let pipe = pipe().map_err(message)?;
    let reader = async move {
        let (count, _) = os_user::read!(pipe.reader, Vec::from([0]), current()).await;
        count
    };
    let reader = coroutine::spawn(reader, Some(LATER as u8)).map_err(message)?;
    // Until it reads.
    sleep(10_000).await;
    let hogs = Hogs::start(HOGS)?;
    let over = hogs.end();
    let waiter = async move {
        let count = reader.await;
        over.store(true, SeqCst);
        count
    };
    let waiter = coroutine::spawn(waiter, Some(URGENT as u8)).map_err(message)?;
    sleep(10_000).await;
    write(pipe.writer, &[1]).map_err(message)?;
    // The hogs end, so that the vCPU is free for the coroutines.
    hogs.join().await?;
    ensure!(waiter.await.flatten() == Some(Ok(1)), "no byte");
    close(pipe)
}

/// A program whose ready work is all less urgent than others gets a more urgent completion.
async fn completion_raises_a_program_beside_others() -> Outcome {
    let over = Arc::new(AtomicBool::new(false));
    let busy = {
        let over = over.clone();
        async move {
            while !over.load(SeqCst) {
                yield_now().await;
            }
        }
    };
    let busy = coroutine::spawn(busy, Some(LATER as u8)).map_err(message)?;
    let mut hogs = Vec::new();
    for _ in 0..COUNT {
        hogs.push(spawn("lends", b"hog", &[], HOGS as u8).map_err(message)?);
    }
    sleep(10_000).await;
    over.store(true, SeqCst);
    let mut killed = true;
    for hog in hogs {
        sys::kill(hog).map_err(message)?;
        killed &= wait(hog) == Ok(number::KILLED);
    }
    ensure!(busy.await.is_some(), "the coroutine was cancelled");
    ensure!(killed, "it waited behind what is less urgent");
    Ok(())
}
