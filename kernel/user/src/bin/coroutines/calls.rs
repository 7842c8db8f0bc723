//! Tests of asynchronous calls: results, errors, limits, cancelling.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::pin::Pin;
use core::task::Poll;

use os_user::asynchronous::AsyncCall;
use os_user::calls::sleep_until;
use os_user::coroutine::{current, spawn_local as spawn, yield_now};
use os_user::testing::{Outcome, message};
use os_user::{Error, ensure, now, read, sleep, sys, ticks_per_second, wait, write};

use crate::{Pipe, close, new_pipe};

/// Number of calls that must be accepted: most of the 4,080 entries of the ring. The rest is a
/// margin for completions that the program has not yet taken out.
const MIN_CALLS: usize = 3_600;

/// An asynchronous read in flight.
type Reading = AsyncCall<usize, Vec<u8>>;

pub(crate) async fn asynchronous_read_returns_at_once() -> Outcome {
    let pipe = new_pipe()?;
    let reading = read!(pipe.reader, vec![0; 16], current());
    // The synchronous form would block here for ever.
    write!(pipe.writer, b"hello").map_err(message)?;
    let (result, buffer) = reading.await;
    ensure!(
        result == Ok(5) && buffer.starts_with(b"hello"),
        "{result:?}"
    );
    let (result, buffer) = write!(pipe.writer, buffer, current()).await;
    ensure!(result == Ok(16) && buffer.len() == 16, "{result:?}");
    let mut echoed = [0; 16];
    ensure!(
        read!(pipe.reader, &mut echoed) == Ok(16),
        "the blocking read returned another length"
    );
    close(pipe)
}

pub(crate) async fn asynchronous_errors_are_results() -> Outcome {
    let (result, _) = read!(77, vec![0; 4], current()).await;
    ensure!(result == Err(Error::BadFile), "{result:?}");
    let result = wait!(12345, current()).await;
    ensure!(result == Err(Error::NoProcess), "{result:?}");
    let asynchronous = os_user::number::ASYNCHRONOUS | os_user::number::exit;
    let result = sys::raw(asynchronous, [0; 6]);
    ensure!(result == Err(Error::NoSuchCall), "{result:?}");
    Ok(())
}

pub(crate) async fn dropped_read_keeps_its_buffer() -> Outcome {
    let pipe = new_pipe()?;
    drop(read!(pipe.reader, vec![0; 64], current()));
    // The allocator would reuse the buffer here if the drop had freed it.
    let other = Box::<[u8]>::from([7; 64]);
    write!(pipe.writer, b"late").map_err(message)?;
    sleep(1_000).await;
    ensure!(
        other.iter().all(|byte| *byte == 7),
        "the kernel wrote to freed memory"
    );
    close(pipe)
}

/// Coroutines pass tokens around a ring of four pipes, each of which carries the tokens of many
/// coroutines.
pub(crate) async fn pipe_ring_of_coroutines() -> Outcome {
    const COROUTINES: usize = 60;
    let pipes = [new_pipe()?, new_pipe()?, new_pipe()?, new_pipe()?];
    let mut handles = Vec::new();
    for number in 0..COROUTINES {
        let (source, sink) = (pipes[number % 4], pipes[(number + 1) % 4]);
        let pass = async move {
            let (result, token) = read!(source.reader, vec![0; 1], current()).await;
            if result != Ok(1) {
                return false;
            }
            let (result, _) = write!(sink.writer, token, current()).await;
            result == Ok(1)
        };
        handles.push(spawn(pass, Some(33 + (number % 4) as u8)).map_err(message)?);
    }
    // Each coroutine reads one byte and writes one, so the number of tokens does not change.
    for pipe in pipes {
        write!(pipe.writer, b"tokens").map_err(message)?;
    }
    for handle in handles {
        ensure!(handle.await == Some(true), "a coroutine failed");
    }
    for pipe in pipes {
        close(pipe)?;
    }
    Ok(())
}

pub(crate) async fn calls_in_flight_are_limited() -> Outcome {
    let pipe = new_pipe()?;
    let (mut reads, error) = as_many_as_possible(&pipe).await;
    ensure!(
        error == Err(Error::TooMany) && reads.len() > MIN_CALLS,
        "{} calls, then {error:?}",
        reads.len()
    );
    // These reads end before bytes are written, because otherwise a read that another hart is
    // working on would take a byte.
    cancel_all(reads.split_off(4)).await?;
    write!(pipe.writer, &[1; 4]).map_err(message)?;
    for reading in reads {
        let (result, _) = reading.await;
        ensure!(result == Ok(1), "{result:?}");
    }
    close(pipe)
}

/// Starts reads from an empty pipe until a read fails; returns the reads and the error.
async fn as_many_as_possible(pipe: &Pipe) -> (Vec<Reading>, Result<usize, Error>) {
    let mut reads = Vec::new();
    loop {
        let mut reading = read!(pipe.reader, vec![0; 1], current());
        match poll_fn(|cx| Poll::Ready(Pin::new(&mut reading).poll(cx))).await {
            Poll::Pending => reads.push(reading),
            Poll::Ready((result, _)) => return (reads, result),
        }
    }
}

/// Cancels reads from an empty pipe, and waits for their completions.
async fn cancel_all(reads: Vec<Reading>) -> Outcome {
    for reading in &reads {
        reading.cancel();
    }
    for reading in reads {
        let (result, _) = reading.await;
        ensure!(result == Err(Error::Cancelled), "{result:?}");
    }
    Ok(())
}

/// A cancelled read consumes no bytes and returns its buffer.
pub(crate) async fn cancelled_call_is_an_error() -> Outcome {
    let pipe = new_pipe()?;
    let reading = read!(pipe.reader, vec![7; 8], current());
    reading.cancel();
    let (result, buffer) = reading.await;
    ensure!(
        result == Err(Error::Cancelled) && buffer == [7; 8],
        "{result:?}, {buffer:?}"
    );
    write!(pipe.writer, b"kept").map_err(message)?;
    let (result, _) = read!(pipe.reader, vec![0; 8], current()).await;
    ensure!(result == Ok(4), "the bytes are gone: {result:?}");
    close(pipe)
}

/// A call can be cancelled while it waits for any event.
pub(crate) async fn every_call_can_be_cancelled() -> Outcome {
    let pipe = new_pipe()?;
    let child = os_user::spawn("child", b"endless", &[], 62).map_err(message)?;
    // The pipe is full, so the next write waits.
    write!(pipe.writer, &[0; 512]).map_err(message)?;
    let far_deadline = now() + 1_000 * ticks_per_second();
    let start = now();
    let sleeping = sleep_until!(far_deadline, current());
    sleeping.cancel();
    let result = sleeping.await;
    ensure!(result == Err(Error::Cancelled), "{result:?}");
    let waiting = wait!(child, current());
    waiting.cancel();
    let result = waiting.await;
    ensure!(result == Err(Error::Cancelled), "{result:?}");
    for call in [
        write!(pipe.writer, vec![1; 8], current()),
        // The console, which delivers no bytes.
        read!(0, vec![1; 8], current()),
    ] {
        call.cancel();
        let (result, buffer) = call.await;
        ensure!(
            result == Err(Error::Cancelled) && buffer == [1; 8],
            "{result:?}"
        );
    }
    ensure!(
        now() - start < 100 * ticks_per_second(),
        "the cancellations took too long"
    );
    sys::kill(child).map_err(message)?;
    let status = wait!(child, current()).await;
    ensure!(status == Ok(os_user::number::KILLED), "{status:?}");
    close(pipe)
}

/// Cancels calls that have ended, and calls that were never made. Each attempt must return an
/// error.
pub(crate) async fn cancelling_an_unknown_call_is_an_error() -> Outcome {
    for (call, token) in [(0, 12_345), (usize::MAX, 0), (5_000, 1)] {
        let result = sys::cancel(call, token);
        ensure!(result == Err(Error::NoCall), "{call}: {result:?}");
    }
    let pipe = new_pipe()?;
    // Time for the completion to arrive; the host determines how long that takes.
    let mut micros = 1_000;
    loop {
        let reading = read!(pipe.reader, vec![0; 8], current());
        write!(pipe.writer, b"come").map_err(message)?;
        sleep(micros).await;
        reading.cancel();
        let (result, _) = reading.await;
        if result == Ok(4) {
            return close(pipe);
        }
        ensure!(result == Err(Error::Cancelled), "{result:?}");
        ensure!(micros < 1_000_000, "no completion arrives");
        let (result, _) = read!(pipe.reader, vec![0; 8], current()).await;
        ensure!(result == Ok(4), "{result:?}");
        micros *= 2;
    }
}

/// When a future is dropped, its slot in the completion ring becomes free, so other calls can be
/// made.
pub(crate) async fn dropped_calls_free_their_slots() -> Outcome {
    let pipe = new_pipe()?;
    for _ in 0..40 {
        let reads: Vec<_> = (0..200)
            .map(|_| read!(pipe.reader, vec![0; 8], current()))
            .collect();
        drop(reads);
        yield_now().await;
    }
    // After a while, as many calls fit in as before.
    let limit = now() + 100 * ticks_per_second();
    loop {
        let (reads, _) = as_many_as_possible(&pipe).await;
        let count = reads.len();
        cancel_all(reads).await?;
        if count > MIN_CALLS {
            break;
        }
        ensure!(now() < limit, "only {count} calls fit in");
        yield_now().await;
    }
    let (result, _) = {
        let reading = read!(pipe.reader, vec![0; 8], current());
        write!(pipe.writer, b"last").map_err(message)?;
        reading.await
    };
    ensure!(
        result == Ok(4),
        "a dropped read has taken the bytes: {result:?}"
    );
    close(pipe)
}

/// A program forges coroutine ids and completions, which must not affect other processes.
pub(crate) async fn forged_ids_and_words_harm_no_other_process() -> Outcome {
    let pipe = new_pipe()?;
    write!(pipe.writer, b"abc").map_err(message)?;
    let number = os_user::number::read | os_user::number::ASYNCHRONOUS;
    let mut buffer = vec![0u8; 3];
    for cid in [u64::MAX, 0, 1 << 40, 7 << 32] {
        // No operation has this token, so the completion finds none.
        let arguments = [77, buffer.as_mut_ptr() as usize, 3, 0, 0, usize::MAX];
        let result = sys::raw_with(number, arguments, cid as usize);
        ensure!(result.is_ok(), "{result:?}");
        let forged = [pipe.reader, 16, 3, 0, 0, usize::MAX];
        let result = sys::raw_with(number, forged, cid as usize);
        ensure!(result.is_ok(), "{result:?}");
    }
    sleep(1_000).await;
    let (result, bytes) = read!(pipe.reader, buffer, current()).await;
    ensure!(result == Ok(3) && bytes == b"abc", "{result:?}");
    close(pipe)
}

pub(crate) async fn asynchronous_wait_for_a_child() -> Outcome {
    let child = os_user::spawn("child", b"exit 9", &[], 40).map_err(message)?;
    let status = wait!(child, current()).await;
    ensure!(status == Ok(9), "{status:?}");
    Ok(())
}
