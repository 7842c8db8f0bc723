//! The tests of coroutines in a program: the scheduler in the vDSO, asynchronous
//! calls, user interrupts.

#![no_std]
#![no_main]

extern crate alloc;

use alloc::boxed::Box;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::task::Poll;

use os_user::asynchronous::{self, sleep_until};
use os_user::coroutine::{current, need_preempt, reprio, spawn_local as spawn, wake, yield_now};
use os_user::testing::{Outcome, run_all, text};
use os_user::{Error, Pipe, now, pipe, read, sleep, sys, ticks_per_second, write};
use os_user::{ensure, tests};

os_user::coroutine_entry!(main);

tests! {
    more_urgent_coroutine_runs_first,
    reprio_moves_a_ready_coroutine,
    wake_of_a_dead_cid_is_false,
    wakes_are_not_lost,
    join_returns_the_result,
    cancelled_coroutine_has_no_result,
    sleepers_wake_in_order_of_deadline,
    asynchronous_read_returns_at_once,
    asynchronous_errors_are_results,
    dropped_read_keeps_its_buffer,
    pipe_ring_of_coroutines,
    user_interrupt_reaches_a_running_coroutine,
    user_interrupt_comes_from_what_another_process_does,
    nothing_is_notified_to_who_is_draining,
    calls_in_flight_are_limited,
    cancelled_call_is_an_error,
    every_call_can_be_cancelled,
    cancelling_nothing_is_an_error,
    dropped_calls_give_their_places_back,
    forged_ids_and_words_harm_nobody,
    asynchronous_wait_for_a_child,
}

async fn main() -> isize {
    match os_user::argument() {
        b"pending" => return exit_with_calls_pending(),
        b"spin" => return spin().await,
        _ => {}
    }
    run_all(TESTS).await
}

fn new_pipe() -> Result<Pipe, String> {
    pipe().map_err(text)
}

fn close(pipe: Pipe) -> Outcome {
    for file in [pipe.reader, pipe.writer] {
        sys::close(file).map_err(text)?;
    }
    Ok(())
}

/// Ends the process with calls in flight: the kernel drops them.
fn exit_with_calls_pending() -> isize {
    let Ok(pipe) = pipe() else { return 1 };
    let mut reads = Vec::new();
    for _ in 0..100 {
        reads.push(asynchronous::read(pipe.reader, vec![0; 64], current()));
    }
    0
}

/// Keeps a hart busy with a coroutine that looks whether it should give way.
async fn spin() -> isize {
    let end = now() + ticks_per_second() / 4;
    while now() < end {
        if need_preempt() {
            yield_now().await;
        }
    }
    0
}

/// Notes its number when it is polled.
fn note(order: &Rc<RefCell<Vec<u8>>>, number: u8) -> impl Future<Output = ()> + 'static {
    let order = order.clone();
    async move { order.borrow_mut().push(number) }
}

async fn more_urgent_coroutine_runs_first() -> Outcome {
    let order = Rc::new(RefCell::new(Vec::new()));
    let mut handles = Vec::new();
    for (number, level) in [(0, 50), (1, 41), (2, 60), (3, 41), (4, 35)] {
        handles.push(spawn(note(&order, number), Some(level)).map_err(text)?);
    }
    for handle in handles {
        handle.await;
    }
    let mut order = order.take();
    if sys::is_disturbed() && order[1..3] == [3, 1] {
        // Chaos shuffles what is of one level.
        order[1..3].reverse();
    }
    ensure!(order == [4, 1, 3, 0, 2], "ran in the order {order:?}");
    Ok(())
}

async fn reprio_moves_a_ready_coroutine() -> Outcome {
    let order = Rc::new(RefCell::new(Vec::new()));
    let first = spawn(note(&order, 0), Some(50)).map_err(text)?;
    let second = spawn(note(&order, 1), Some(50)).map_err(text)?;
    ensure!(reprio(second.cid(), 40), "it is alive");
    ensure!(!reprio(second.cid(), 64), "64 is no level");
    first.await;
    second.await;
    let order = order.take();
    ensure!(order == [1, 0], "ran in the order {order:?}");
    Ok(())
}

async fn wake_of_a_dead_cid_is_false() -> Outcome {
    let handle = spawn(async {}, None).map_err(text)?;
    let cid = handle.cid();
    handle.await;
    for dead in [cid, 0, 1 << 40, u64::MAX] {
        ensure!(!wake(dead), "{dead:#x} was woken");
        ensure!(!reprio(dead, 5), "{dead:#x} got a level");
    }
    Ok(())
}

async fn wakes_are_not_lost() -> Outcome {
    let sent = Rc::new(Cell::new(0));
    let receiver = {
        let sent = sent.clone();
        let seen = poll_fn(move |_| match sent.get() {
            1000 => Poll::Ready(()),
            _ => Poll::Pending,
        });
        spawn(seen, Some(20)).map_err(text)?
    };
    for _ in 0..1000 {
        sent.set(sent.get() + 1);
        ensure!(wake(receiver.cid()), "the receiver is alive");
        if sent.get() % 10 == 0 {
            yield_now().await;
        }
    }
    ensure!(receiver.await.is_some(), "the receiver has seen all");
    Ok(())
}

async fn join_returns_the_result() -> Outcome {
    let handle = spawn(async { 6 * 7 }, None).map_err(text)?;
    ensure!(handle.await == Some(42), "the result");
    Ok(())
}

async fn cancelled_coroutine_has_no_result() -> Outcome {
    let handle = spawn(core::future::pending::<()>(), None).map_err(text)?;
    yield_now().await;
    handle.cancel();
    ensure!(handle.await.is_none(), "it has a result");
    Ok(())
}

async fn sleepers_wake_in_order_of_deadline() -> Outcome {
    let order = Rc::new(RefCell::new(Vec::new()));
    let start = now() + ticks_per_second() / 50;
    let mut handles = Vec::new();
    for number in [3u8, 0, 4, 1, 2] {
        let order = order.clone();
        let deadline = start + u64::from(number) * ticks_per_second() / 100;
        let sleeper = async move {
            let (result, _) = sleep_until(deadline, current()).await;
            order.borrow_mut().push(number);
            result.is_ok() && now() >= deadline
        };
        handles.push(spawn(sleeper, None).map_err(text)?);
    }
    for handle in handles {
        ensure!(handle.await == Some(true), "a sleep was short");
    }
    let order = order.take();
    // On several harts each has timers of its own, and the host may stop one.
    let single = matches!(os_user::argument(), b"single" | b"exact");
    ensure!(!single || order.is_sorted(), "woke in the order {order:?}");
    Ok(())
}

async fn asynchronous_read_returns_at_once() -> Outcome {
    let pipe = new_pipe()?;
    let reading = read!(pipe.reader, vec![0; 16], current());
    // The synchronous form would wait here for ever.
    write!(pipe.writer, b"hello").map_err(text)?;
    let (result, buffer) = reading.await;
    ensure!(
        result == Ok(5) && buffer.starts_with(b"hello"),
        "{result:?}"
    );
    let (result, buffer) = write!(pipe.writer, buffer, current()).await;
    ensure!(result == Ok(16) && buffer.len() == 16, "{result:?}");
    let mut back = [0; 16];
    ensure!(
        read!(pipe.reader, &mut back) == Ok(16),
        "both forms of a call"
    );
    close(pipe)
}

async fn asynchronous_errors_are_results() -> Outcome {
    let (result, _) = read!(77, vec![0; 4], current()).await;
    ensure!(result == Err(Error::BadFile), "{result:?}");
    let (result, _) = asynchronous::wait(12345, current()).await;
    ensure!(result == Err(Error::NoProcess), "{result:?}");
    let asynchronous = os_user::number::ASYNCHRONOUS | os_user::number::exit;
    let result = sys::raw(asynchronous, [0; 6]);
    ensure!(result == Err(Error::NoSuchCall), "{result:?}");
    Ok(())
}

async fn dropped_read_keeps_its_buffer() -> Outcome {
    let pipe = new_pipe()?;
    drop(read!(pipe.reader, vec![0; 64], current()));
    // Would be the dropped buffer if that had been freed.
    let other = Box::<[u8]>::from([7; 64]);
    write!(pipe.writer, b"late").map_err(text)?;
    sleep(1_000).await;
    ensure!(
        other.iter().all(|byte| *byte == 7),
        "the kernel wrote to freed memory"
    );
    close(pipe)
}

/// Coroutines in a ring of pipes, of which each process has only a few: each pipe
/// carries the tokens of many coroutines.
async fn pipe_ring_of_coroutines() -> Outcome {
    const COROUTINES: usize = 60;
    let pipes = [new_pipe()?, new_pipe()?, new_pipe()?, new_pipe()?];
    let mut handles = Vec::new();
    for number in 0..COROUTINES {
        let (from, to) = (pipes[number % 4], pipes[(number + 1) % 4]);
        let pass = async move {
            let (result, token) = read!(from.reader, vec![0; 1], current()).await;
            if result != Ok(1) {
                return false;
            }
            let (result, _) = write!(to.writer, token, current()).await;
            result == Ok(1)
        };
        handles.push(spawn(pass, Some(33 + (number % 4) as u8)).map_err(text)?);
    }
    // Each coroutine takes one byte and gives one, so the ring stays fed.
    for pipe in pipes {
        write!(pipe.writer, b"tokens").map_err(text)?;
    }
    for handle in handles {
        ensure!(handle.await == Some(true), "a coroutine failed");
    }
    for pipe in pipes {
        close(pipe)?;
    }
    Ok(())
}

/// A coroutine that never gives the hart away sees that a more urgent one has
/// become ready: only an interrupt can have told the scheduler.
async fn user_interrupt_reaches_a_running_coroutine() -> Outcome {
    // On a machine that is slow now the sleep may be over before this poll begins.
    for micros in [3_000, 30_000, 300_000] {
        let woken = Rc::new(Cell::new(0));
        let sleeper = {
            let woken = woken.clone();
            async move {
                sleep(micros).await;
                woken.set(now());
            }
        };
        let sleeper = spawn(sleeper, Some(10)).map_err(text)?;
        // Let it call.
        yield_now().await;
        if woken.get() != 0 {
            sleeper.await;
            continue;
        }
        let limit = now() + 4 * ticks_per_second();
        while !need_preempt() {
            ensure!(now() < limit, "no interrupt came");
        }
        ensure!(woken.get() == 0, "it has run in the middle of this poll");
        sleeper.await;
        ensure!(woken.get() != 0, "it has not run");
        return Ok(());
    }
    Err("every sleep was over too soon".into())
}

/// A coroutine that makes no system call learns that its read is over when another
/// process, on whichever hart, has written: by an interrupt of the hart it runs on.
async fn user_interrupt_comes_from_what_another_process_does() -> Outcome {
    for micros in [5_000, 50_000, 500_000] {
        let pipe = new_pipe()?;
        let done = Rc::new(Cell::new(false));
        let reader = {
            let done = done.clone();
            async move {
                let (result, data) = read!(pipe.reader, vec![0; 1], current()).await;
                done.set(true);
                result == Ok(1) && data == b"!"
            }
        };
        let reader = spawn(reader, Some(10)).map_err(text)?;
        // Let it call.
        yield_now().await;
        let before = asynchronous::interrupts();
        let argument = format!("late {micros}");
        let files = [pipe.reader, pipe.writer];
        let child = os_user::spawn("child", argument.as_bytes(), &files, 10).map_err(text)?;
        let too_soon = done.get();
        if !too_soon {
            let limit = now() + 4 * ticks_per_second();
            while asynchronous::interrupts() == before {
                ensure!(now() < limit, "no interrupt came");
            }
            ensure!(!done.get(), "it has run in the middle of this poll");
        }
        ensure!(reader.await == Some(true), "the byte came");
        ensure!(os_user::wait(child).map_err(text)? == 0, "the child wrote");
        close(pipe)?;
        if !too_soon {
            return Ok(());
        }
    }
    Err("every byte came too soon".into())
}

/// A completion does not interrupt a program that is taking completions out: it will
/// look by itself.
async fn nothing_is_notified_to_who_is_draining() -> Outcome {
    let pipe = new_pipe()?;
    let reading = async move { read!(pipe.reader, vec![0; 1], current()).await.0 };
    let reader = spawn(reading, Some(10)).map_err(text)?;
    // Let it call.
    yield_now().await;
    let files = [pipe.reader, pipe.writer];
    let child = os_user::spawn("child", b"late 20000", &files, 10).map_err(text)?;
    let limit = now() + 4 * ticks_per_second();
    let before = asynchronous::interrupts();
    let during = asynchronous::undisturbed(|| {
        while !asynchronous::has_completions() && now() < limit {}
        let end = now() + ticks_per_second() / 200;
        while now() < end {}
        asynchronous::interrupts()
    });
    ensure!(now() < limit, "the byte did not come");
    ensure!(during == before, "{} interrupts came", during - before);
    ensure!(reader.await == Some(Ok(1)), "the read is over");
    ensure!(os_user::wait(child).map_err(text)? == 0, "the child wrote");
    close(pipe)
}

async fn calls_in_flight_are_limited() -> Outcome {
    let pipe = new_pipe()?;
    let mut reads = Vec::new();
    let error = loop {
        let mut reading = read!(pipe.reader, vec![0; 1], current());
        let first = poll_fn(|cx| Poll::Ready(Pin::new(&mut reading).poll(cx))).await;
        match first {
            Poll::Pending => reads.push(reading),
            Poll::Ready((result, _)) => break result,
        }
    };
    let count = reads.len();
    ensure!(
        error == Err(Error::TooMany) && count > 3_600,
        "{count} calls, then {error:?}"
    );
    // The others are cancelled.
    reads.truncate(4);
    write!(pipe.writer, &[1; 4]).map_err(text)?;
    for reading in reads {
        let (result, _) = reading.await;
        ensure!(result == Ok(1), "{result:?}");
    }
    close(pipe)
}

/// Nothing was taken by a call that was cancelled, and its buffer comes back.
async fn cancelled_call_is_an_error() -> Outcome {
    let pipe = new_pipe()?;
    let reading = read!(pipe.reader, vec![7; 8], current());
    reading.cancel();
    let (result, buffer) = reading.await;
    ensure!(
        result == Err(Error::Cancelled) && buffer == [7; 8],
        "{result:?}, {buffer:?}"
    );
    write!(pipe.writer, b"kept").map_err(text)?;
    let (result, _) = read!(pipe.reader, vec![0; 8], current()).await;
    ensure!(result == Ok(4), "the bytes are gone: {result:?}");
    close(pipe)
}

/// Whatever a call waits for.
async fn every_call_can_be_cancelled() -> Outcome {
    let pipe = new_pipe()?;
    let child = os_user::spawn("child", b"endless", &[], 62).map_err(text)?;
    // Full: the next write waits.
    write!(pipe.writer, &[0; 512]).map_err(text)?;
    let never = now() + 1_000 * ticks_per_second();
    let start = now();
    for call in [
        sleep_until(never, current()),
        asynchronous::wait(child, current()),
    ] {
        call.cancel();
        let (result, _) = call.await;
        ensure!(result == Err(Error::Cancelled), "{result:?}");
    }
    for call in [
        write!(pipe.writer, vec![1; 8], current()),
        // The console, from which nothing comes.
        read!(0, vec![1; 8], current()),
    ] {
        call.cancel();
        let (result, buffer) = call.await;
        ensure!(
            result == Err(Error::Cancelled) && buffer == [1; 8],
            "{result:?}"
        );
    }
    ensure!(now() - start < 100 * ticks_per_second(), "it took too long");
    sys::kill(child).map_err(text)?;
    let (status, _) = asynchronous::wait(child, current()).await;
    ensure!(status == Ok(os_user::number::KILLED), "{status:?}");
    close(pipe)
}

/// A call that is over, and one that never was.
async fn cancelling_nothing_is_an_error() -> Outcome {
    for (call, token) in [(0, 12_345), (usize::MAX, 0), (5_000, 1)] {
        let result = sys::cancel(call, token);
        ensure!(result == Err(Error::NoCall), "{call}: {result:?}");
    }
    let pipe = new_pipe()?;
    let reading = read!(pipe.reader, vec![0; 8], current());
    write!(pipe.writer, b"come").map_err(text)?;
    // Time to come.
    sleep(1_000).await;
    reading.cancel();
    let (result, _) = reading.await;
    ensure!(result == Ok(4), "{result:?}");
    close(pipe)
}

/// Whoever is dropped in the middle of its waiting lets the others go on: a place in the
/// ring of completions is free again each time.
async fn dropped_calls_give_their_places_back() -> Outcome {
    let pipe = new_pipe()?;
    for _ in 0..40 {
        let reads: Vec<_> = (0..200)
            .map(|_| read!(pipe.reader, vec![0; 8], current()))
            .collect();
        drop(reads);
        yield_now().await;
    }
    let (result, _) = {
        let reading = read!(pipe.reader, vec![0; 8], current());
        write!(pipe.writer, b"last").map_err(text)?;
        reading.await
    };
    ensure!(result == Ok(4), "a dropped read has taken it: {result:?}");
    close(pipe)
}

/// What programs do that lie: ids that they have made up, completions they have not had.
async fn forged_ids_and_words_harm_nobody() -> Outcome {
    let pipe = new_pipe()?;
    write!(pipe.writer, b"abc").map_err(text)?;
    let number = os_user::number::read | os_user::number::ASYNCHRONOUS;
    let mut buffer = vec![0u8; 3];
    for cid in [u64::MAX, 0, 1 << 40, 7 << 32] {
        // No operation has this token: the completion finds nobody.
        let arguments = [77, buffer.as_mut_ptr() as usize, 3, 0, 0, usize::MAX];
        let result = sys::raw_with(number, arguments, cid as usize);
        ensure!(result.is_ok(), "{result:?}");
        let forged = [pipe.reader, 16, 3, 0, 0, usize::MAX];
        let result = sys::raw_with(number, forged, cid as usize);
        ensure!(result.is_ok(), "{result:?}");
    }
    sleep(1_000).await;
    let (result, got) = read!(pipe.reader, buffer, current()).await;
    ensure!(result == Ok(3) && got == b"abc", "{result:?}");
    close(pipe)
}

async fn asynchronous_wait_for_a_child() -> Outcome {
    let child = os_user::spawn("child", b"exit 9", &[], 40).map_err(text)?;
    let (status, _) = asynchronous::wait(child, current()).await;
    ensure!(status == Ok(9), "{status:?}");
    Ok(())
}
