//! Tests of user interrupts: which threads are interrupted for a completion, and which are not.

use alloc::format;
use alloc::rc::Rc;
use alloc::vec;
use core::cell::Cell;

use os_user::coroutine::{current, need_preempt, spawn_local as spawn, yield_now};
use os_user::testing::{Outcome, message};
use os_user::{asynchronous, ensure, now, read, sleep, ticks_per_second};

use crate::{close, new_pipe};

/// A coroutine that never yields its hart sees that a more urgent one has become ready: only an
/// interrupt can have notified the scheduler.
pub(crate) async fn user_interrupt_reaches_a_running_coroutine() -> Outcome {
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
        let sleeper = spawn(sleeper, Some(10)).map_err(message)?;
        // Let it call.
        yield_now().await;
        if woken.get() != 0 {
            sleeper.await;
            continue;
        }
        let limit = now() + 40 * ticks_per_second();
        // Floating-point registers are kept, too.
        let (mut rounds, mut halves) = (0u32, 0.0);
        while !need_preempt() {
            ensure!(now() < limit, "no interrupt came");
            rounds += 1;
            halves += 0.5;
        }
        ensure!(halves * 2.0 == f64::from(rounds), "{halves} halves");
        ensure!(
            woken.get() == 0,
            "the coroutine has run in the middle of this poll"
        );
        sleeper.await;
        ensure!(woken.get() != 0, "the coroutine has not run");
        return Ok(());
    }
    Err("every sleep was over too soon".into())
}

/// A coroutine that makes no system call learns that its read has finished when another process, on
/// any hart, has written: by an interrupt of its own hart.
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
        // Let it call.
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
        ensure!(reader.await == Some(true), "the byte came");
        ensure!(
            os_user::wait(child).map_err(message)? == 0,
            "the child wrote"
        );
        close(pipe)?;
        if !too_soon {
            return Ok(());
        }
    }
    Err("every byte came too soon".into())
}

/// A completion does not interrupt a program that is draining the ring: the program checks again
/// afterwards.
pub(crate) async fn draining_thread_is_not_interrupted() -> Outcome {
    let pipe = new_pipe()?;
    let reading = async move { read!(pipe.reader, vec![0; 1], current()).await.0 };
    let reader = spawn(reading, Some(10)).map_err(message)?;
    // Let it call.
    yield_now().await;
    let files = [pipe.reader, pipe.writer];
    let limit = now() + 40 * ticks_per_second();
    let before = asynchronous::interrupts();
    // The child starts when the program drains already: however soon its byte comes, it
    // comes to that.
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
    ensure!(reader.await == Some(Ok(1)), "the read is over");
    ensure!(
        os_user::wait(child).map_err(message)? == 0,
        "the child wrote"
    );
    close(pipe)
}
