//! Tests of the reports that a runtime prints on standard error by default: stalls, starved levels,
//! panics of detached coroutines.

#[path = "support/child.rs"]
mod child;

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use child::child;
use upshift::{Builder, Level, Preemption, Priority, Runtime, named, spawn};

/// Environment variable with the role of a child process.
const CHILD_ROLE: &str = "UPSHIFT_TEST_REPORT";

fn builder() -> Builder {
    Runtime::builder().vcpus(1).preemption(Preemption::Off)
}

/// Waits until the parent closes its end of standard input.
fn wait_for_the_parent() {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// Role of a child that runs a poll that blocks.
fn stall() {
    builder().build().unwrap().block_on(async {
        let blocks = named("GET /report", async { wait_for_the_parent() });
        spawn(blocks, Level::at::<7>()).await.unwrap();
    });
}

/// Role of a child that starves level 40.
fn starve() {
    let stop = Arc::new(AtomicBool::new(false));
    let stop_setter = stop.clone();
    std::thread::spawn(move || {
        wait_for_the_parent();
        stop_setter.store(true, Ordering::SeqCst);
    });
    builder().build().unwrap().block_on(async {
        let waiter = spawn(async {}, Level::at::<40>());
        let busy = async move {
            while !stop.load(Ordering::SeqCst) {
                upshift::yield_now().await;
            }
        };
        spawn(busy, Level::at::<3>()).await.unwrap();
        waiter.await.unwrap();
    });
}

/// Role of a child that runs a detached coroutine that panics.
fn panic(builder: Builder) {
    builder.build().unwrap().block_on(async {
        let panics = named("job", async { panic!("expected") });
        spawn(panics, Level::at::<9>()).detach();
        // This panic is not reported, because its join returns it.
        let awaited = spawn(async { panic!("expected") }, Priority::Inherit);
        assert!(awaited.await.is_err());
        for _ in 0..10 {
            upshift::yield_now().await;
        }
    });
    wait_for_the_parent();
}

/// Entry point of child processes, not a test. [`CHILD_ROLE`] selects the role.
#[test]
fn role_of_a_child_process() {
    match std::env::var(CHILD_ROLE).as_deref() {
        Ok("stall") => stall(),
        Ok("starve") => starve(),
        Ok("panic") => panic(builder()),
        Ok("silent panic") => panic(builder().warnings(false)),
        _ => {}
    }
}

/// Runs a child until a line of its standard error begins with `prefix` or, with `until_exit`,
/// until the child exits. Returns all lines with that prefix, because on a slow machine there may
/// be other reports.
fn lines(kind: &str, prefix: &str, until_exit: bool, warnings: Option<&str>) -> Vec<String> {
    let mut command = child("role_of_a_child_process");
    command.env(CHILD_ROLE, kind);
    if let Some(value) = warnings {
        command.env("UPSHIFT_WARNINGS", value);
    }
    let spawned = command.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut process = spawned.spawn().unwrap();
    let mut stdin = process.stdin.take();
    if until_exit {
        stdin = None;
    }
    let mut lines = Vec::new();
    for line in BufReader::new(process.stderr.take().unwrap()).lines() {
        let line = line.unwrap();
        if line.starts_with(prefix) {
            stdin = None;
        }
        lines.push(line);
    }
    drop(stdin);
    assert!(process.wait().unwrap().success(), "{lines:?}");
    lines.retain(|line| line.starts_with(prefix));
    lines
}

#[test]
fn a_stall_is_reported_in_one_line() {
    let lines = lines("stall", "upshift: stall: ", false, None);
    let [line] = &lines[..] else {
        panic!("{lines:?}");
    };
    assert!(
        line.starts_with("upshift: stall: GET /report (level 7, coroutine "),
        "{line}"
    );
    assert!(line.contains("tests/reports.rs:"), "{line}");
    assert!(line.ends_with(" on vCPU 0 and is still running"), "{line}");
}

#[test]
fn a_starved_level_is_reported_in_one_line() {
    let lines = lines("starve", "upshift: starved: ", false, None);
    let [line] = &lines[..] else {
        panic!("{lines:?}");
    };
    assert!(
        line.starts_with(
            "upshift: starved: level 40 has 1 ready on vCPU 0 and was not polled for "
        ),
        "{line}"
    );
}

#[test]
fn a_panic_of_a_detached_coroutine_is_reported_in_one_line() {
    let lines = lines("panic", "upshift: panic: ", true, None);
    let [line] = &lines[..] else {
        panic!("{lines:?}");
    };
    assert!(
        line.starts_with("upshift: panic: job (level 9, coroutine "),
        "{line}"
    );
    assert!(line.contains("tests/reports.rs:"), "{line}");
}

#[test]
fn nothing_is_reported_if_warnings_are_off() {
    assert!(lines("silent panic", "upshift: panic", true, None).is_empty());
    assert!(lines("panic", "upshift: panic", true, Some("0")).is_empty());
}
