//! Tests that a panic in user code ends only its coroutine, function or hook, and is always
//! reported.

#[path = "support/child.rs"]
mod child;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use child::child;
use upshift::{Level, Preemption, Runtime, spawn, spawn_blocking, time, yield_now};

/// A value that panics when it is dropped, with a payload that also panics when it is dropped.
struct PanicsOnDrop;

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        std::panic::panic_any(PanicsOnDrop);
    }
}

/// Returns a runtime without preemption and one with preemption, if the kernel permits it.
fn runtimes() -> Vec<Runtime> {
    [Preemption::Off, Preemption::Preferred]
        .map(|preemption| {
            let builder = Runtime::builder().vcpus(2).preemption(preemption);
            builder.build().unwrap()
        })
        .into()
}

async fn assert_runtime_works() {
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
                spawn(async { PanicsOnDrop }, Level::default()).detach();
            }
            assert_runtime_works().await;
        });
    }
}

#[test]
fn a_payload_whose_destructor_panics_ends_nothing_else() {
    for runtime in runtimes() {
        runtime.block_on(async {
            for _ in 0..4 {
                spawn(
                    async { std::panic::panic_any(PanicsOnDrop) },
                    Level::default(),
                )
                .detach();
            }
            assert_runtime_works().await;
        });
    }
}

#[test]
fn a_future_whose_destructor_panics_ends_nothing_else() {
    for runtime in runtimes() {
        runtime.block_on(async {
            for _ in 0..4 {
                let waiter = spawn(
                    async {
                        let _value = PanicsOnDrop;
                        std::future::pending::<()>().await;
                    },
                    Level::default(),
                );
                yield_now().await;
                waiter.cancel();
                waiter.detach();
            }
            assert_runtime_works().await;
        });
    }
}

#[test]
fn an_unused_result_of_a_blocking_function_may_panic_when_dropped() {
    for runtime in runtimes() {
        runtime.block_on(async {
            assert!(spawn_blocking(|| panic!("expected")).await.is_err());
            for _ in 0..4 {
                drop(spawn_blocking(|| PanicsOnDrop));
            }
            assert_runtime_works().await;
        });
    }
}

#[test]
fn a_hook_whose_payload_panics_ends_nothing_else() {
    let builder = Runtime::builder().vcpus(2);
    let builder = builder.on_vcpu_start(|| std::panic::panic_any(PanicsOnDrop));
    let runtime = builder
        .on_vcpu_stop(|| std::panic::panic_any(PanicsOnDrop))
        .build()
        .unwrap();
    runtime.block_on(assert_runtime_works());
}

/// Message of the panics in child processes.
const MESSAGE: &str = "the message of a panic";

fn panic_in(kind: &str) {
    let runtime = Runtime::builder().vcpus(1);
    let runtime = match kind {
        "hook" => {
            let is_first = AtomicBool::new(true);
            runtime.on_vcpu_start(move || {
                assert!(!is_first.swap(false, Ordering::Relaxed), "{MESSAGE}");
            })
        }
        _ => runtime,
    };
    runtime.build().unwrap().block_on(async {
        struct MessageOnDrop;
        impl Drop for MessageOnDrop {
            fn drop(&mut self) {
                panic!("{MESSAGE}");
            }
        }
        match kind {
            "detached" => spawn(async { panic!("{MESSAGE}") }, Level::default()).detach(),
            "output" => spawn(async { MessageOnDrop }, Level::default()).detach(),
            "blocking" => drop(spawn_blocking(|| panic!("{MESSAGE}"))),
            "result" => drop(spawn_blocking(|| MessageOnDrop)),
            _ => {}
        }
        time::sleep(Duration::from_millis(100)).await;
    });
}

/// Entry point of the child processes, not a test. An environment variable selects the kind of
/// panic.
#[test]
fn role_of_a_child_process() {
    if let Ok(kind) = std::env::var("UPSHIFT_TEST_PANIC") {
        panic_in(&kind);
    }
}

#[test]
fn every_panic_is_reported_once_on_standard_error() {
    for kind in ["detached", "output", "blocking", "result", "hook"] {
        let output = child("role_of_a_child_process")
            .env("UPSHIFT_TEST_PANIC", kind)
            .output()
            .unwrap();
        assert!(output.status.success(), "{kind}: {}", output.status);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(stderr.matches(MESSAGE).count(), 1, "{kind}: {stderr}");
    }
}
