//! Tests of processes: their ends, and forbidden operations.

use alloc::format;
use alloc::vec::Vec;

use os_user::number::{FAULTED, KILLED};
use os_user::testing::{begin, report};
use os_user::{Error, pipe, sleep_micros, spawn, sys, wait, write};

use crate::{LATER, Outcome, close, ensure, message, run};

pub(crate) fn exit_status_reaches_the_parent() -> Outcome {
    // A status that looks like an error code is not an error.
    for (argument, status) in [(0, 0), (7, 7), (255, 255), (-9, 247), (-4, 252), (512, 0)] {
        let seen = run(&format!("exit {argument}"), &[1, 1], LATER)?;
        ensure!(seen == status, "{argument} became {seen}");
    }
    Ok(())
}

pub(crate) fn faults_end_only_their_process() -> Outcome {
    for fault in [
        "null",
        "kernel",
        "text",
        "info",
        "global",
        "vdso",
        "data",
        "privileged",
        "stack",
    ] {
        let seen = run(&format!("fault {fault}"), &[1, 1], LATER)?;
        ensure!(seen == FAULTED, "{fault}: status {seen}");
    }
    Ok(())
}

pub(crate) fn endless_loop_can_be_killed() -> Outcome {
    let child = spawn("child", b"endless", &[], LATER).map_err(message)?;
    sleep_micros(20_000);
    sys::kill(child).map_err(message)?;
    ensure!(
        wait(child).map_err(message)? == KILLED,
        "the child was not killed"
    );
    ensure!(
        wait(child) == Err(Error::NoProcess),
        "the number of the child is still valid"
    );
    Ok(())
}

pub(crate) fn blocked_process_can_be_killed() -> Outcome {
    let pipe = pipe().map_err(message)?;
    let child = spawn("child", b"echo", &[pipe.reader, 1], 20).map_err(message)?;
    sleep_micros(5_000);
    sys::kill(child).map_err(message)?;
    ensure!(
        wait(child).map_err(message)? == KILLED,
        "the child was not killed"
    );
    close(pipe.reader)?;
    let result = write(pipe.writer, b"x");
    ensure!(
        result == Err(Error::BrokenPipe),
        "the descriptors of the child are still open: {result:?}"
    );
    close(pipe.writer)
}

pub(crate) fn kill_is_for_children_only() -> Outcome {
    for process in [0, os_user::process_number(), 12345, usize::MAX] {
        let result = sys::kill(process);
        ensure!(
            result == Err(Error::NoProcess),
            "kill {process}: {result:?}"
        );
        let result = sys::wait(process);
        ensure!(
            result == Err(Error::NoProcess),
            "wait {process}: {result:?}"
        );
    }
    Ok(())
}

pub(crate) fn orphans_leave_nothing_behind() -> Outcome {
    ensure!(
        run("orphan", &[1, 1], LATER)? == 0,
        "the child could not start a child"
    );
    sleep_micros(30_000);
    Ok(())
}

pub(crate) fn memory_is_limited() -> Outcome {
    ensure!(run("hog", &[1, 1], LATER)? == 0, "the hog has failed");
    Ok(())
}

pub(crate) fn processes_are_limited() -> Outcome {
    let mut children = Vec::new();
    let error = loop {
        match spawn("child", b"endless", &[], 60) {
            Ok(child) => children.push(child),
            Err(error) => break error,
        }
    };
    let count = children.len();
    for child in children {
        sys::kill(child).map_err(message)?;
        ensure!(
            wait(child).map_err(message)? == KILLED,
            "the child was not killed"
        );
    }
    ensure!(
        error == Error::TooMany && count > 30,
        "{count} processes, then {error:?}"
    );
    Ok(())
}

pub(crate) fn coroutine_tests_pass() -> Outcome {
    let child =
        os_user::spawn_below("coroutines", os_user::argument(), &[1, 1], 32, 0).map_err(message)?;
    let failed = wait(child).map_err(message)?;
    ensure!(failed == 0, "{failed} failed");
    Ok(())
}

pub(crate) fn exit_with_calls_pending_leaves_nothing_behind() -> Outcome {
    let child = spawn("coroutines", b"pending", &[1, 1], LATER).map_err(message)?;
    ensure!(wait(child).map_err(message)? == 0, "the child failed");
    Ok(())
}

pub(crate) fn thread_tests_pass() -> Outcome {
    let child = os_user::spawn_below("threads", os_user::argument(), &[1, 1], 32, 0);
    let failed = wait(child.map_err(message)?).map_err(message)?;
    ensure!(failed == 0, "{failed} failed");
    Ok(())
}

pub(crate) fn vcpu_tests_pass() -> Outcome {
    let child = os_user::spawn_below("vcpus", os_user::argument(), &[1, 1], 32, 0);
    let failed = wait(child.map_err(message)?).map_err(message)?;
    ensure!(failed == 0, "{failed} failed");
    Ok(())
}

pub(crate) fn lending_tests_pass() -> Outcome {
    let child = os_user::spawn_below("lends", os_user::argument(), &[1, 1], 32, 0);
    let failed = wait(child.map_err(message)?).map_err(message)?;
    ensure!(failed == 0, "{failed} failed");
    Ok(())
}

pub(crate) fn socket_tests_pass() -> Outcome {
    let child = os_user::spawn_below("sockets", os_user::argument(), &[1, 1], 32, 0);
    let failed = wait(child.map_err(message)?).map_err(message)?;
    ensure!(failed == 0, "{failed} failed");
    Ok(())
}

pub(crate) fn fork_tests_pass() -> Outcome {
    let child = os_user::spawn_below("forks", os_user::argument(), &[1, 1, 1], 32, 0);
    let failed = wait(child.map_err(message)?).map_err(message)?;
    ensure!(failed == 0, "{failed} failed");
    Ok(())
}

pub(crate) fn failed_test_leaves_nothing_behind() -> Outcome {
    // The output of the child does not belong on the console.
    let output = pipe().map_err(message)?;
    let child = spawn("tests", b"failing", &[1, output.writer], LATER).map_err(message)?;
    let status = wait(child).map_err(message)?;
    close(output.writer)?;
    close(output.reader)?;
    ensure!(status == 0, "status {status}");
    Ok(())
}

/// Runs a failing test, then checks that its child and its descriptors are gone. Returns 0 if they
/// are.
pub(crate) fn failing_tests() -> isize {
    begin();
    let first = pipe();
    let child = spawn("child", b"endless", &[], 60);
    if report("of_failure", Err("the test fails on purpose".into())) {
        return 1;
    }
    let (Ok(first), Ok(child), Ok(second)) = (first, child, pipe()) else {
        return 2;
    };
    let is_gone = sys::kill(child) == Err(Error::NoProcess);
    isize::from(!is_gone || first.reader != second.reader) * 3
}

pub(crate) fn share_tests_pass() -> Outcome {
    let child = os_user::spawn_below("shares", b"", &[1, 1], 32, 0);
    let failed = wait(child.map_err(message)?).map_err(message)?;
    ensure!(failed == 0, "{failed} failed");
    Ok(())
}

pub(crate) fn hostile_programs_harm_no_other_process() -> Outcome {
    let child = os_user::spawn_below("hostile", os_user::argument(), &[1, 1], 32, 0);
    let failed = wait(child.map_err(message)?).map_err(message)?;
    ensure!(failed == 0, "{failed} failed");
    Ok(())
}

pub(crate) fn last_thread_ends_the_process() -> Outcome {
    let child = spawn("threads", b"last", &[1, 1], LATER).map_err(message)?;
    let status = wait(child).map_err(message)?;
    ensure!(status == 17, "status {status}");
    Ok(())
}

pub(crate) fn stack_overflow_in_a_thread_ends_the_process() -> Outcome {
    let child = spawn("threads", b"deep", &[1, 1], LATER).map_err(message)?;
    let status = wait(child).map_err(message)?;
    ensure!(status == FAULTED, "status {status}");
    Ok(())
}

/// The kill arrives while threads run, wait in calls, wait for each other, or park. It must end the
/// process in each case.
pub(crate) fn process_with_many_threads_can_be_killed() -> Outcome {
    for micros in [500, 2_000, 5_000, 9_000, 20_000] {
        let child = spawn("threads", b"kill", &[1, 1], LATER).map_err(message)?;
        sleep_micros(micros);
        sys::kill(child).map_err(message)?;
        let status = wait(child).map_err(message)?;
        ensure!(status == KILLED, "after {micros} µs: status {status}");
    }
    Ok(())
}
