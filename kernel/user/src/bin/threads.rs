//! Tests of threads: creating and joining, waiting at addresses, mutex and condition variable.

#![no_std]
#![no_main]

extern crate alloc;

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::SeqCst;

use alloc::collections::VecDeque;
use os_user::coroutine::current;
use os_user::cpu::alloc_cpu;
use os_user::number::{CHANGED, TIMED_OUT, WOKEN};
use os_user::sync::{Condvar, Mutex};
use os_user::testing::{Outcome, message, run_all};
use os_user::{
    Error, asynchronous, now, pipe, read, sleep, sleep_micros, sys, thread, ticks_per_second,
};
use os_user::{ensure, tests};

os_user::coroutine_entry!(main);

tests! {
    threads_return_their_results,
    threads_are_limited_and_come_back,
    thread_numbers_are_not_used_twice,
    thread_can_use_most_of_its_stack,
    futex_waits_only_for_the_value,
    futex_wait_ends_in_time,
    futex_wakes_in_order,
    futex_of_a_bad_address_is_an_error,
    asynchronous_futex_wait_is_woken,
    mutex_excludes,
    condvar_loses_no_wakes,
    condvar_wait_ends_in_time,
    producers_and_consumers_as_threads,
    unpark_before_park_is_kept,
}

async fn main() -> isize {
    match os_user::argument() {
        b"kill" => return many_in_calls(),
        b"last" => return last_thread_ends_the_process(),
        b"deep" => return overflow_in_a_thread(),
        _ => {}
    }
    run_all(TESTS).await
}

/// Starts threads that wait in calls of every kind, compute, and wait for each other, until the
/// process is killed.
fn many_in_calls() -> isize {
    static WORD: AtomicU32 = AtomicU32::new(0);
    let Ok(pipe) = pipe() else { return 1 };
    let mut threads = Vec::new();
    for n in 0..12 {
        let started = thread::spawn(move || {
            let mut byte = [0];
            loop {
                match n % 4 {
                    0 => drop(read(pipe.reader, &mut byte)),
                    1 => drop(sys::futex_wait(&raw const WORD as usize, 0, usize::MAX)),
                    2 => sleep_micros(500),
                    _ => core::hint::black_box(()),
                }
            }
        });
        match started {
            Ok(started) => threads.push(started),
            Err(_) => return 1,
        }
    }
    for _ in 0..3 {
        if alloc_cpu().is_err() {
            return 1;
        }
    }
    sleep_micros(1_000_000);
    2
}

/// Exits the main thread first; the status is then the result of the other thread.
fn last_thread_ends_the_process() -> isize {
    let started = thread::spawn(|| {
        // Long enough for the main thread to get a hart and exit.
        sleep_micros(100_000);
        let _ = sys::thread_exit(17);
    });
    if started.is_err() {
        return 1;
    }
    let _ = sys::thread_exit(1);
    2
}

/// Overflows the stack of a thread. The page below the stack is not mapped, so the process must end
/// with a fault.
fn overflow_in_a_thread() -> isize {
    #[allow(unconditional_recursion, reason = "the stack is to overflow")]
    fn deep(n: isize) -> isize {
        let block = core::hint::black_box([n; 64]);
        deep(n + 1) + block[3]
    }
    let started = thread::spawn(|| deep(0));
    started.map_or(1, |started| started.join().unwrap_or(1))
}

async fn threads_return_their_results() -> Outcome {
    let mut threads = Vec::new();
    for n in 0..8u64 {
        threads.push(thread::spawn(move || (0..=100 * n).sum::<u64>()).map_err(message)?);
    }
    for (n, thread) in threads.into_iter().enumerate() {
        let (n, sum) = (n as u64 * 100, thread.join().map_err(message)?);
        ensure!(sum == n * (n + 1) / 2, "the sum up to {n} is {sum}");
    }
    Ok(())
}

async fn threads_are_limited_and_come_back() -> Outcome {
    static GATE: AtomicU32 = AtomicU32::new(0);
    for round in 0..2 {
        GATE.store(0, SeqCst);
        let mut threads = Vec::new();
        let error = loop {
            let wait = || sys::futex_wait(&raw const GATE as usize, 0, usize::MAX);
            match thread::spawn(wait) {
                Ok(thread) => threads.push(thread),
                Err(error) => break error,
            }
        };
        let count = threads.len();
        GATE.store(1, SeqCst);
        // Threads that do not wait yet see the changed value.
        let _ = sys::futex_wake(&raw const GATE as usize, usize::MAX);
        for thread in threads {
            let answer = thread.join().map_err(message)?;
            ensure!(matches!(answer, Ok(WOKEN | CHANGED)), "{answer:?}");
        }
        // A process has at most 64 threads (`os_abi::thread::MAX_THREADS`), with the main thread.
        ensure!(
            error == Error::TooMany && count == 63,
            "round {round}: {count} threads, then {error:?}"
        );
    }
    Ok(())
}

async fn thread_numbers_are_not_used_twice() -> Outcome {
    let first = thread::spawn(|| ()).map_err(message)?;
    let number = first.number();
    first.join().map_err(message)?;
    let second = thread::spawn(|| ()).map_err(message)?;
    ensure!(second.number() != number, "{number} was used twice");
    for dead in [number, 0, 12345, usize::MAX] {
        let answer = sys::thread_join(dead);
        ensure!(answer == Err(Error::NoThread), "join {dead}: {answer:?}");
    }
    ensure!(sys::unpark(64, 5) == Err(Error::NoThread), "line 64 exists");
    second.join().map_err(message)
}

async fn thread_can_use_most_of_its_stack() -> Outcome {
    let used = thread::spawn(|| {
        let block = core::hint::black_box([7u8; 40_000]);
        block.iter().map(|byte| u64::from(*byte)).sum::<u64>()
    });
    let sum = used.map_err(message)?.join().map_err(message)?;
    ensure!(sum == 280_000, "the sum is {sum}");
    Ok(())
}

async fn futex_waits_only_for_the_value() -> Outcome {
    let word = AtomicU32::new(5);
    let answer = sys::futex_wait(&raw const word as usize, 4, usize::MAX);
    ensure!(answer == Ok(CHANGED), "{answer:?}");
    let answer = sys::futex_wake(&raw const word as usize, 10);
    ensure!(answer == Ok(0), "{answer:?}");
    Ok(())
}

async fn futex_wait_ends_in_time() -> Outcome {
    let word = AtomicU32::new(5);
    let deadline = now() + ticks_per_second() / 100;
    let answer = sys::futex_wait(&raw const word as usize, 5, deadline as usize);
    ensure!(answer == Ok(TIMED_OUT), "{answer:?}");
    ensure!(now() >= deadline, "the wait ended early");
    let answer = sys::futex_wake(&raw const word as usize, 10);
    ensure!(answer == Ok(0), "the waiter is still in the list");
    Ok(())
}

async fn futex_wakes_in_order() -> Outcome {
    // No event reports that a thread waits, and on a busy host a thread may be late. Therefore the
    // next attempt allows more time.
    let mut micros = 10_000;
    loop {
        let order = woken_in_order(micros)?;
        if order.is_sorted() {
            return Ok(());
        }
        ensure!(micros < 1_000_000, "woken in the order {order:?}");
        micros *= 4;
    }
}

/// Returns the order in which four threads are woken that start to wait at intervals of `micros`
/// microseconds.
fn woken_in_order(micros: u64) -> Result<Vec<usize>, String> {
    static WORD: AtomicU32 = AtomicU32::new(0);
    static ORDER: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    let mut threads = Vec::new();
    for n in 0..4 {
        let wait = move || {
            let answer = sys::futex_wait(&raw const WORD as usize, 0, usize::MAX);
            ORDER.lock().push(n);
            answer
        };
        threads.push(thread::spawn(wait).map_err(message)?);
        sleep_micros(micros);
    }
    for n in 0..4 {
        while sys::futex_wake(&raw const WORD as usize, 1).map_err(message)? == 0 {
            sleep_micros(1_000);
        }
        while ORDER.lock().len() <= n {
            sleep_micros(100);
        }
    }
    for thread in threads {
        let answer = thread.join().map_err(message)?;
        ensure!(answer == Ok(WOKEN), "{answer:?}");
    }
    Ok(core::mem::take(&mut *ORDER.lock()))
}

async fn futex_of_a_bad_address_is_an_error() -> Outcome {
    let word = AtomicU32::new(0);
    for address in [
        0,
        0xffff_ffc0_8020_0000,
        usize::MAX,
        &raw const word as usize + 2,
    ] {
        let answer = sys::futex_wait(address, 0, 0);
        ensure!(answer == Err(Error::BadAddress), "{address:#x}: {answer:?}");
    }
    Ok(())
}

async fn asynchronous_futex_wait_is_woken() -> Outcome {
    static WORD: AtomicU32 = AtomicU32::new(0);
    let waiting = asynchronous::futex_wait(&WORD, 0, u64::MAX, current());
    WORD.store(1, SeqCst);
    // Retry until the coroutine waits; it may also have seen the changed value.
    let mut woken = 0;
    for _ in 0..100 {
        woken = sys::futex_wake(&raw const WORD as usize, 1).map_err(message)?;
        if woken == 1 {
            break;
        }
        sleep(100).await;
    }
    let answer = waiting.await;
    let expected = if woken == 1 { WOKEN } else { CHANGED };
    ensure!(answer == Ok(expected), "{woken} woken, {answer:?}");
    Ok(())
}

async fn mutex_excludes() -> Outcome {
    const ROUNDS: u64 = 5_000;
    let counter = Arc::new(Mutex::new(0u64));
    let mut threads = Vec::new();
    for _ in 0..6 {
        let counter = counter.clone();
        let count = move || {
            for _ in 0..ROUNDS {
                let mut counter = counter.lock();
                let seen = *counter;
                core::hint::spin_loop();
                *counter = seen + 1;
            }
        };
        threads.push(thread::spawn(count).map_err(message)?);
    }
    for thread in threads {
        thread.join().map_err(message)?;
    }
    let counted = *counter.lock();
    ensure!(counted == 6 * ROUNDS, "counted to {counted}");
    let held = counter.lock();
    ensure!(counter.try_lock().is_none(), "the mutex was locked twice");
    drop(held);
    ensure!(counter.try_lock().is_some(), "the mutex was not unlocked");
    Ok(())
}

/// Lets two threads alternate, each waiting for the other. After a lost wake both would wait for
/// ever.
async fn condvar_loses_no_wakes() -> Outcome {
    const ROUNDS: u32 = 1_000;
    let shared = Arc::new((Mutex::new(0u32), Condvar::new()));
    let player = |parity: u32| {
        let shared = shared.clone();
        move || {
            let (round, changed) = &*shared;
            let mut round = round.lock();
            while *round < ROUNDS {
                if *round % 2 == parity {
                    *round += 1;
                    changed.notify_one();
                } else {
                    round = changed.wait(round);
                }
            }
        }
    };
    let players = [player(0), player(1)].map(thread::spawn);
    for player in players {
        player.map_err(message)?.join().map_err(message)?;
    }
    Ok(())
}

async fn condvar_wait_ends_in_time() -> Outcome {
    let (mutex, condvar) = (Mutex::new(()), Condvar::new());
    let deadline = now() + ticks_per_second() / 200;
    let (_, notified) = condvar.wait_until(mutex.lock(), deadline);
    ensure!(!notified && now() >= deadline, "the wait ended early");
    Ok(())
}

async fn producers_and_consumers_as_threads() -> Outcome {
    const ITEMS_PER_THREAD: u64 = 500;
    const CAPACITY: usize = 8;
    struct Queue {
        items: Mutex<VecDeque<u64>>,
        filled: Condvar,
        emptied: Condvar,
    }
    let queue = Arc::new(Queue {
        items: Mutex::new(VecDeque::new()),
        filled: Condvar::new(),
        emptied: Condvar::new(),
    });
    let mut producers = Vec::new();
    let mut consumers = Vec::new();
    for n in 0..3 {
        let produced = queue.clone();
        let produce = move || {
            for item in n * ITEMS_PER_THREAD..(n + 1) * ITEMS_PER_THREAD {
                let mut items = produced.items.lock();
                while items.len() >= CAPACITY {
                    items = produced.emptied.wait(items);
                }
                items.push_back(item);
                drop(items);
                produced.filled.notify_one();
            }
        };
        producers.push(thread::spawn(produce).map_err(message)?);
        let consumed = queue.clone();
        let consume = move || {
            let mut sum = 0;
            for _ in 0..ITEMS_PER_THREAD {
                let mut items = consumed.items.lock();
                let item = loop {
                    match items.pop_front() {
                        Some(item) => break item,
                        None => items = consumed.filled.wait(items),
                    }
                };
                drop(items);
                consumed.emptied.notify_one();
                sum += item;
            }
            sum
        };
        consumers.push(thread::spawn(consume).map_err(message)?);
    }
    for producer in producers {
        producer.join().map_err(message)?;
    }
    let mut sum = 0;
    for consumer in consumers {
        sum += consumer.join().map_err(message)?;
    }
    let items = 3 * ITEMS_PER_THREAD;
    ensure!(sum == items * (items - 1) / 2, "the sum is {sum}");
    Ok(())
}

async fn unpark_before_park_is_kept() -> Outcome {
    let parked = thread::spawn(|| {
        sleep_micros(20_000);
        (sys::park(), now())
    });
    let parked = parked.map_err(message)?;
    // The line of a thread is its number modulo the maximum number of threads.
    sys::unpark(parked.number() % 64, 20).map_err(message)?;
    let (answer, _) = parked.join().map_err(message)?;
    ensure!(answer == Ok(0), "{answer:?}");
    Ok(())
}
