//! Malicious and faulty programs: the kernel ends each program or returns an error, and no other
//! program is affected. `child` does the parts that need `unsafe`. With the argument
//! `seeds-FIRST-COUNT`, only `fuzz` runs, with these seeds.

#![no_std]
#![no_main]

extern crate alloc;

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::{AtomicBool, AtomicUsize};

use os_user::asynchronous::sleep_until;
use os_user::coroutine::current;
use os_user::number::{FAULTED, KILLED};
use os_user::testing::{Outcome, message, report, run_all};
use os_user::{
    Bounds, Error, Fork, exec, exit, fork, layout, lock, now, pipe, read, sleep, sleep_micros,
    spawn, spawn_within, sys, thread, ticks_per_second, wait, write,
};
use os_user::{ensure, tests};

os_user::coroutine_entry!(main);

tests! {
    malformed_programs_are_errors,
    threads_with_a_wrong_entry_end_their_process,
    a_wrong_handler_address_ends_the_process,
    forged_words_of_the_ring_harm_only_their_process,
    endless_critical_section_does_not_keep_the_hart,
    closing_a_descriptor_does_not_end_its_read,
    endless_sleeps_can_be_cancelled,
    thread_result_that_equals_an_error_code_is_not_an_error,
    second_waiter_leaves_a_reserved_slot,
    kill_does_not_wait_for_less_urgent_work,
    arbitrary_calls_harm_no_other_process,
}

/// Level of children that are less urgent than the tests.
const LATER: u8 = 40;

async fn main() -> isize {
    if os_user::argument().starts_with(b"seeds") {
        let outcome = arbitrary_calls_harm_no_other_process().await;
        isize::from(!report("arbitrary_calls_harm_no_other_process", outcome))
    } else {
        run_all(TESTS).await
    }
}

/// The archive has copies of a program with defects (the runner's `elf_patch`). Neither `spawn` nor
/// `exec` accepts such a copy, and the kernel frees the parts that it has loaded.
async fn malformed_programs_are_errors() -> Outcome {
    for (name, expected) in [
        ("wrong-empty", Error::BadProgram),
        ("wrong-truncated", Error::BadProgram),
        ("wrong-header", Error::BadProgram),
        ("wrong-unaligned", Error::BadProgram),
        ("wrong-overlap", Error::BadProgram),
        ("wrong-writable", Error::BadProgram),
        ("wrong-place", Error::BadProgram),
        ("wrong-wrap", Error::BadProgram),
        ("wrong-huge", Error::OutOfMemory),
        ("vdso", Error::BadProgram),
    ] {
        let result = spawn(name, b"exit 0", &[], LATER);
        ensure!(result == Err(expected), "spawn {name}: {result:?}");
        let error = exec(name, b"exit 0");
        ensure!(error == expected, "exec {name}: {error:?}");
    }
    // The kernel loads this program, whose entry is an address of the kernel.
    let status = run("wrong-entry", "exit 0", LATER)?;
    ensure!(status == FAULTED, "wrong-entry: status {status}");
    Ok(())
}

async fn threads_with_a_wrong_entry_end_their_process() -> Outcome {
    for case in ["entry", "kernel", "stack", "upper"] {
        let status = run("child", &format!("thread {case}"), LATER)?;
        ensure!(status == FAULTED, "{case}: status {status}");
    }
    Ok(())
}

async fn a_wrong_handler_address_ends_the_process() -> Outcome {
    for handler in ["8", "18446743798833774592", "18446744073709551615"] {
        let status = run("child", &format!("handler {handler}"), LATER)?;
        ensure!(status == FAULTED, "handler {handler}: status {status}");
    }
    Ok(())
}

/// A program overwrites the head of its ring, the number of completions that it has consumed. Other
/// processes are not affected, the number of calls in flight stays limited, and the program can be
/// killed.
async fn forged_words_of_the_ring_harm_only_their_process() -> Outcome {
    for head in [
        "0",
        "1",
        "4080",
        "9223372036854775808",
        "18446744073709551615",
    ] {
        let status = run("child", &format!("ring {head}"), LATER)?;
        ensure!(status == 0, "head {head}: status {status}");
    }
    Ok(())
}

/// Programs claim endless critical sections, at their own level and at all levels. Other programs
/// must get the hart nevertheless.
async fn endless_critical_section_does_not_keep_the_hart() -> Outcome {
    let mut children = Vec::new();
    for _ in 0..8 {
        children.push(spawn("child", b"critical", &[], LATER).map_err(message)?);
    }
    // A program of the same level, and a more urgent program.
    for level in [LATER, LATER - 1] {
        let status = run("child", "exit 3", level)?;
        ensure!(status == 3, "level {level}: status {status}");
    }
    for child in children {
        sys::kill(child).map_err(message)?;
        let status = wait(child).map_err(message)?;
        ensure!(status == KILLED, "status {status}");
    }
    Ok(())
}

async fn closing_a_descriptor_does_not_end_its_read() -> Outcome {
    let pipe = pipe().map_err(message)?;
    let reading = read!(pipe.reader, vec![0; 8], current());
    sys::close(pipe.reader).map_err(message)?;
    let second = read!(pipe.reader, &mut [0; 8]);
    ensure!(second == Err(Error::BadFile), "{second:?}");
    write!(pipe.writer, b"come").map_err(message)?;
    let (result, bytes) = reading.await;
    ensure!(result == Ok(4) && bytes.starts_with(b"come"), "{result:?}");
    // The read held the last reference to the pipe's reader.
    let result = write!(pipe.writer, b"more");
    ensure!(result == Err(Error::BrokenPipe), "{result:?}");
    sys::close(pipe.writer).map(|_| ()).map_err(message)
}

async fn endless_sleeps_can_be_cancelled() -> Outcome {
    for deadline in [u64::MAX, u64::MAX - 1, 1 << 63] {
        let call = sleep_until(deadline, current());
        sleep(1_000).await;
        call.cancel();
        let result = call.await;
        ensure!(result == Err(Error::Cancelled), "{deadline}: {result:?}");
    }
    Ok(())
}

/// `thread_join` must return the result of the thread as a value.
async fn thread_result_that_equals_an_error_code_is_not_an_error() -> Outcome {
    extern "C" fn end() -> ! {
        loop {
            let _ = sys::thread_exit(Error::NoThread.code() as usize);
        }
    }
    let stack = sys::map_stack(4).map_err(message)? as usize;
    let top = stack + 4 * layout::PAGE;
    let thread = sys::thread_create(end as *const () as usize, top, 0).map_err(message)?;
    let result = sys::thread_join(thread as usize);
    ensure!(result.is_ok(), "{result:?}");
    Ok(())
}

/// Two threads wait for the same child. When the wait of the first thread has returned, this thread
/// forks, which reserves the child's slot for the new process. The second waiter must not free the
/// slot again, because a process that the third thread then starts would get the same slot.
async fn second_waiter_leaves_a_reserved_slot() -> Outcome {
    static FORKS: AtomicBool = AtomicBool::new(false);
    static STARTED: AtomicUsize = AtomicUsize::new(0);
    let child = spawn("child", b"sleep 10000", &[], LATER).map_err(message)?;
    let second = thread::spawn(move || {
        let _ = sys::set_level(50);
        wait(child)
    });
    // `fork` waits until this thread leaves its critical section.
    let critical = thread::spawn(|| {
        let _ = sys::set_level(60);
        lock::enter();
        while !FORKS.load(SeqCst) {
            core::hint::spin_loop();
        }
        let end = now() + ticks_per_second() / 50;
        while now() < end {
            core::hint::spin_loop();
        }
        let started = spawn("child", b"exit 5", &[], 61);
        STARTED.store(started.unwrap_or(0), SeqCst);
        lock::leave();
    });
    sleep_micros(2_000);
    // A waiter that is too late finds no such child.
    let is_expected = |status| matches!(status, Ok(0) | Err(Error::NoProcess));
    let first = wait(child);
    FORKS.store(true, SeqCst);
    match fork() {
        Ok(Fork::Child) => exit(7),
        Ok(Fork::Parent(forked)) => {
            let status = wait(forked);
            ensure!(status == Ok(7), "the forked child: {status:?}");
        }
        // The host was busy, so `fork` gave up waiting for the critical section.
        Err(Error::Busy) => {}
        Err(error) => return Err(message(error)),
    }
    critical.map_err(message)?.join().map_err(message)?;
    let second = second.map_err(message)?.join().map_err(message)?;
    ensure!(
        is_expected(first) && is_expected(second),
        "{first:?}, {second:?}"
    );
    let status = wait(STARTED.load(SeqCst));
    ensure!(status == Ok(5), "the started child: {status:?}");
    Ok(())
}

/// The calls of a killed process end at the level of the caller of `kill`, because work at the
/// process's own level might never run.
async fn kill_does_not_wait_for_less_urgent_work() -> Outcome {
    static IS_KILLED: AtomicBool = AtomicBool::new(false);
    let pipe = pipe().map_err(message)?;
    let waiter = spawn("child", b"echo", &[pipe.reader, pipe.writer], 60).map_err(message)?;
    sleep_micros(5_000);
    // Endless programs, as many as the maximum number of harts.
    let mut hogs = Vec::new();
    for _ in 0..8 {
        hogs.push(spawn("child", b"endless", &[], 50).map_err(message)?);
    }
    // Wait until each hart runs one of them.
    sleep_micros(5_000);
    let watched = hogs.clone();
    let watch = thread::spawn(move || {
        let limit = now() + 20 * ticks_per_second();
        while !IS_KILLED.load(SeqCst) && now() < limit {
            sleep_micros(2_000);
        }
        let in_time = IS_KILLED.load(SeqCst);
        for hog in watched {
            let _ = sys::kill(hog);
        }
        in_time
    });
    sys::kill(waiter).map_err(message)?;
    let status = wait(waiter).map_err(message)?;
    IS_KILLED.store(true, SeqCst);
    let in_time = watch.map_err(message)?.join().map_err(message)?;
    for hog in hogs {
        let status = wait(hog).map_err(message)?;
        ensure!(status == KILLED, "status {status}");
    }
    for file in [pipe.reader, pipe.writer] {
        sys::close(file).map_err(message)?;
    }
    ensure!(
        in_time && status == KILLED,
        "the kill waited: status {status}"
    );
    Ok(())
}

/// Three fuzzers of different levels run at a time, until they end or are killed. Each has an
/// eighth of this process's share of the machine. After this process has waited for all fuzzers, it
/// can use its whole share again.
async fn arbitrary_calls_harm_no_other_process() -> Outcome {
    for seed in seeds() {
        let mut fuzzers = Vec::new();
        for level in [20, 33, 45] {
            let argument = format!("{}", seed * 1_000_003 + u64::from(level));
            let bounds = Bounds {
                level,
                ceiling: 20,
                halvings: 3,
            };
            let fuzzer = spawn_within("fuzz", argument.as_bytes(), &[], bounds);
            fuzzers.push(fuzzer.map_err(|error| format!("seed {seed}: {error}"))?);
        }
        sleep_micros(5_000);
        let status = run("child", "exit 3", 19)?;
        ensure!(
            status == 3,
            "seed {seed}: an uninvolved program: status {status}"
        );
        sleep_micros(5_000);
        for fuzzer in fuzzers {
            let killed = sys::kill(fuzzer);
            ensure!(killed.is_ok(), "seed {seed}: kill {fuzzer}: {killed:?}");
            let status = wait(fuzzer);
            ensure!(status.is_ok(), "seed {seed}: wait {fuzzer}: {status:?}");
        }
    }
    Ok(())
}

/// Returns the seeds of the argument, such as `seeds-7-200` for 200 seeds from 7, or else three
/// seeds.
fn seeds() -> Range<u64> {
    let argument = core::str::from_utf8(os_user::argument()).unwrap_or("");
    let mut words = argument.split('-');
    match words.next() {
        Some("seeds") => {
            let mut number = || words.next().and_then(|word| word.parse().ok()).unwrap_or(1);
            let (first, count): (u64, u64) = (number(), number());
            first..first + count
        }
        _ => 1..4,
    }
}

/// Runs a program to its end.
fn run(program: &str, argument: &str, level: u8) -> Result<isize, String> {
    let child = spawn(program, argument.as_bytes(), &[1, 1], level).map_err(message)?;
    wait(child).map_err(message)
}
