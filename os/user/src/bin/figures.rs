//! What things cost, in instructions, where the machine counts instructions as
//! time: `os-runner figures` boots it so. Elsewhere the figures mean nothing.
//!
//! Each is the mean of many, loop included, divided from ticks of 100 instructions.

#![no_std]
#![no_main]

extern crate alloc;

use alloc::vec;

use os_user::asynchronous::sleep_until;
use os_user::coroutine::{current, spawn, yield_now};
use os_user::{now, pipe, println, read, sys, write};

os_user::coroutine_entry!(main);

const ROUNDS: u64 = 1000;
/// Instructions per tick: 10 MHz, one instruction per nanosecond.
const PER_TICK: u64 = 100;

fn report(what: &str, start: u64, count: u64) {
    println!(
        "figure: {what}: {} instructions",
        (now() - start) * PER_TICK / count
    );
}

async fn main() -> isize {
    let start = now();
    for _ in 0..ROUNDS {
        yield_now().await;
    }
    report("switch to the same coroutine, user", start, ROUNDS);

    let start = now();
    let other = spawn(
        async {
            for _ in 0..ROUNDS {
                yield_now().await;
            }
        },
        None,
    );
    for _ in 0..ROUNDS {
        yield_now().await;
    }
    report("switch between two coroutines, user", start, 2 * ROUNDS);
    drop(other);

    let start = now();
    for _ in 0..ROUNDS {
        let _ = sys::clock();
    }
    report("system call answered at once", start, ROUNDS);

    let Ok(pipe) = pipe() else { return 1 };
    let mut byte = [0];
    let start = now();
    for _ in 0..ROUNDS {
        if write!(pipe.writer, &byte).is_err() || read!(pipe.reader, &mut byte).is_err() {
            return 1;
        }
    }
    report("synchronous read or write of a pipe", start, 2 * ROUNDS);

    let mut bytes = vec![0];
    let start = now();
    for _ in 0..ROUNDS {
        bytes = write!(pipe.writer, bytes, current()).await.1;
        bytes = read!(pipe.reader, bytes, current()).await.1;
    }
    report("asynchronous read or write of a pipe", start, 2 * ROUNDS);

    let mut late = 0;
    for _ in 0..ROUNDS / 10 {
        let deadline = now() + 1000;
        let _ = sleep_until(deadline, current()).await;
        late += now() - deadline;
    }
    println!(
        "figure: from a timer to the coroutine that waited for it, hart idle: {} instructions",
        late * PER_TICK / (ROUNDS / 10)
    );
    0
}
