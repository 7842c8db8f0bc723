//! Tests of the scheduler with the kernel as host.

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};
use core::task::Poll;

use upshift_core::{Level, Priority};

use super::Outcome;
use crate::arch::hart_index;
use crate::arch::lock::IrqLock;
use crate::executor::yield_now;
use crate::memory::{frames, heap};
use crate::sleep::sleep_until;
use crate::{clock, ensure, executor, hart};

fn priority(level: u8) -> Priority {
    Priority::At(Level::new(level).unwrap_or(Level::DEFAULT))
}

/// Runs a test while coroutines that never yield occupy all other harts, so that the order in which
/// this hart runs coroutines can be observed.
pub(super) async fn with_other_harts_busy<F: Future<Output = Outcome>>(test: F) -> Outcome {
    let stop = Arc::new(AtomicBool::new(false));
    let busy = Arc::new(AtomicUsize::new(0));
    let others = hart::online().len() - 1;
    let mut handles = Vec::new();
    for _ in 0..others {
        let (stop, busy) = (stop.clone(), busy.clone());
        let busy_loop = async move {
            busy.fetch_add(1, SeqCst);
            while !stop.load(SeqCst) {
                core::hint::spin_loop();
            }
        };
        handles.push(executor::spawn(busy_loop, priority(31)).map_err(|error| format!("{error}"))?);
    }
    // This coroutine is always ready and more urgent, so each busy loop starts on another hart.
    while busy.load(SeqCst) < others {
        yield_now().await;
    }
    let outcome = test.await;
    stop.store(true, SeqCst);
    for handle in handles {
        handle.await.map_err(|error| format!("{error}"))?;
    }
    outcome
}

/// Spawns a coroutine for each level. Returns the indices of the levels, in the order in which the
/// coroutines ran.
async fn run_order(levels: &[u8]) -> Result<Vec<usize>, alloc::string::String> {
    let order = Arc::new(IrqLock::new(Vec::new()));
    let mut handles = Vec::new();
    for (number, &level) in levels.iter().enumerate() {
        let order = order.clone();
        let record = async move { order.lock().push(number) };
        handles.push(executor::spawn(record, priority(level)).map_err(|error| format!("{error}"))?);
    }
    for handle in &handles {
        while !handle.is_finished() {
            // Go to the tail of this level, so that all more urgent coroutines run first.
            yield_now().await;
            sleep_until(clock::now() + 100).await;
        }
    }
    let order = order.lock().clone();
    Ok(order)
}

pub(super) async fn more_urgent_runs_first() -> Outcome {
    with_other_harts_busy(async {
        let order = run_order(&[40, 33, 62, 31, 50]).await?;
        ensure!(order == [3, 1, 0, 4, 2], "ran in the order {order:?}");
        Ok(())
    })
    .await
}

pub(super) async fn levels_are_fifo() -> Outcome {
    with_other_harts_busy(async {
        let order = run_order(&[40; 16]).await?;
        ensure!(order.is_sorted(), "ran in the order {order:?}");
        Ok(())
    })
    .await
}

pub(super) async fn reprio_moves_a_queued_coroutine() -> Outcome {
    with_other_harts_busy(async {
        let order = Arc::new(IrqLock::new(Vec::new()));
        let mut handles = Vec::new();
        for number in 0..3 {
            let order = order.clone();
            let record = async move { order.lock().push(number) };
            handles
                .push(executor::spawn(record, priority(40)).map_err(|error| format!("{error}"))?);
        }
        let urgent = Level::at::<35>();
        let moved = executor::domain().reprio(handles[2].id(), urgent);
        ensure!(moved.is_ok(), "the queued coroutine has ended");
        for handle in &handles {
            while !handle.is_finished() {
                sleep_until(clock::now() + 100).await;
            }
        }
        let order = order.lock().clone();
        ensure!(order == [2, 0, 1], "ran in the order {order:?}");
        Ok(())
    })
    .await
}

pub(super) async fn waking_an_ended_coroutine_is_an_error() -> Outcome {
    let handle = executor::spawn(async {}, priority(20)).map_err(|error| format!("{error}"))?;
    let id = handle.id();
    handle.await.map_err(|error| format!("{error}"))?;
    ensure!(
        executor::domain().wake(id).is_err(),
        "an ended coroutine was woken"
    );
    Ok(())
}

/// A coroutine on each hart wakes one receiver by id, 100,000 times in total. The receiver is
/// polled after the last wake, so it sees the final counts.
pub(super) async fn burst_of_wakes_from_all_harts_loses_none() -> Outcome {
    const WAKES: u32 = 100_000;
    let sent = Arc::new(AtomicU32::new(0));
    let done = Arc::new(AtomicU32::new(0));
    let senders = hart::online().len().max(2) as u32;
    let before = (heap::in_use(), frames::free_frames());
    let max_heap_bytes = Arc::new(AtomicUsize::new(0));
    let min_free_frames = Arc::new(AtomicUsize::new(before.1));
    let receiver = {
        let (sent, done) = (sent.clone(), done.clone());
        let mut polls = 0u32;
        poll_fn(move |_| {
            polls += 1;
            // Counts that were stored before a wake are visible to the poll after it.
            if sent.load(Relaxed) == WAKES && done.load(Relaxed) == senders {
                return Poll::Ready(polls);
            }
            Poll::Pending
        })
    };
    let receiver = executor::spawn(receiver, priority(10)).map_err(|error| format!("{error}"))?;
    let id = receiver.id();
    for sender in 0..senders {
        let share = WAKES / senders + u32::from(sender < WAKES % senders);
        let (sent, done) = (sent.clone(), done.clone());
        let (max_heap_bytes, min_free_frames) = (max_heap_bytes.clone(), min_free_frames.clone());
        let send = async move {
            for n in 0..share {
                sent.fetch_add(1, Relaxed);
                // The receiver lives until all wakes have been sent.
                let _ = executor::domain().wake(id);
                if n % 1000 == 0 {
                    max_heap_bytes.fetch_max(heap::in_use(), Relaxed);
                    min_free_frames.fetch_min(frames::free_frames(), Relaxed);
                    yield_now().await;
                }
            }
            done.fetch_add(1, Relaxed);
            let _ = executor::domain().wake(id);
        };
        executor::spawn(send, priority(31))
            .map_err(|error| format!("{error}"))?
            .detach();
    }
    let polls = receiver.await.map_err(|error| format!("{error}"))?;
    // The first poll, one for each wake, and one for the end of each sender.
    ensure!(
        polls <= WAKES + senders + 1,
        "{polls} polls for {WAKES} wakes"
    );
    // The coroutines need memory, a wake needs none. Both limits are 64 KiB (16 frames), less than
    // a byte for each wake.
    let heap_growth = max_heap_bytes.load(Relaxed).saturating_sub(before.0);
    ensure!(
        heap_growth < 64 << 10,
        "{heap_growth} bytes of the heap for {WAKES} wakes"
    );
    let frames_taken = before.1.saturating_sub(min_free_frames.load(Relaxed));
    ensure!(
        frames_taken <= 16,
        "{frames_taken} frames for {WAKES} wakes"
    );
    Ok(())
}

pub(super) async fn idle_harts_take_work() -> Outcome {
    let all = (1u32 << hart::online().len()) - 1;
    let seen = Arc::new(AtomicU32::new(0));
    let mut handles = Vec::new();
    for _ in hart::online() {
        let seen = seen.clone();
        let visit = async move {
            let limit = clock::now() + 20 * clock::ticks_per_second();
            while seen.load(SeqCst) != all && clock::now() < limit {
                seen.fetch_or(1 << hart_index(), SeqCst);
                yield_now().await;
            }
        };
        handles.push(executor::spawn(visit, priority(31)).map_err(|error| format!("{error}"))?);
    }
    for handle in handles {
        handle.await.map_err(|error| format!("{error}"))?;
    }
    let seen = seen.load(SeqCst);
    ensure!(seen == all, "ran on harts {seen:#b} of {all:#b}");
    Ok(())
}
