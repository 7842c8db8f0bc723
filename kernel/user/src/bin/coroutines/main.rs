//! Tests of coroutines in user programs: the scheduler in the vDSO, asynchronous calls, user
//! interrupts.

#![no_std]
#![no_main]

extern crate alloc;

mod calls;
mod forms;
mod interrupts;

use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::future::{Future, poll_fn};
use core::task::Poll;

use os_user::asynchronous::{self, sleep_until};
use os_user::coroutine::{current, need_preempt, reprio, spawn_local as spawn, wake, yield_now};
use os_user::testing::{Outcome, message, run_all};
use os_user::{Pipe, now, pipe, sleep, sys, ticks_per_second};
use os_user::{ensure, tests};

use calls::{
    asynchronous_errors_are_results, asynchronous_read_returns_at_once,
    asynchronous_wait_for_a_child, calls_in_flight_are_limited, cancelled_call_is_an_error,
    cancelling_an_unknown_call_is_an_error, dropped_calls_free_their_slots,
    dropped_read_keeps_its_buffer, every_call_can_be_cancelled,
    forged_ids_and_words_harm_no_other_process, pipe_ring_of_coroutines,
};
use forms::{
    both_forms_of_futex_wait, both_forms_of_map, both_forms_of_read_and_write,
    both_forms_of_sleep_until, both_forms_of_spawn_and_wait, both_forms_of_thread_join,
};
use interrupts::{
    draining_program_is_not_interrupted, user_interrupt_is_caused_by_another_process,
    user_interrupt_reaches_a_running_coroutine,
};

os_user::coroutine_entry!(main);

tests! {
    more_urgent_coroutine_runs_first,
    reprio_moves_a_ready_coroutine,
    waking_an_ended_coroutine_returns_false,
    wakes_are_not_lost,
    join_returns_the_result,
    cancelled_coroutine_has_no_result,
    sleepers_wake_in_order_of_deadline,
    both_forms_of_read_and_write,
    both_forms_of_sleep_until,
    both_forms_of_map,
    both_forms_of_spawn_and_wait,
    both_forms_of_thread_join,
    both_forms_of_futex_wait,
    asynchronous_read_returns_at_once,
    asynchronous_errors_are_results,
    dropped_read_keeps_its_buffer,
    pipe_ring_of_coroutines,
    user_interrupt_reaches_a_running_coroutine,
    user_interrupt_is_caused_by_another_process,
    draining_program_is_not_interrupted,
    calls_in_flight_are_limited,
    cancelled_call_is_an_error,
    every_call_can_be_cancelled,
    cancelling_an_unknown_call_is_an_error,
    dropped_calls_free_their_slots,
    forged_ids_and_words_harm_no_other_process,
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
    pipe().map_err(message)
}

fn close(pipe: Pipe) -> Outcome {
    for file in [pipe.reader, pipe.writer] {
        sys::close(file).map_err(message)?;
    }
    Ok(())
}

/// Ends the process with calls in flight, which the kernel must cancel.
fn exit_with_calls_pending() -> isize {
    let Ok(pipe) = pipe() else { return 1 };
    let mut reads = Vec::new();
    for _ in 0..100 {
        reads.push(asynchronous::read(pipe.reader, vec![0; 64], current()));
    }
    0
}

/// Keeps a hart busy for 250 ms with a coroutine that yields when `need_preempt` returns true.
async fn spin() -> isize {
    let end = now() + ticks_per_second() / 4;
    while now() < end {
        if need_preempt() {
            yield_now().await;
        }
    }
    0
}

/// Returns a future that appends `number` to `order`.
fn record(order: &Rc<RefCell<Vec<u8>>>, number: u8) -> impl Future<Output = ()> + 'static {
    let order = order.clone();
    async move { order.borrow_mut().push(number) }
}

/// Waits until `order` has `count` entries. The function does not await the coroutines, because an
/// awaited coroutine takes the level of a more urgent waiter, here of the test.
async fn wait_until_recorded(order: &RefCell<Vec<u8>>, count: usize) {
    while order.borrow().len() < count {
        sleep(1_000).await;
    }
}

async fn more_urgent_coroutine_runs_first() -> Outcome {
    let order = Rc::new(RefCell::new(Vec::new()));
    let mut handles = Vec::new();
    for (number, level) in [(0, 50), (1, 41), (2, 60), (3, 41), (4, 35)] {
        handles.push(spawn(record(&order, number), Some(level)).map_err(message)?);
    }
    wait_until_recorded(&order, 5).await;
    let mut order = order.take();
    if sys::has_chaos() && order[1..3] == [3, 1] {
        // In chaos mode the scheduler shuffles the coroutines of a level.
        order[1..3].reverse();
    }
    ensure!(order == [4, 1, 3, 0, 2], "ran in the order {order:?}");
    Ok(())
}

async fn reprio_moves_a_ready_coroutine() -> Outcome {
    let order = Rc::new(RefCell::new(Vec::new()));
    spawn(record(&order, 0), Some(50)).map_err(message)?;
    let second = spawn(record(&order, 1), Some(50)).map_err(message)?;
    ensure!(reprio(second.cid(), 40), "the coroutine has ended");
    ensure!(!reprio(second.cid(), 64), "level 64 is accepted");
    wait_until_recorded(&order, 2).await;
    let order = order.take();
    ensure!(order == [1, 0], "ran in the order {order:?}");
    Ok(())
}

async fn waking_an_ended_coroutine_returns_false() -> Outcome {
    let handle = spawn(async {}, None).map_err(message)?;
    let cid = handle.cid();
    handle.await;
    for cid in [cid, 0, 1 << 40, u64::MAX] {
        ensure!(!wake(cid), "{cid:#x} was woken");
        ensure!(!reprio(cid, 5), "the level of {cid:#x} was changed");
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
        spawn(seen, Some(20)).map_err(message)?
    };
    for _ in 0..1000 {
        sent.set(sent.get() + 1);
        ensure!(wake(receiver.cid()), "the receiver has ended");
        if sent.get() % 10 == 0 {
            yield_now().await;
        }
    }
    ensure!(receiver.await.is_some(), "the receiver was cancelled");
    Ok(())
}

async fn join_returns_the_result() -> Outcome {
    let handle = spawn(async { 6 * 7 }, None).map_err(message)?;
    ensure!(handle.await == Some(42), "the join did not return 42");
    Ok(())
}

async fn cancelled_coroutine_has_no_result() -> Outcome {
    let handle = spawn(core::future::pending::<()>(), None).map_err(message)?;
    yield_now().await;
    handle.cancel();
    ensure!(handle.await.is_none(), "the coroutine has a result");
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
            let result = sleep_until(deadline, current()).await;
            order.borrow_mut().push(number);
            result.is_ok() && now() >= deadline
        };
        handles.push(spawn(sleeper, None).map_err(message)?);
    }
    for handle in handles {
        ensure!(handle.await == Some(true), "a sleep ended early");
    }
    let order = order.take();
    // Only the argument `exact` guarantees the order. Without it, the host may stop a hart until
    // several deadlines have passed.
    let is_exact = os_user::argument() == b"exact";
    ensure!(
        !is_exact || order.is_sorted(),
        "woke in the order {order:?}"
    );
    Ok(())
}
