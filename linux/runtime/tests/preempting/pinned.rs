//! Tests of local coroutines, which are polled and dropped only on the thread of `block_on`, their
//! *home thread*.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use upshift::{Level, Priority, time};

use crate::{build, builder, burn, runtime, spin_until};

#[test]
fn local_coroutines_are_spawned_only_on_the_home_thread() {
    let Some(runtime) = runtime() else { return };
    runtime.block_on(async {
        let home = std::thread::current().id();
        let local = upshift::spawn_local(
            async move {
                let inner =
                    upshift::spawn_local(async { std::thread::current().id() }, Level::at::<20>());
                (std::thread::current().id(), inner.await.unwrap())
            },
            Level::at::<20>(),
        );
        assert_eq!(local.await.unwrap(), (home, home));
        // On another thread the call must panic, because a future that is not `Send` would have to
        // leave its thread.
        let error = upshift::spawn(
            async { upshift::spawn_local(async {}, Level::at::<20>()).detach() },
            Level::at::<20>(),
        )
        .await
        .unwrap_err();
        assert!(error.is_panic());
    });
}

#[test]
fn no_thread_of_another_vcpu_is_a_home_thread() {
    let Some(runtime) = build(builder().vcpus(2)) else {
        return;
    };
    runtime.block_on(async {
        // The number is small, because each attempt prints a panic.
        let attempts: Vec<_> = (0..16)
            .map(|_| {
                let attempt = async {
                    // The poll is long enough to be suspended, so that all threads of both vCPUs
                    // poll.
                    burn(Duration::from_millis(5));
                    upshift::spawn_local(async {}, Level::at::<20>()).detach();
                };
                upshift::spawn(attempt, Level::at::<20>())
            })
            .collect();
        for attempt in attempts {
            assert!(attempt.await.unwrap_err().is_panic());
        }
    });
}

#[test]
fn local_coroutines_may_be_ready_while_no_thread_is_in_block_on() {
    for _ in 0..10 {
        let Some(runtime) = runtime() else { return };
        for _ in 0..3 {
            runtime.block_on(async {
                upshift::spawn_local(
                    async {
                        loop {
                            time::sleep(Duration::from_micros(300)).await;
                        }
                    },
                    upshift::Priority::Inherit,
                )
                .detach();
                time::sleep(Duration::from_millis(2)).await;
            });
            // The local coroutines become ready, and no thread polls them.
            std::thread::sleep(Duration::from_millis(2));
        }
        let began = Instant::now();
        drop(runtime);
        // After a second, a runtime no longer waits for polls that do not end.
        assert!(began.elapsed() < Duration::from_millis(900));
    }
}

/// Several local coroutines are picked from the ready queue before the first of them is polled, and
/// other coroutines are polled in between. Each local coroutine must be current in its own poll.
#[test]
fn a_local_coroutine_is_current_while_it_is_polled() {
    let Some(runtime) = runtime() else { return };
    for _ in 0..10 {
        runtime.block_on(async {
            let others: Vec<_> = (0..4)
                .map(|n| {
                    let yields = async {
                        for _ in 0..200 {
                            upshift::yield_now().await;
                        }
                    };
                    upshift::spawn(yields, Level::new(18 + n).unwrap())
                })
                .collect();
            let pinned: Vec<_> = (0..8)
                .map(|n| {
                    let level = Level::new(17 + n).unwrap();
                    let check_identity = async move {
                        let id = upshift::get_cid().expect("the caller is a coroutine");
                        for round in 0..50 {
                            assert_eq!(upshift::get_cid(), Some(id));
                            assert_eq!(upshift::current_level(), Some(level));
                            match round % 10 {
                                0 => time::sleep(Duration::from_micros(100)).await,
                                _ => upshift::yield_now().await,
                            }
                        }
                    };
                    upshift::spawn_local(check_identity, level)
                })
                .collect();
            let main = upshift::get_cid().expect("the caller is a coroutine");
            for coroutine in pinned {
                coroutine.await.unwrap();
                assert_eq!(upshift::get_cid(), Some(main));
            }
            for coroutine in others {
                coroutine.await.unwrap();
                assert_eq!(upshift::get_cid(), Some(main));
            }
        });
    }
}

#[test]
fn block_on_in_a_poll_of_block_on_panics() {
    let Some(runtime) = runtime() else { return };
    let other = upshift::Runtime::builder().vcpus(1).build().unwrap();
    for inner in [&*runtime, &other] {
        for _ in 0..20 {
            let nested = std::panic::AssertUnwindSafe(|| {
                runtime.block_on(async { inner.block_on(async { 7 }) });
            });
            assert!(std::panic::catch_unwind(nested).is_err());
        }
    }
    assert_eq!(runtime.block_on(async { 7 }), 7);
}

/// Another thread of the vCPU may take the future of `block_on` from the ready queue, although only
/// the thread of `block_on` may poll the future. The future must not be lost.
#[test]
fn block_on_begins_beside_a_poll_that_does_not_end() {
    let Some(runtime) = runtime() else { return };
    let stop = Arc::new(AtomicBool::new(false));
    let is_set = stop.clone();
    let endless = async move { spin_until(&is_set) };
    let endless = runtime.handle().spawn(endless, Level::at::<40>()).unwrap();
    for round in 0..200 {
        assert_eq!(runtime.block_on(async move { round }), round);
    }
    stop.store(true, Ordering::Relaxed);
    assert!(
        runtime.block_on(endless).unwrap(),
        "block_on had to wait for the poll"
    );
}

/// A value that reports whether it is dropped on the thread that created it.
struct DropRecorder {
    creator: std::thread::ThreadId,
    drop_sender: std::sync::mpsc::Sender<bool>,
    _not_send: std::rc::Rc<()>,
}

impl Drop for DropRecorder {
    fn drop(&mut self) {
        let is_creator = std::thread::current().id() == self.creator;
        let _ = self.drop_sender.send(is_creator);
    }
}

#[test]
fn a_local_coroutine_is_dropped_on_its_home_thread_although_a_poll_outlives_the_runtime() {
    let Some(runtime) = runtime() else { return };
    let (drop_sender, drop_receiver) = std::sync::mpsc::channel();
    let spin_end = Arc::new(AtomicBool::new(false));
    let has_spin_ended = spin_end.clone();
    runtime.block_on(async move {
        let recorder = DropRecorder {
            creator: std::thread::current().id(),
            drop_sender,
            _not_send: std::rc::Rc::default(),
        };
        let pending_coroutine = async move {
            let _recorder = recorder;
            std::future::pending::<()>().await;
        };
        upshift::spawn_local(pending_coroutine, Priority::Inherit).detach();
        upshift::yield_now().await;
        // The spinning coroutine is more urgent than the cancelled coroutines, and spins for longer
        // than a runtime waits.
        let starts = Arc::new(AtomicBool::new(false));
        let started = starts.clone();
        let spin = async move {
            starts.store(true, Ordering::SeqCst);
            burn(Duration::from_millis(2500));
            spin_end.store(true, Ordering::SeqCst);
        };
        upshift::spawn(spin, Level::at::<0>()).detach();
        // This poll is suspended for the long poll and resumed for a short time. (A coroutine that
        // has not been polled would be cancelled.)
        assert!(spin_until(&started));
    });
    drop(runtime);
    assert_eq!(drop_receiver.try_recv(), Ok(true));
    let limit = Instant::now() + Duration::from_secs(20);
    while !has_spin_ended.load(Ordering::SeqCst) {
        assert!(
            Instant::now() < limit,
            "the poll that outlived the runtime does not end"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A vCPU of a new runtime may be notified of the thread of `block_on` while the vCPU is still
/// starting, or just when its wait reaches the limit of a search for work. The vCPU must notice the
/// thread in either case.
#[test]
fn a_new_runtime_notices_the_thread_of_block_on() {
    for round in 0..400_u64 {
        let Some(runtime) = build(builder().vcpus(2)) else {
            return;
        };
        let began = Instant::now();
        // The idle times cover the intervals between the vCPU's first searches for work.
        let idle = Duration::from_micros(round * 7 % 400);
        while began.elapsed() < idle {
            std::hint::spin_loop();
        }
        runtime.block_on(async { upshift::yield_now().await });
        assert!(began.elapsed() < Duration::from_secs(20), "round {round}");
    }
}
