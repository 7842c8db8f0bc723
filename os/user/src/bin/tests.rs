//! The tests of the kernel by what programs see of it.
//!
//! Each returns what went wrong. After each, all memory it used has to be free
//! again.

#![no_std]
#![no_main]

extern crate alloc;

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use os_user::number::{FAULTED, KILLED};
use os_user::{Error, now, pipe, println, read, sleep_micros, spawn, sys, wait, write};

os_user::entry!(main);

type Outcome = Result<(), String>;

/// The level of children that are to be less urgent than the tests.
const LATER: u8 = 40;

macro_rules! ensure {
    ($condition:expr, $($arg:tt)+) => {
        if !$condition {
            return Err(format!($($arg)+));
        }
    };
}

macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        const TESTS: &[(&str, fn() -> Outcome)] = &[$((stringify!($name), $name)),*];
    };
}

tests! {
    exit_status_reaches_the_parent,
    pipe_carries_bytes,
    pipe_ends_with_its_last_writer,
    pipe_breaks_with_its_last_reader,
    ring_of_processes_passes_a_token,
    sleep_is_never_short,
    bad_pointers_are_errors,
    bad_calls_are_errors,
    forged_levels_are_errors,
    faults_end_only_their_process,
    endless_loop_can_be_killed,
    blocked_process_can_be_killed,
    kill_is_for_children_only,
    more_urgent_process_runs_first,
    equal_levels_share,
    floating_point_survives_preemption,
    orphans_leave_nothing_behind,
    memory_is_limited,
    processes_are_limited,
    descriptors_are_limited,
}

fn main() -> isize {
    // So that the heap's tables are there.
    core::hint::black_box(Vec::<u8>::with_capacity(4096));
    let mut failed = 0;
    for (name, test) in TESTS {
        let before = free_pages();
        let mut outcome = test();
        if outcome.is_ok() {
            outcome = comes_back(before);
        }
        match outcome {
            Ok(()) => println!("test {name} ... ok"),
            Err(reason) => {
                failed += 1;
                println!("test {name} ... FAILED: {reason}");
            }
        }
    }
    println!("tests: {} passed, {failed} failed", TESTS.len() - failed);
    isize::from(failed != 0)
}

/// Free pages, counting those of our own heap.
fn free_pages() -> isize {
    sys::free_pages().unwrap_or(0) + os_user::heap_pages() as isize
}

/// The kernel may need a moment to drop what has ended.
fn comes_back(before: isize) -> Outcome {
    for _ in 0..100 {
        if free_pages() == before {
            return Ok(());
        }
        sleep_micros(10_000);
    }
    Err(format!(
        "{} pages are not free again",
        before - free_pages()
    ))
}

fn text(error: Error) -> String {
    format!("{error}")
}

/// Runs a child to its end.
fn run(argument: &str, files: &[usize], level: u8) -> Result<isize, String> {
    let child = spawn("child", argument.as_bytes(), files, level).map_err(text)?;
    wait(child).map_err(text)
}

fn close(file: usize) -> Outcome {
    sys::close(file).map(|_| ()).map_err(text)
}

fn exit_status_reaches_the_parent() -> Outcome {
    for status in [0, 7, 255] {
        let seen = run(&format!("exit {status}"), &[1, 1], LATER)?;
        ensure!(seen == status, "{status} became {seen}");
    }
    Ok(())
}

fn pipe_carries_bytes() -> Outcome {
    let (there, back) = (pipe().map_err(text)?, pipe().map_err(text)?);
    let files = [there.reader, back.writer];
    let child = spawn("child", b"echo", &files, 20).map_err(text)?;
    close(there.reader)?;
    close(back.writer)?;
    let mut seen = 0;
    for round in 0..50u8 {
        let sent = [round; 100];
        write(there.writer, &sent).map_err(text)?;
        let mut got = [0; 100];
        let mut count = 0;
        while count < got.len() {
            count += read(back.reader, &mut got[count..]).map_err(text)?;
        }
        ensure!(got == sent, "round {round} came back changed");
        seen += count;
    }
    close(there.writer)?;
    ensure!(wait(child).map_err(text)? == 0, "the child failed");
    close(back.reader)?;
    ensure!(seen == 5000, "{seen} bytes came back");
    Ok(())
}

fn pipe_ends_with_its_last_writer() -> Outcome {
    let pipe = pipe().map_err(text)?;
    write(pipe.writer, b"last").map_err(text)?;
    close(pipe.writer)?;
    let mut buffer = [0; 16];
    ensure!(
        read(pipe.reader, &mut buffer) == Ok(4),
        "what was written is read"
    );
    ensure!(
        read(pipe.reader, &mut buffer) == Ok(0),
        "then comes the end"
    );
    close(pipe.reader)
}

fn pipe_breaks_with_its_last_reader() -> Outcome {
    let pipe = pipe().map_err(text)?;
    close(pipe.reader)?;
    let result = write(pipe.writer, b"to nobody");
    ensure!(result == Err(Error::BrokenPipe), "{result:?}");
    close(pipe.writer)
}

fn ring_of_processes_passes_a_token() -> Outcome {
    const LINKS: usize = 8;
    const ROUNDS: u32 = 20;
    let first = pipe().map_err(text)?;
    let mut input = first.reader;
    let mut children = Vec::new();
    for _ in 0..LINKS {
        let next = pipe().map_err(text)?;
        children.push(spawn("child", b"echo", &[input, next.writer], LATER).map_err(text)?);
        close(input)?;
        close(next.writer)?;
        input = next.reader;
    }
    for round in 0..ROUNDS {
        write(first.writer, &round.to_le_bytes()).map_err(text)?;
        let mut token = [0; 4];
        ensure!(read(input, &mut token) == Ok(4), "the token is lost");
        ensure!(u32::from_le_bytes(token) == round, "it is another token");
    }
    close(first.writer)?;
    for child in children {
        ensure!(wait(child).map_err(text)? == 0, "a link failed");
    }
    close(input)
}

fn sleep_is_never_short() -> Outcome {
    for micros in [0, 50, 1_000, 20_000] {
        let start = now();
        sleep_micros(micros);
        let slept = now() - start;
        let asked = micros * os_user::ticks_per_second() / 1_000_000;
        ensure!(slept >= asked, "{slept} ticks instead of {asked}");
    }
    Ok(())
}

fn bad_pointers_are_errors() -> Outcome {
    let pipe = pipe().map_err(text)?;
    write(pipe.writer, b"some bytes").map_err(text)?;
    let text_address = main as *const () as usize;
    let kernel = 0xffff_ffc0_8020_0000;
    let info = os_user::argument().as_ptr() as usize;
    for (address, len) in [
        (0, 8),
        (kernel, 8),
        (usize::MAX - 3, 8),
        (text_address, usize::MAX),
        ((1 << 38) - 4, 8),
        (text_address, 8),
        (info, 8),
    ] {
        let result = sys::read(pipe.reader, address, len);
        ensure!(
            result == Err(Error::BadAddress),
            "read to {address:#x}: {result:?}"
        );
    }
    for (address, len) in [(0, 8), (kernel, 8), (usize::MAX - 3, 8), ((1 << 38) - 4, 8)] {
        let result = sys::write(pipe.writer, address, len);
        ensure!(
            result == Err(Error::BadAddress),
            "write from {address:#x}: {result:?}"
        );
        let result = sys::spawn(address);
        ensure!(
            result == Err(Error::BadAddress),
            "spawn from {address:#x}: {result:?}"
        );
    }
    let mut buffer = [0; 16];
    ensure!(
        read(pipe.reader, &mut buffer) == Ok(10),
        "nothing was taken by the failed reads"
    );
    close(pipe.reader)?;
    close(pipe.writer)
}

fn bad_calls_are_errors() -> Outcome {
    for number in [15, 999, usize::MAX] {
        let result = sys::raw(number, [0; 6]);
        ensure!(
            result == Err(Error::NoSuchCall),
            "call {number}: {result:?}"
        );
    }
    for file in [9, 16, usize::MAX] {
        ensure!(sys::close(file) == Err(Error::BadFile), "closed {file}");
        let mut buffer = [0; 4];
        ensure!(
            read(file, &mut buffer) == Err(Error::BadFile),
            "read from {file}"
        );
    }
    let result = spawn("nothing", b"", &[], LATER);
    ensure!(result == Err(Error::NoProgram), "{result:?}");
    let result = spawn("child", &[0; 257], &[], LATER);
    ensure!(result == Err(Error::BadArgument), "{result:?}");
    let result = spawn("child", b"exit 0", &[77], LATER);
    ensure!(result == Err(Error::BadFile), "{result:?}");
    for pages in [usize::MAX, 1 << 51, 1 << 30] {
        ensure!(
            sys::map(pages) == Err(Error::OutOfMemory),
            "mapped {pages} pages"
        );
    }
    Ok(())
}

fn forged_levels_are_errors() -> Outcome {
    for level in [64, 256, usize::MAX] {
        let result = sys::set_level(level);
        ensure!(
            result == Err(Error::BadArgument),
            "level {level}: {result:?}"
        );
    }
    // 63 is for idleness.
    ensure!(
        sys::set_level(63) == Err(Error::BadArgument),
        "took level 63"
    );
    ensure!(spawn("child", b"exit 0", &[], 63).is_err(), "gave level 63");
    let seen = run("urgent 10", &[1, 1], LATER)?;
    ensure!(seen == 0, "a child went above its ceiling");
    Ok(())
}

fn faults_end_only_their_process() -> Outcome {
    for what in [
        "null",
        "kernel",
        "text",
        "info",
        "data",
        "privileged",
        "stack",
    ] {
        let seen = run(&format!("fault {what}"), &[1, 1], LATER)?;
        ensure!(seen == FAULTED, "{what}: status {seen}");
    }
    Ok(())
}

fn endless_loop_can_be_killed() -> Outcome {
    let child = spawn("child", b"endless", &[], LATER).map_err(text)?;
    sleep_micros(20_000);
    sys::kill(child).map_err(text)?;
    ensure!(wait(child).map_err(text)? == KILLED, "it was killed");
    ensure!(wait(child) == Err(Error::NoProcess), "its number is dead");
    Ok(())
}

fn blocked_process_can_be_killed() -> Outcome {
    let pipe = pipe().map_err(text)?;
    let child = spawn("child", b"echo", &[pipe.reader, 1], 20).map_err(text)?;
    sleep_micros(5_000);
    sys::kill(child).map_err(text)?;
    ensure!(wait(child).map_err(text)? == KILLED, "it was killed");
    close(pipe.reader)?;
    let result = write(pipe.writer, b"x");
    ensure!(
        result == Err(Error::BrokenPipe),
        "its descriptors are closed: {result:?}"
    );
    close(pipe.writer)
}

fn kill_is_for_children_only() -> Outcome {
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

/// Children that note their number when they run, less urgent than this process,
/// so that none runs before all are there on one hart; on several harts each
/// ready one waits behind an endless loop per hart that is more urgent.
fn more_urgent_process_runs_first() -> Outcome {
    let pipe = pipe().map_err(text)?;
    let mut hogs = Vec::new();
    for _ in 0..8 {
        hogs.push(spawn("child", b"endless", &[], 39).map_err(text)?);
    }
    // Until each hart has one.
    sleep_micros(5_000);
    let mut children = Vec::new();
    for (number, level) in [(0, 50), (1, 45), (2, 60), (3, 42)] {
        let argument = format!("note {number}");
        let files = [0, pipe.writer];
        children.push(spawn("child", argument.as_bytes(), &files, level).map_err(text)?);
    }
    // All but one hart stay occupied.
    for hog in &hogs {
        sys::kill(*hog).map_err(text)?;
    }
    let mut order = [0; 4];
    let mut count = 0;
    while count < order.len() {
        count += read(pipe.reader, &mut order[count..]).map_err(text)?;
    }
    for child in children.into_iter().chain(hogs) {
        wait(child).map_err(text)?;
    }
    close(pipe.reader)?;
    close(pipe.writer)?;
    let single = core::str::from_utf8(os_user::argument()) == Ok("single");
    ensure!(!single || &order == b"3102", "ran in the order {order:?}");
    Ok(())
}

fn equal_levels_share() -> Outcome {
    let mut pipes = Vec::new();
    let mut children = Vec::new();
    for _ in 0..3 {
        let pipe = pipe().map_err(text)?;
        children.push(spawn("child", b"count 200", &[0, pipe.writer], LATER).map_err(text)?);
        close(pipe.writer)?;
        pipes.push(pipe.reader);
    }
    let mut counts = Vec::new();
    for (child, reader) in children.into_iter().zip(pipes) {
        let mut count = [0; 8];
        ensure!(read(reader, &mut count) == Ok(8), "no count");
        counts.push(u64::from_le_bytes(count));
        wait(child).map_err(text)?;
        close(reader)?;
    }
    let least = counts.iter().min().copied().unwrap_or(0);
    let most = counts.iter().max().copied().unwrap_or(0);
    ensure!(least * 10 > most, "they came to {counts:?}");
    Ok(())
}

fn floating_point_survives_preemption() -> Outcome {
    let mut children = Vec::new();
    for seed in 1..6 {
        let argument = format!("float {seed}");
        children.push(spawn("child", argument.as_bytes(), &[1, 1], LATER).map_err(text)?);
    }
    for child in children {
        ensure!(wait(child).map_err(text)? == 0, "a sum is wrong");
    }
    Ok(())
}

fn orphans_leave_nothing_behind() -> Outcome {
    ensure!(run("orphan", &[1, 1], LATER)? == 0, "the child has a child");
    sleep_micros(30_000);
    Ok(())
}

fn memory_is_limited() -> Outcome {
    ensure!(
        run("hog", &[1, 1], LATER)? == 0,
        "the hog got all it wanted"
    );
    Ok(())
}

fn processes_are_limited() -> Outcome {
    let mut children = Vec::new();
    let error = loop {
        match spawn("child", b"endless", &[], 60) {
            Ok(child) => children.push(child),
            Err(error) => break error,
        }
    };
    let count = children.len();
    for child in children {
        sys::kill(child).map_err(text)?;
        ensure!(wait(child).map_err(text)? == KILLED, "killed");
    }
    ensure!(
        error == Error::TooMany && count > 30,
        "{count} processes, then {error:?}"
    );
    Ok(())
}

fn descriptors_are_limited() -> Outcome {
    let mut pipes = Vec::new();
    let error = loop {
        match pipe() {
            Ok(pipe) => pipes.push(pipe),
            Err(error) => break error,
        }
    };
    for pipe in pipes {
        close(pipe.reader)?;
        close(pipe.writer)?;
    }
    ensure!(error == Error::TooMany, "{error:?}");
    Ok(())
}
