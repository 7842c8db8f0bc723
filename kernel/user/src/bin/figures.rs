//! Measures the costs of operations, in instructions, on a machine whose clock counts instructions:
//! `os-runner bench` boots such a machine. On other machines the figures have no meaning.
//!
//! Each operation is measured several times. A figure is the mean of many runs, including the loop,
//! and is computed from ticks of 100 instructions.

#![no_std]
#![no_main]

extern crate alloc;

use alloc::vec;
use alloc::vec::Vec;

use os_user::asynchronous::sleep_until;
use os_user::coroutine::{JoinHandle, current, need_preempt, spawn, yield_now};
use os_user::{Error, now, pipe, println, read, sys, thread, wait, write};

os_user::coroutine_entry!(main);

/// Number of runs of an operation in a measurement.
const ROUNDS: u64 = 1000;
/// Number of measurements of each figure.
const REPETITIONS: usize = 5;
/// Instructions per tick: 10 MHz, one instruction per nanosecond.
const PER_TICK: u64 = 100;
/// Number of ready processes in the figure with many processes. All but two of them never run.
const MANY: usize = 200;

fn report(name: &str, start: u64, count: u64) {
    println!("figure: {name}: {}", (now() - start) * PER_TICK / count);
}

async fn main() -> isize {
    for _ in 0..REPETITIONS {
        if let Err(error) = measure().await {
            println!("figures: {error}");
            return 1;
        }
    }
    0
}

async fn measure() -> Result<(), Error> {
    switches().await?;
    decisions().await?;
    calls().await?;
    interrupts().await;
    processes()
}

async fn switches() -> Result<(), Error> {
    let start = now();
    for _ in 0..ROUNDS {
        yield_now().await;
    }
    report("coroutine to itself, user", start, ROUNDS);
    let other = yielding(None)?;
    let start = now();
    for _ in 0..ROUNDS {
        yield_now().await;
    }
    report("coroutine to coroutine, user", start, 2 * ROUNDS);
    other.await;
    Ok(())
}

/// Spawns a coroutine that yields [`ROUNDS`] times.
fn yielding(level: Option<u8>) -> Result<JoinHandle<()>, Error> {
    let yields = async {
        for _ in 0..ROUNDS {
            yield_now().await;
        }
    };
    spawn(yields, level)
}

/// Measures a scheduling decision: a switch between two coroutines while no other coroutine is
/// ready, and while many less urgent coroutines are ready.
async fn decisions() -> Result<(), Error> {
    for coroutines in [1, 64] {
        let mut idle = Vec::new();
        // In the second pass, 63 coroutines are ready beside the pair that switches. Several of
        // them share a level.
        for n in 1..coroutines {
            idle.push(spawn(async {}, Some(33 + n % 30))?);
        }
        let other = yielding(None)?;
        let start = now();
        for _ in 0..ROUNDS {
            yield_now().await;
        }
        match coroutines {
            1 => report(
                "decision in a program, nothing else ready",
                start,
                2 * ROUNDS,
            ),
            _ => report("decision in a program, 63 others ready", start, 2 * ROUNDS),
        }
        other.await;
        for handle in idle {
            handle.await;
        }
    }
    Ok(())
}

async fn calls() -> Result<(), Error> {
    let start = now();
    for _ in 0..ROUNDS {
        let _ = sys::clock();
    }
    report("system call answered at once", start, ROUNDS);

    let pipe = pipe()?;
    let mut byte = [0];
    let start = now();
    for _ in 0..ROUNDS {
        write!(pipe.writer, &byte)?;
        read!(pipe.reader, &mut byte)?;
    }
    report("synchronous read or write, ready", start, 2 * ROUNDS);

    let mut bytes = vec![0];
    let start = now();
    for _ in 0..ROUNDS {
        bytes = write!(pipe.writer, bytes, current()).await.1;
        bytes = read!(pipe.reader, bytes, current()).await.1;
    }
    report("asynchronous read or write, ready", start, 2 * ROUNDS);

    // The reader waits, so the cost includes the call, a kernel coroutine, a completion and a wake.
    let start = now();
    for _ in 0..ROUNDS {
        let reading = read!(pipe.reader, bytes, current());
        write!(pipe.writer, &byte)?;
        bytes = reading.await.1;
    }
    report(
        "asynchronous read that waits, with the write",
        start,
        ROUNDS,
    );
    sys::close(pipe.reader)?;
    sys::close(pipe.writer)?;
    Ok(())
}

async fn interrupts() {
    let mut delay = 0;
    for _ in 0..ROUNDS / 10 {
        let deadline = now() + 1000;
        let _ = sleep_until(deadline, current()).await;
        delay += now() - deadline;
    }
    let sleeps = ROUNDS / 10;
    let delay = delay * PER_TICK / sleeps;
    println!("figure: timer to the coroutine that waits, hart idle: {delay}");

    // A computing coroutine polls `need_preempt` for coroutines that the handler of a user
    // interrupt has woken.
    let mut delay = 0;
    for _ in 0..sleeps {
        let deadline = now() + 2000;
        let sleeper = async move {
            let _ = sleep_until(deadline, current()).await;
        };
        let Ok(sleeper) = spawn(sleeper, Some(20)) else {
            return;
        };
        yield_now().await;
        // `need_preempt` can return true before the deadline, when the kernel's half of
        // `sleep_until` becomes ready.
        while now() < deadline || !need_preempt() {}
        delay += now() - deadline;
        sleeper.await;
    }
    let delay = delay * PER_TICK / sleeps;
    println!("figure: timer to a program that computes, by user interrupt: {delay}");
}

/// Measures threads and processes that yield their hart to each other.
fn processes() -> Result<(), Error> {
    let other = thread::spawn(|| {
        for _ in 0..ROUNDS {
            let _ = sys::yield_cpu();
        }
    })?;
    let start = now();
    for _ in 0..ROUNDS {
        let _ = sys::yield_cpu();
    }
    report("thread to thread, same process", start, 2 * ROUNDS);
    let _ = other.join();

    // Measured with no, one and many other ready processes; the cost is the same with one and with
    // many.
    for many in [0, 1, MANY - 2] {
        let mut others = Vec::new();
        for _ in 0..many {
            others.push(os_user::spawn("child", b"endless", &[], 62)?);
        }
        let child = os_user::spawn("child", b"yield 1000", &[], 32)?;
        let start = now();
        for _ in 0..ROUNDS {
            let _ = sys::yield_cpu();
        }
        match many {
            0 => report("process to process, of 2", start, 2 * ROUNDS),
            1 => report("process to process, of 3", start, 2 * ROUNDS),
            _ => report("process to process, of 200", start, 2 * ROUNDS),
        }
        wait(child)?;
        for other in others {
            sys::kill(other)?;
            wait(other)?;
        }
    }
    Ok(())
}
