//! Tests of timers and idle harts. Exact figures are asserted only under `-icount`, where time
//! counts instructions; the runner passes this on the command line.

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use upshift_core::{Level, Priority};

use super::Outcome;
use crate::arch::lock::IrqLock;
use crate::executor::yield_now;
use crate::sleep::sleep_until;
use crate::{clock, ensure, executor, hart};

/// True if the machine counts instructions as time.
static ICOUNT: AtomicBool = AtomicBool::new(false);

pub(super) fn set_icount(icount: bool) {
    ICOUNT.store(icount, Relaxed);
}

pub(crate) fn is_icount() -> bool {
    ICOUNT.load(Relaxed)
}

pub(super) async fn sleepers_wake_in_order_of_deadline() -> Outcome {
    let order = Arc::new(IrqLock::new(Vec::new()));
    let start = clock::now() + clock::from_micros(2_000);
    let mut handles = Vec::new();
    for number in [3u64, 0, 4, 1, 2] {
        let order = order.clone();
        let deadline = start + number * clock::from_micros(20_000);
        let sleep = async move {
            sleep_until(deadline).await;
            order.lock().push(number);
            clock::now() >= deadline
        };
        let level = Priority::At(Level::at::<20>());
        handles.push(executor::spawn(sleep, level).map_err(|error| format!("{error}"))?);
    }
    for handle in handles {
        let is_due = handle.await.map_err(|error| format!("{error}"))?;
        ensure!(is_due, "a sleep ended early");
    }
    let order = order.lock().clone();
    // Without `-icount`, the host may stop harts until several deadlines have passed.
    ensure!(
        !ICOUNT.load(Relaxed) || order.is_sorted(),
        "woke in the order {order:?}"
    );
    Ok(())
}

pub(super) async fn dropped_sleep_leaves_nothing_behind() -> Outcome {
    let sleep = async { sleep_until(clock::now() + 100 * clock::ticks_per_second()).await };
    let handle = executor::spawn(sleep, Priority::Inherit).map_err(|error| format!("{error}"))?;
    yield_now().await;
    handle.cancel();
    let cancelled = handle.await.is_err_and(|error| error.is_cancelled());
    ensure!(cancelled, "the sleeper was not cancelled");
    let pending = hart::online()
        .iter()
        .any(|hart| hart.timers.lock().next_deadline() != u64::MAX);
    ensure!(!pending, "a timer is still set");
    Ok(())
}

/// Measures the path from the deadline to the poll: interrupt, wake, choice of the coroutine.
pub(super) async fn timer_is_exact_under_icount() -> Outcome {
    let mut max_delay = 0;
    for n in 0..50 {
        let deadline = clock::now() + 1_000 + 37 * n;
        sleep_until(deadline).await;
        let now = clock::now();
        ensure!(now >= deadline, "woke {} ticks early", deadline - now);
        max_delay = max_delay.max(now - deadline);
    }
    // Under `-icount` a tick is 100 instructions, so the path may take 4,000 instructions.
    ensure!(
        !ICOUNT.load(Relaxed) || max_delay <= 40,
        "woke up to {max_delay} ticks late"
    );
    Ok(())
}

/// The switching coroutine of an idle hart is polled once per interrupt.
pub(super) async fn idle_hart_waits_for_interrupts() -> Outcome {
    let idle_polls = || -> u64 {
        let vcpus = executor::domain().vcpus();
        vcpus
            .map(|vcpu| vcpu.level_stats(Level::LEAST_URGENT).polls)
            .sum()
    };
    let before = idle_polls();
    sleep_until(clock::now() + clock::ticks_per_second() / 10).await;
    let polls = idle_polls() - before;
    // Busy waiting would have polled a million times.
    ensure!(polls < 1_000, "{polls} polls while all harts were idle");
    Ok(())
}
