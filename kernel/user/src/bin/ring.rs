//! A ring of pipes: each of 3,600 coroutines waits for a byte from a pipe and passes the byte on to
//! the next pipe. Both are asynchronous calls. One byte passes through the ring.
//!
//! `os-runner bench` compares the time of a round with the published time of another system. An
//! argument replaces the number of coroutines. The exit status is 0 if the byte arrives
//! unchanged, 1 if it does not, and 2 after an error.

#![no_std]
#![no_main]

extern crate alloc;

use alloc::vec;
use alloc::vec::Vec;

use os_user::coroutine::{current, spawn};
use os_user::{Error, Pipe, now, pipe, println, read, sleep, write};

os_user::coroutine_entry!(main);

/// Default number of coroutines in the ring.
const COROUTINES: usize = 3_600;
/// Level of the ring's coroutines. They are more urgent than the main coroutine, so all of them
/// wait in their reads when the main coroutine resumes after its sleep.
const LEVEL: u8 = 20;

async fn main() -> isize {
    let argument = core::str::from_utf8(os_user::argument()).unwrap_or("");
    let count = argument.parse().unwrap_or(COROUTINES);
    match round(count).await {
        Ok(true) => 0,
        Ok(false) => 1,
        Err(error) => {
            println!("ring: {error}");
            2
        }
    }
}

async fn pass_byte(source: Pipe, sink: Pipe) -> bool {
    let (result, byte) = read!(source.reader, vec![0; 1], current()).await;
    result == Ok(1) && write!(sink.writer, byte, current()).await.0 == Ok(1)
}

async fn round(count: usize) -> Result<bool, Error> {
    let start = now();
    // There is one more pipe than coroutines, because the byte comes out of the last pipe.
    let pipes: Vec<Pipe> = (0..=count).map(|_| pipe()).collect::<Result<_, _>>()?;
    let mut handles = Vec::with_capacity(count);
    for pair in pipes.windows(2) {
        handles.push(spawn(pass_byte(pair[0], pair[1]), Some(LEVEL))?);
    }
    // Sleep for 1 ms, so that every coroutine of the ring runs until it waits in its read.
    sleep(1_000).await;
    let ready = now();
    write!(pipes[0].writer, &[42])?;
    let (result, byte) = read!(pipes[count].reader, vec![0; 1], current()).await;
    let end = now();
    let mut passed = result == Ok(1) && byte == [42];
    for handle in handles {
        passed &= handle.await == Some(true);
    }
    println!("ring: {count} coroutines, {} ticks to start", ready - start);
    println!("ring: one round {} ticks", end - ready);
    Ok(passed)
}
