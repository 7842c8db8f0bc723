//! Tests of user interrupts: which completions interrupt a running program.

use alloc::format;
use alloc::rc::Rc;
use alloc::vec;
use core::cell::Cell;

use os_user::coroutine::{current, need_preempt, spawn_local as spawn, yield_now};
use os_user::testing::{Outcome, message};
use os_user::{asynchronous, ensure, now, read, sleep, ticks_per_second};

use crate::{close, new_pipe};

/// A coroutine that never yields its hart must observe that a more urgent coroutine has become
/// ready. The running coroutine makes no system call, so only an interrupt can tell the scheduler.
pub(crate) async fn user_interrupt_reaches_a_running_coroutine() -> Outcome {
    // On a slow machine the sleep may end before the loop below begins. Then try a longer sleep.
    for micros in [3_000, 30_000, 300_000] {
        let woken = Rc::new(Cell::new(0));
        let sleeper = {
            let woken = woken.clone();
            async move {
                sleep(micros).await;
                woken.set(now());
            }
        };
        let sleeper = spawn(sleeper, Some(10)).map_err(message)?;
        // Let the coroutine start its call.
        yield_now().await;
        if woken.get() != 0 {
            sleeper.await;
            continue;
        }
        let limit = now() + 40 * ticks_per_second();
        // The interrupt must preserve the floating-point registers, too.
        let (mut rounds, mut halves) = (0u32, 0.0);
        while !need_preempt() {
            ensure!(now() < limit, "no interrupt came");
            rounds += 1;
            halves += 0.5;
        }
        ensure!(
            halves * 2.0 == f64::from(rounds),
            "floating-point state was lost: {halves} * 2 != {rounds}"
        );
        ensure!(
            woken.get() == 0,
            "the coroutine has run in the middle of this poll"
        );
        sleeper.await;
        ensure!(woken.get() != 0, "the coroutine has not run");
        return Ok(());
    }
    Err("every sleep ended too soon".into())
}

/// Another process, on any hart, writes the byte that a coroutine reads. Meanwhile the reader's
/// process makes no system call, so an interrupt on its hart must report the completion.
pub(crate) async fn user_interrupt_is_caused_by_another_process() -> Outcome {
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
        let reader = spawn(reader, Some(10)).map_err(message)?;
        // Let the coroutine start its call.
        yield_now().await;
        let before = asynchronous::interrupts();
        let argument = format!("late {micros}");
        let files = [pipe.reader, pipe.writer];
        let child = os_user::spawn("child", argument.as_bytes(), &files, 10).map_err(message)?;
        let too_soon = done.get();
        if !too_soon {
            let limit = now() + 40 * ticks_per_second();
            while asynchronous::interrupts() == before {
                ensure!(now() < limit, "no interrupt came");
            }
            ensure!(
                !done.get(),
                "the coroutine has run in the middle of this poll"
            );
        }
        ensure!(reader.await == Some(true), "the read failed");
        ensure!(
            os_user::wait(child).map_err(message)? == 0,
            "the child could not write"
        );
        close(pipe)?;
        if !too_soon {
            return Ok(());
        }
    }
    Err("every byte came too soon".into())
}

/// A completion does not interrupt a program that is draining the ring, because the program checks
/// the ring again when it has drained it.
pub(crate) async fn draining_program_is_not_interrupted() -> Outcome {
    let pipe = new_pipe()?;
    let reading = async move { read!(pipe.reader, vec![0; 1], current()).await.0 };
    let reader = spawn(reading, Some(10)).map_err(message)?;
    // Let the coroutine start its call.
    yield_now().await;
    let files = [pipe.reader, pipe.writer];
    let limit = now() + 40 * ticks_per_second();
    let before = asynchronous::interrupts();
    // Start the child inside, so that its byte cannot arrive before the draining begins.
    let (child, during) = asynchronous::without_interrupts(|| {
        let child = os_user::spawn("child", b"late 2000", &files, 10);
        while !asynchronous::has_completions() && now() < limit {}
        let end = now() + ticks_per_second() / 200;
        while now() < end {}
        (child, asynchronous::interrupts())
    });
    let child = child.map_err(message)?;
    ensure!(now() < limit, "the byte did not come");
    ensure!(during == before, "{} interrupts came", during - before);
    ensure!(reader.await == Some(Ok(1)), "the read failed");
    ensure!(
        os_user::wait(child).map_err(message)? == 0,
        "the child could not write"
    );
    close(pipe)
}
