//! Tests across harts that no hart sleeps while work waits behind a computing program, and that a
//! program yields to more urgent work on any hart.
//!
//! The tests assert times, so they need a machine whose clock counts instructions, with the number
//! of harts in the argument (the machine `icount smp 4` of `os-runner test`). The emulator runs the
//! harts of this machine in turn, for at most 10 microseconds each, far less than `max_delay`; a
//! quantum is 5 milliseconds.

#![no_std]
#![no_main]

extern crate alloc;

use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use os_user::asynchronous::{has_completions, interrupts, sleep_until};
use os_user::coroutine::current;
use os_user::testing::{Outcome, message, run_all};
use os_user::{Pipe, ensure, now, pipe, read, sleep_micros, spawn, sys, tests, wait, write};

os_user::coroutine_entry!(main);

tests! {
    read_is_served_beside_a_computing_writer,
    sleeper_wakes_beside_a_computing_program,
    asynchronous_call_begins_while_its_caller_computes,
    several_wait_behind_computing_programs,
    least_urgent_program_gives_way_to_work_of_another_hart,
}

/// Number of ticks in a microsecond.
const TICKS_PER_MICRO: u64 = 10;
/// Number of harts of the machine.
static HARTS: AtomicU64 = AtomicU64::new(4);

/// Maximum delay of urgent work, in ticks: many turns of all harts, far less than a quantum.
fn max_delay() -> u64 {
    250 * TICKS_PER_MICRO * HARTS.load(Relaxed)
}

/// Time for which a program computes, in microseconds. Meanwhile other programs must not be
/// delayed.
const COMPUTE_MICROS: u64 = 12_000;

async fn main() -> isize {
    let argument = core::str::from_utf8(os_user::argument()).unwrap_or("");
    let (role, rest) = argument.split_once(' ').unwrap_or((argument, ""));
    let number = rest.parse().unwrap_or(0);
    let outcome = match role {
        "begin" => asynchronous_call_begins_while_its_caller_computes().await,
        "reader" => report_read(),
        "sleeper" => report_sleep(number),
        "hog" => {
            compute(number);
            Ok(())
        }
        "writer" => write_now_and_then(number),
        harts => {
            HARTS.store(harts.parse().unwrap_or(4), Relaxed);
            return run_all(TESTS).await;
        }
    };
    isize::from(outcome.is_err())
}

/// Computes for about `micros` microseconds, without a call to the kernel.
fn compute(micros: u64) {
    // Each iteration takes four instructions, at a nanosecond an instruction.
    for n in 0..250 * micros {
        core::hint::black_box(n);
    }
}

/// Reads time stamps, and reports how many ticks ago each was written.
fn report_read() -> Outcome {
    let mut stamp = [0; 8];
    while read(0, &mut stamp) == Ok(8) {
        let delay = now() - u64::from_le_bytes(stamp);
        write(1, &delay.to_le_bytes()).map_err(message)?;
    }
    Ok(())
}

/// Sleeps for `micros` microseconds, and reports the excess in ticks.
fn report_sleep(micros: u64) -> Outcome {
    let deadline = now() + micros * TICKS_PER_MICRO;
    sys::sleep_until(deadline as usize).map_err(message)?;
    let delay = now() - deadline;
    write(0, &delay.to_le_bytes()).map_err(message)?;
    Ok(())
}

/// Writes the time a few times, and computes in between.
fn write_now_and_then(times: u64) -> Outcome {
    for _ in 0..times {
        sleep_micros(1_000);
        // Compute first, so that the quanta of this hart do not begin at the same times as those of
        // the other harts.
        compute(1_700);
        write(0, &now().to_le_bytes()).map_err(message)?;
        compute(4_000);
    }
    Ok(())
}

/// Reads the number that a child has written to a pipe.
fn read_number(pipe: Pipe) -> Result<u64, String> {
    let mut number = [0; 8];
    ensure!(
        read(pipe.reader, &mut number) == Ok(8),
        "the child reported nothing"
    );
    Ok(u64::from_le_bytes(number))
}

fn close(pipes: &[Pipe]) -> Outcome {
    for pipe in pipes {
        sys::close(pipe.reader).map_err(message)?;
        sys::close(pipe.writer).map_err(message)?;
    }
    Ok(())
}

/// Starts a reader for each pair in `files` on the hart of the calling program, so that the
/// reader's calls wait there. A reader has level 40, reads from descriptor 0 and reports to
/// descriptor 1. The other harts sleep again afterwards. Returns the children, which include the
/// programs that kept the other harts busy (`hog`).
fn readers_on_this_hart(files: &[[usize; 2]]) -> Result<Vec<usize>, String> {
    let mut children = Vec::new();
    for _ in 1..HARTS.load(Relaxed) {
        children.push(spawn("harts", b"hog 4000", &[], 5).map_err(message)?);
    }
    for files in files {
        children.push(spawn("harts", b"reader", files, 40).map_err(message)?);
    }
    sleep_micros(2_000);
    // Compute without a call that could move this program to another hart.
    compute(5_000);
    Ok(children)
}

/// While other harts sleep, a program that writes to a pipe and keeps computing does not delay the
/// reader, whether the program is more or less urgent than the reader.
async fn read_is_served_beside_a_computing_writer() -> Outcome {
    for level in [10, 32, 39, 40, 41] {
        let (bytes, answers) = (pipe().map_err(message)?, pipe().map_err(message)?);
        let children = readers_on_this_hart(&[[bytes.reader, answers.writer]])?;
        sys::set_level(level).map_err(message)?;
        write(bytes.writer, &now().to_le_bytes()).map_err(message)?;
        compute(COMPUTE_MICROS);
        sys::set_level(32).map_err(message)?;
        let delay = read_number(answers)?;
        sys::close(bytes.writer).map_err(message)?;
        for child in children {
            wait(child).map_err(message)?;
        }
        sys::close(bytes.reader).map_err(message)?;
        close(&[answers])?;
        ensure!(delay < max_delay(), "level {level}: {delay} ticks late");
    }
    Ok(())
}

/// A sleep that began on the hart of a computing program ends in time.
async fn sleeper_wakes_beside_a_computing_program() -> Outcome {
    for round in 0..4 {
        let answers = pipe().map_err(message)?;
        let sleeper = spawn("harts", b"sleeper 3000", &[answers.writer], 40).map_err(message)?;
        sleep_micros(1_000);
        compute(COMPUTE_MICROS);
        let delay = read_number(answers)?;
        wait(sleeper).map_err(message)?;
        close(&[answers])?;
        ensure!(delay < max_delay(), "round {round}: {delay} ticks late");
    }
    Ok(())
}

/// The asynchronous call of a program that keeps computing begins on another hart, so it completes
/// in time.
async fn asynchronous_call_begins_while_its_caller_computes() -> Outcome {
    for round in 0..4 {
        let deadline = now() + 2_000 * TICKS_PER_MICRO;
        let before = interrupts();
        let call = sleep_until(deadline, current());
        // The completion interrupts this loop.
        let mut polls = 50_000;
        while interrupts() == before && !has_completions() && polls > 0 {
            compute(1);
            polls -= 1;
        }
        let delay = now() - deadline;
        let _ = call.await;
        ensure!(delay < max_delay(), "round {round}: {delay} ticks late");
    }
    Ok(())
}

/// Two readers and a program that computes for a long time become ready at once. The hart that is
/// woken for one reader must wake further harts, so that neither reader is delayed.
async fn several_wait_behind_computing_programs() -> Outcome {
    let (bytes, answers) = (pipe().map_err(message)?, pipe().map_err(message)?);
    let (more_bytes, more_answers) = (pipe().map_err(message)?, pipe().map_err(message)?);
    let files = [
        [bytes.reader, answers.writer],
        [more_bytes.reader, more_answers.writer],
    ];
    let mut children = readers_on_this_hart(&files)?;
    write(bytes.writer, &now().to_le_bytes()).map_err(message)?;
    write(more_bytes.writer, &now().to_le_bytes()).map_err(message)?;
    // This program is as urgent as the readers, and ready at the same time.
    children.push(spawn("harts", b"hog 12000", &[], 40).map_err(message)?);
    compute(COMPUTE_MICROS);
    let delays = [read_number(answers)?, read_number(more_answers)?];
    sys::close(bytes.writer).map_err(message)?;
    sys::close(more_bytes.writer).map_err(message)?;
    for child in children {
        wait(child).map_err(message)?;
    }
    sys::close(bytes.reader).map_err(message)?;
    sys::close(more_bytes.reader).map_err(message)?;
    close(&[answers, more_answers])?;
    ensure!(
        delays.iter().all(|delay| *delay < max_delay()),
        "{delays:?} ticks late"
    );
    Ok(())
}

/// Programs of level 5 occupy all harts but two. One of the two runs a program of level 50, the
/// other a writer of level 10. The reader, of level 20, must take the hart of the program of level
/// 50 without delay.
async fn least_urgent_program_gives_way_to_work_of_another_hart() -> Outcome {
    let (bytes, answers) = (pipe().map_err(message)?, pipe().map_err(message)?);
    let reader = spawn("harts", b"reader", &[bytes.reader, answers.writer], 20).map_err(message)?;
    let mut others = Vec::new();
    for _ in 2..HARTS.load(Relaxed) {
        others.push(spawn("harts", b"hog 80000", &[], 5).map_err(message)?);
    }
    others.push(spawn("harts", b"hog 60000", &[], 50).map_err(message)?);
    others.push(spawn("harts", b"writer 8", &[bytes.writer], 10).map_err(message)?);
    for child in others {
        wait(child).map_err(message)?;
    }
    let mut delays = [0; 8];
    for delay in &mut delays {
        *delay = read_number(answers)?;
    }
    sys::close(bytes.writer).map_err(message)?;
    wait(reader).map_err(message)?;
    sys::close(bytes.reader).map_err(message)?;
    close(&[answers])?;
    ensure!(
        delays.iter().all(|delay| *delay < max_delay()),
        "{delays:?} ticks late"
    );
    Ok(())
}
