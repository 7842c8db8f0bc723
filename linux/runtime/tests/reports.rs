//! Reports on standard error, which a runtime makes by default: stalls, starved levels, panics of
//! detached coroutines.

#[path = "support/child.rs"]
mod child;

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use child::child;
use upshift::{Builder, Level, Preemption, Priority, Runtime, named, spawn};

const VARIABLE: &str = "UPSHIFT_TEST_REPORT";

fn builder() -> Builder {
    Runtime::builder().vcpus(1).preemption(Preemption::Off)
}

/// Returns when the parent closes its end of standard input.
fn wait_for_the_parent() {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

fn stall() {
    builder().build().unwrap().block_on(async {
        let blocks = named("GET /report", async { wait_for_the_parent() });
        spawn(blocks, Level::at::<7>()).await.unwrap();
    });
}

fn starve() {
    let is_over = Arc::new(AtomicBool::new(false));
    let seen = is_over.clone();
    std::thread::spawn(move || {
        wait_for_the_parent();
        seen.store(true, Ordering::SeqCst);
    });
    builder().build().unwrap().block_on(async {
        let waits = spawn(async {}, Level::at::<40>());
        let busy = async move {
            while !is_over.load(Ordering::SeqCst) {
                upshift::yield_now().await;
            }
        };
        spawn(busy, Level::at::<3>()).await.unwrap();
        waits.await.unwrap();
    });
}

fn panic(builder: Builder) {
    builder.build().unwrap().block_on(async {
        let panics = named("job", async { panic!("expected") });
        spawn(panics, Level::at::<9>()).detach();
        // Awaited: its handle has the panic.
        let awaited = spawn(async { panic!("expected") }, Priority::Inherit);
        assert!(awaited.await.is_err());
        for _ in 0..10 {
            upshift::yield_now().await;
        }
    });
    wait_for_the_parent();
}

/// The child's part of the tests below: a no-op unless it is told which one.
#[test]
fn does_as_it_is_told() {
    match std::env::var(VARIABLE).as_deref() {
        Ok("stall") => stall(),
        Ok("starve") => starve(),
        Ok("panic") => panic(builder()),
        Ok("silent panic") => panic(builder().warnings(false)),
        _ => {}
    }
}

/// Runs a child until a line of its standard error begins with `begin`, or, with `ends`, until it
/// ends, and returns all lines that begin so: a slow machine may cause others.
fn lines(kind: &str, begin: &str, ends: bool, variable: Option<&str>) -> Vec<String> {
    let mut command = child("does_as_it_is_told");
    command.env(VARIABLE, kind);
    if let Some(value) = variable {
        command.env("UPSHIFT_WARNINGS", value);
    }
    let spawned = command.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut process = spawned.spawn().unwrap();
    let mut stdin = process.stdin.take();
    if ends {
        stdin = None;
    }
    let mut lines = Vec::new();
    for line in BufReader::new(process.stderr.take().unwrap()).lines() {
        let line = line.unwrap();
        if line.starts_with(begin) {
            stdin = None;
        }
        lines.push(line);
    }
    drop(stdin);
    assert!(process.wait().unwrap().success(), "{lines:?}");
    lines.retain(|line| line.starts_with(begin));
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
    assert!(line.ends_with(" on vCPU 0 and goes on"), "{line}");
}

#[test]
fn a_starved_level_is_reported_in_one_line() {
    let lines = lines("starve", "upshift: starved: ", false, None);
    let [line] = &lines[..] else {
        panic!("{lines:?}");
    };
    assert!(
        line.starts_with("upshift: starved: level 40 has 1 ready on vCPU 0 and had no turn for "),
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
