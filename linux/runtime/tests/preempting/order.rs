//! Tests of when a running poll is suspended, and for which coroutine.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use upshift::net::UnixDatagram;
use upshift::signal::{SIGUSR1, Signal};
use upshift::{Level, time};

use crate::{LIMIT, build, builder, burn, runtime, spin_until, wait_until_set};

#[test]
fn an_endless_poll_is_suspended_for_an_equal_coroutine() {
    let Some(runtime) = runtime() else { return };
    let flag = Arc::new(AtomicBool::new(false));
    let in_time = runtime.block_on(async {
        let (setter, is_set) = (flag.clone(), flag.clone());
        let long = upshift::spawn(async move { spin_until(&is_set) }, Level::at::<20>());
        let short = upshift::spawn(
            async move { setter.store(true, Ordering::Relaxed) },
            Level::at::<20>(),
        );
        short.await.unwrap();
        long.await.unwrap()
    });
    assert!(in_time);
    let stats = runtime.handle().preemption_stats();
    assert!(stats.suspensions >= 1);
    assert_eq!((stats.vcpus, stats.suspended), (1, 0));
    let level = runtime.handle().level_stats(Level::at::<20>());
    // The main coroutine may have been suspended, too.
    assert!((1..=stats.suspensions).contains(&level.suspensions()));
}

#[test]
fn a_timer_of_a_more_urgent_coroutine_interrupts_a_poll() {
    let Some(runtime) = runtime() else { return };
    let (flag, ticks) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let in_time = runtime.block_on(async {
        let (setter, count, is_set) = (flag.clone(), ticks.clone(), flag.clone());
        let urgent = upshift::spawn(
            async move {
                for _ in 0..20 {
                    time::sleep(Duration::from_millis(1)).await;
                    count.fetch_add(1, Ordering::Relaxed);
                }
                setter.store(true, Ordering::Relaxed);
            },
            Level::at::<0>(),
        );
        let long = upshift::spawn(async move { spin_until(&is_set) }, Level::at::<40>());
        urgent.await.unwrap();
        long.await.unwrap()
    });
    assert!(in_time);
    assert_eq!(ticks.load(Ordering::Relaxed), 20);
}

#[test]
fn a_wake_from_another_thread_interrupts_a_poll() {
    let Some(runtime) = runtime() else { return };
    for level in [Level::at::<0>(), Level::at::<20>()] {
        let flag = Arc::new(AtomicBool::new(false));
        let (setter, is_set, handle) = (flag.clone(), flag.clone(), runtime.handle());
        let outside = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            let woken = async move { setter.store(true, Ordering::Relaxed) };
            handle.spawn(woken, level).unwrap().detach();
        });
        let in_time = runtime.block_on(async {
            upshift::spawn(async move { spin_until(&is_set) }, Level::at::<20>())
                .await
                .unwrap()
        });
        outside.join().unwrap();
        assert!(in_time, "level {level:?}");
    }
}

#[test]
fn a_coroutine_that_an_endless_poll_spawns_is_polled() {
    let Some(runtime) = runtime() else { return };
    let in_time = runtime.block_on(async {
        let long = async {
            let flag = Arc::new(AtomicBool::new(false));
            let setter = flag.clone();
            upshift::spawn(
                async move { setter.store(true, Ordering::Relaxed) },
                Level::at::<20>(),
            )
            .detach();
            spin_until(&flag)
        };
        upshift::spawn(long, Level::at::<20>()).await.unwrap()
    });
    assert!(in_time);
}

#[test]
fn less_urgent_coroutines_do_not_interrupt_a_poll() {
    let Some(runtime) = runtime() else { return };
    let flag = Arc::new(AtomicBool::new(false));
    let (setter, is_set) = (flag.clone(), flag.clone());
    runtime.block_on(async {
        let long = upshift::spawn(
            async move {
                burn(Duration::from_millis(30));
                is_set.load(Ordering::Relaxed)
            },
            Level::at::<10>(),
        );
        let less_urgent = upshift::spawn(
            async move { setter.store(true, Ordering::Relaxed) },
            Level::at::<11>(),
        );
        assert!(!long.await.unwrap(), "the less urgent coroutine ran first");
        less_urgent.await.unwrap();
    });
}

#[test]
fn equal_polls_share_the_cpu() {
    let Some(runtime) = runtime() else { return };
    // All polls should begin before any of them ends. If the machine stalls for 30 ms, the first
    // poll may end earlier, so several attempts are allowed.
    assert!((0..10).any(|_| run_three_polls(&runtime) == ['b', 'b', 'b', 'e', 'e', 'e']));
}

/// Runs three concurrent polls of 30 ms. Returns their beginnings (`b`) and ends (`e`) in order.
fn run_three_polls(runtime: &crate::ExclusiveRuntime) -> Vec<char> {
    let events = Arc::new(Mutex::new(Vec::new()));
    runtime.block_on(async {
        let handles: Vec<_> = (0..3)
            .map(|_| {
                let events = events.clone();
                let long = async move {
                    events.lock().unwrap().push('b');
                    burn(Duration::from_millis(30));
                    events.lock().unwrap().push('e');
                };
                upshift::spawn(long, Level::at::<20>())
            })
            .collect();
        for handle in handles {
            handle.await.unwrap();
        }
    });
    let events = events.lock().unwrap();
    events.clone()
}

#[test]
fn the_main_coroutine_runs_beside_an_endless_poll() {
    let Some(runtime) = runtime() else { return };
    let flag = Arc::new(AtomicBool::new(false));
    let is_set = flag.clone();
    let in_time = runtime.block_on(async {
        let long = upshift::spawn(async move { spin_until(&is_set) }, Level::at::<40>());
        for _ in 0..5 {
            time::sleep(Duration::from_millis(2)).await;
        }
        let local = upshift::spawn_local(async move { std::rc::Rc::new(7) }, Level::at::<20>());
        assert_eq!(*local.await.unwrap(), 7);
        flag.store(true, Ordering::Relaxed);
        long.await.unwrap()
    });
    assert!(in_time);
}

#[test]
fn polls_run_to_completion_when_all_threads_hold_suspended_polls() {
    let Some(runtime) = crate::build(crate::builder().max_suspended(2)) else {
        return;
    };
    let done = Arc::new(AtomicU64::new(0));
    runtime.block_on(async {
        let handles: Vec<_> = (0..40)
            .map(|_| {
                let done = done.clone();
                let long = async move {
                    burn(Duration::from_millis(3));
                    done.fetch_add(1, Ordering::Relaxed);
                };
                upshift::spawn(long, Level::at::<20>())
            })
            .collect();
        for handle in handles {
            handle.await.unwrap();
        }
    });
    assert_eq!(done.load(Ordering::Relaxed), 40);
    assert_eq!(runtime.handle().preemption_stats().suspended, 0);
}

/// Starts a hundred polls that run `endless`. After each of them, starts a new coroutine of the
/// same level, and asserts that the new coroutine is polled. Then calls `end`.
fn assert_new_coroutines_are_polled(endless: impl Fn() + Send + Sync + 'static, end: impl Fn()) {
    let builder = upshift::Runtime::builder()
        .vcpus(1)
        .preemption(upshift::Preemption::Required);
    let Some(runtime) = crate::build(builder) else {
        return;
    };
    let endless = Arc::new(endless);
    runtime.block_on(async {
        let mut polls = Vec::new();
        for _ in 0..100 {
            let endless = endless.clone();
            polls.push(upshift::spawn(async move { endless() }, Level::at::<40>()));
            // The coroutine is detached, because a join would lend it the level of this coroutine.
            let polled = Arc::new(AtomicBool::new(false));
            let set_polled = polled.clone();
            let new_coroutine = async move { set_polled.store(true, Ordering::Relaxed) };
            upshift::spawn(new_coroutine, Level::at::<40>()).detach();
            wait_until_set(&polled).await;
        }
        end();
        for poll in polls {
            poll.await.unwrap();
        }
    });
}

/// The default settings allow many more than a hundred threads for suspended polls.
#[test]
fn a_hundred_long_polls_do_not_delay_new_polls() {
    let flag = Arc::new(AtomicBool::new(false));
    let is_set = flag.clone();
    assert_new_coroutines_are_polled(
        move || assert!(spin_until(&is_set)),
        || flag.store(true, Ordering::Relaxed),
    );
}

/// There are more threads than the watcher keeps `/proc` files open for. The watcher must detect
/// the sleeping threads anyway.
#[test]
fn a_hundred_sleeping_polls_do_not_delay_new_polls() {
    let condition = Arc::new((Mutex::new(false), Condvar::new()));
    let waiting = condition.clone();
    assert_new_coroutines_are_polled(
        move || {
            let open = waiting.0.lock().unwrap();
            let waited = waiting.1.wait_timeout_while(open, LIMIT, |open| !*open);
            assert!(*waited.unwrap().0);
        },
        || {
            *condition.0.lock().unwrap() = true;
            condition.1.notify_all();
        },
    );
}

#[test]
fn thousands_of_long_polls_end() {
    let Some(runtime) = runtime() else { return };
    let done = Arc::new(AtomicU64::new(0));
    runtime.block_on(async {
        let handles: Vec<_> = (0..2000)
            .map(|_| {
                let done = done.clone();
                let long = async move {
                    burn(Duration::from_micros(500));
                    upshift::yield_now().await;
                    burn(Duration::from_micros(300));
                    done.fetch_add(1, Ordering::Relaxed);
                };
                upshift::spawn(long, Level::at::<20>())
            })
            .collect();
        for handle in handles {
            handle.await.unwrap();
        }
    });
    assert_eq!(done.load(Ordering::Relaxed), 2000);
}

/// Until a completion has been read from the ring, the vCPU does not know the completion's
/// coroutine. So the completion counts as urgent as the most urgent coroutine with an operation in
/// the ring. A coroutine that waits for a signal has no such operation, so it must not make the
/// completions of other coroutines look urgent.
#[test]
fn a_coroutine_that_waits_for_a_signal_makes_no_arrival_more_urgent() {
    const POLLS: u64 = 60;
    let Some(runtime) = build(builder().quantum(Duration::from_millis(100))) else {
        return;
    };
    let equal_level = Level::at::<20>();
    runtime.block_on(async {
        let mut signal = Signal::new(SIGUSR1).unwrap();
        let waiter = upshift::spawn(async move { signal.recv().await }, Level::at::<0>());
        let (reader, writer) = UnixDatagram::pair().unwrap();
        let reader_task = upshift::spawn(
            async move {
                for _ in 0..POLLS {
                    reader.recv(&mut [0; 8]).await.unwrap();
                }
            },
            equal_level,
        );
        let writer_task = upshift::spawn(
            async move {
                for _ in 0..POLLS {
                    // SAFETY: the pointer is to one byte.
                    let sent = unsafe { libc::write(writer.as_raw_fd(), [1u8].as_ptr().cast(), 1) };
                    assert_eq!(sent, 1);
                    burn(Duration::from_millis(2));
                    upshift::yield_now().await;
                }
            },
            equal_level,
        );
        writer_task.await.unwrap();
        reader_task.await.unwrap();
        waiter.cancel();
    });
    let stats = runtime.handle().preemption_stats();
    // The main coroutine is at level 32, less urgent than the others, so no poll is suspended for
    // it. If every arrival suspended the writer, the number would be POLLS.
    assert!(stats.suspensions < POLLS / 4, "{stats:?}");
}
