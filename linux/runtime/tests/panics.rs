//! A panic in code of users ends its coroutine, function or hook and nothing else, and none is
//! silent.

#[path = "support/child.rs"]
mod child;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use child::child;
use upshift::{Level, Preemption, Runtime, spawn, spawn_blocking, time, yield_now};

/// Panics when it is dropped, with a payload that does the same.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        std::panic::panic_any(Bomb);
    }
}

/// Runtimes with and without preemption, where that can be had.
fn runtimes() -> Vec<Runtime> {
    [Preemption::Off, Preemption::Preferred]
        .map(|preemption| {
            let builder = Runtime::builder().vcpus(2).preemption(preemption);
            builder.build().unwrap()
        })
        .into()
}

/// All vCPUs still poll, and functions that block still run.
async fn everything_goes_on() {
    for n in 0..50 {
        let joined = spawn(
            async move {
                yield_now().await;
                n
            },
            Level::default(),
        );
        assert_eq!(joined.await.unwrap(), n);
    }
    assert_eq!(spawn_blocking(|| 5).await.unwrap(), 5);
}

#[test]
fn a_detached_output_whose_destructor_panics_ends_nothing_else() {
    for runtime in runtimes() {
        runtime.block_on(async {
            for _ in 0..4 {
                spawn(async { Bomb }, Level::default()).detach();
            }
            everything_goes_on().await;
        });
    }
}

#[test]
fn a_payload_whose_destructor_panics_ends_nothing_else() {
    for runtime in runtimes() {
        runtime.block_on(async {
            for _ in 0..4 {
                spawn(async { std::panic::panic_any(Bomb) }, Level::default()).detach();
            }
            everything_goes_on().await;
        });
    }
}

#[test]
fn a_future_whose_destructor_panics_ends_nothing_else() {
    for runtime in runtimes() {
        runtime.block_on(async {
            for _ in 0..4 {
                let waits = spawn(
                    async {
                        let _bomb = Bomb;
                        std::future::pending::<()>().await;
                    },
                    Level::default(),
                );
                yield_now().await;
                waits.cancel();
                waits.detach();
            }
            everything_goes_on().await;
        });
    }
}

#[test]
fn a_blocking_result_that_nobody_wants_may_panic_when_dropped() {
    for runtime in runtimes() {
        runtime.block_on(async {
            assert!(spawn_blocking(|| panic!("expected")).await.is_err());
            for _ in 0..4 {
                drop(spawn_blocking(|| Bomb));
            }
            everything_goes_on().await;
        });
    }
}

#[test]
fn a_hook_whose_payload_panics_ends_nothing_else() {
    let builder = Runtime::builder().vcpus(2);
    let builder = builder.on_vcpu_start(|| std::panic::panic_any(Bomb));
    let runtime = builder
        .on_vcpu_stop(|| std::panic::panic_any(Bomb))
        .build()
        .unwrap();
    runtime.block_on(everything_goes_on());
}

/// Each panics once, with this text.
const SAID: &str = "said by the one that panicked";

fn panic_silently_if_possible(kind: &str) {
    let runtime = Runtime::builder().vcpus(1);
    let runtime = match kind {
        "hook" => {
            let first = AtomicBool::new(true);
            runtime.on_vcpu_start(move || {
                assert!(!first.swap(false, Ordering::Relaxed), "{SAID}");
            })
        }
        _ => runtime,
    };
    runtime.build().unwrap().block_on(async {
        struct Panics;
        impl Drop for Panics {
            fn drop(&mut self) {
                panic!("{SAID}");
            }
        }
        match kind {
            "detached" => spawn(async { panic!("{SAID}") }, Level::default()).detach(),
            "output" => spawn(async { Panics }, Level::default()).detach(),
            "blocking" => drop(spawn_blocking(|| panic!("{SAID}"))),
            "result" => drop(spawn_blocking(|| Panics)),
            _ => {}
        }
        time::sleep(Duration::from_millis(100)).await;
    });
}

/// The child's part of the test below: a no-op unless it is told which one.
#[test]
fn panics_as_it_is_told() {
    if let Ok(kind) = std::env::var("UPSHIFT_TEST_PANIC") {
        panic_silently_if_possible(&kind);
    }
}

#[test]
fn every_panic_is_reported_once_on_standard_error() {
    for kind in ["detached", "output", "blocking", "result", "hook"] {
        let output = child("panics_as_it_is_told")
            .env("UPSHIFT_TEST_PANIC", kind)
            .output()
            .unwrap();
        assert!(output.status.success(), "{kind}: {}", output.status);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said.matches(SAID).count(), 1, "{kind}: {said}");
    }
}
