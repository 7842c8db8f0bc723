//! Threads for blocking functions: how many there are, and the report when all are taken.

#[path = "support/child.rs"]
mod child;

use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;

use child::child;
use upshift::Runtime;

/// The child of a test, which prints on standard error.
const CHILD: &str = "UPSHIFT_TEST_BLOCKING_CHILD";
const WORDS: &str = "threads for blocking functions are taken";

/// tokio's limit, which programs rely on.
#[test]
fn five_hundred_functions_may_wait_for_each_other() {
    const MANY: usize = 512;
    let runtime = Runtime::builder().vcpus(1).build().unwrap();
    let (done, is_done) = mpsc::channel();
    runtime.block_on(async move {
        let barrier = Arc::new(Barrier::new(MANY));
        let mut all = upshift::task::JoinSet::new();
        for _ in 0..MANY {
            let barrier = barrier.clone();
            all.spawn_blocking(move || {
                barrier.wait();
            });
        }
        let ended = upshift::time::timeout(Duration::from_secs(60), all.join_all()).await;
        done.send(ended.is_ok()).unwrap();
        if ended.is_err() {
            // The threads would be waited for.
            std::process::exit(101);
        }
    });
    assert!(is_done.recv().unwrap());
}

/// Standard error of a test of this file, run in a process of its own.
fn said_by(test: &str) -> String {
    let output = child(test).env(CHILD, "1").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn the_first_function_that_waits_for_a_thread_is_reported_once() {
    if std::env::var_os(CHILD).is_none() {
        let said = said_by("the_first_function_that_waits_for_a_thread_is_reported_once");
        assert_eq!(said.matches(WORDS).count(), 1, "{said}");
        assert!(
            said.contains("all 3 threads") && said.contains("Builder::blocking_threads"),
            "{said}"
        );
        return;
    }
    let runtime = Runtime::builder()
        .vcpus(1)
        .blocking_threads(3)
        .build()
        .unwrap();
    runtime.block_on(async {
        for _ in 0..2 {
            let barrier = Arc::new(Barrier::new(3));
            let mut all = upshift::task::JoinSet::new();
            for n in 0..6 {
                let barrier = barrier.clone();
                all.spawn_blocking(move || {
                    if n < 3 {
                        barrier.wait();
                    }
                });
            }
            all.join_all().await;
        }
    });
}

#[test]
fn nothing_is_reported_while_there_are_threads() {
    if std::env::var_os(CHILD).is_none() {
        let said = said_by("nothing_is_reported_while_there_are_threads");
        assert!(!said.contains(WORDS), "{said}");
        return;
    }
    let runtime = Runtime::builder()
        .vcpus(1)
        .blocking_threads(3)
        .build()
        .unwrap();
    runtime.block_on(async {
        let barrier = Arc::new(Barrier::new(3));
        let mut all = upshift::task::JoinSet::new();
        for _ in 0..3 {
            let barrier = barrier.clone();
            all.spawn_blocking(move || {
                barrier.wait();
            });
        }
        all.join_all().await;
    });
}
