//! Tests of the threads for blocking functions: their number, and the report when all are occupied.

#[path = "support/child.rs"]
mod child;

use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;

use child::child;
use upshift::Runtime;

/// Environment variable that is set in the child process of a test.
const CHILD: &str = "UPSHIFT_TEST_BLOCKING_CHILD";
/// Part of the report that all threads are occupied.
const REPORT: &str = "threads for blocking functions are taken";

/// tokio's limit is 512, on which programs rely.
#[test]
fn five_hundred_blocking_functions_may_wait_for_each_other() {
    const FUNCTIONS: usize = 512;
    let runtime = Runtime::builder().vcpus(1).build().unwrap();
    let (done_sender, done_receiver) = mpsc::channel();
    runtime.block_on(async move {
        let barrier = Arc::new(Barrier::new(FUNCTIONS));
        let mut functions = upshift::task::JoinSet::new();
        for _ in 0..FUNCTIONS {
            let barrier = barrier.clone();
            functions.spawn_blocking(move || {
                barrier.wait();
            });
        }
        let ended = upshift::time::timeout(Duration::from_secs(60), functions.join_all()).await;
        done_sender.send(ended.is_ok()).unwrap();
        if ended.is_err() {
            // Dropping the runtime would wait for the threads.
            std::process::exit(101);
        }
    });
    assert!(done_receiver.recv().unwrap());
}

/// Runs a test of this file in a child process. Returns its standard error.
fn stderr_of(test: &str) -> String {
    let output = child(test).env(CHILD, "1").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn the_first_function_that_waits_for_a_thread_is_reported_once() {
    if std::env::var_os(CHILD).is_none() {
        let stderr = stderr_of("the_first_function_that_waits_for_a_thread_is_reported_once");
        assert_eq!(stderr.matches(REPORT).count(), 1, "{stderr}");
        assert!(
            stderr.contains("all 3 threads") && stderr.contains("Builder::blocking_threads"),
            "{stderr}"
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
            let mut functions = upshift::task::JoinSet::new();
            for n in 0..6 {
                let barrier = barrier.clone();
                functions.spawn_blocking(move || {
                    if n < 3 {
                        barrier.wait();
                    }
                });
            }
            functions.join_all().await;
        }
    });
}

#[test]
fn nothing_is_reported_while_threads_are_free() {
    if std::env::var_os(CHILD).is_none() {
        let stderr = stderr_of("nothing_is_reported_while_threads_are_free");
        assert!(!stderr.contains(REPORT), "{stderr}");
        return;
    }
    let runtime = Runtime::builder()
        .vcpus(1)
        .blocking_threads(3)
        .build()
        .unwrap();
    runtime.block_on(async {
        let barrier = Arc::new(Barrier::new(3));
        let mut functions = upshift::task::JoinSet::new();
        for _ in 0..3 {
            let barrier = barrier.clone();
            functions.spawn_blocking(move || {
                barrier.wait();
            });
        }
        functions.join_all().await;
    });
}
