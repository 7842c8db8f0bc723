//! Tests of the kernel, as user programs see it.
//!
//! A test returns an error message if it fails. After each test, all memory that it used must be
//! free again.

#![no_std]
#![no_main]

extern crate alloc;

mod calls;
mod processes;
mod scheduling;

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use os_user::testing::{Outcome, begin, message, report};
use os_user::{ensure, println, sleep_micros, spawn, sys, wait};

os_user::entry!(main);

/// Level of children that are less urgent than the tests.
const LATER: u8 = 40;

macro_rules! tests {
    ($($module:ident :: $name:ident),* $(,)?) => {
        const TESTS: &[(&str, fn() -> Outcome)] = &[$((stringify!($name), $module::$name)),*];
    };
}

tests! {
    processes::exit_status_reaches_the_parent,
    calls::pipe_carries_bytes,
    calls::bytes_are_copied_at_any_offset,
    calls::pipe_ends_with_its_last_writer,
    calls::pipe_breaks_with_its_last_reader,
    calls::ring_of_processes_passes_a_token,
    scheduling::sleep_is_never_short,
    calls::bad_pointers_are_errors,
    calls::bad_calls_are_errors,
    scheduling::invalid_levels_are_errors,
    processes::faults_end_only_their_process,
    processes::endless_loop_can_be_killed,
    processes::blocked_process_can_be_killed,
    processes::kill_is_for_children_only,
    scheduling::more_urgent_process_runs_first,
    scheduling::urgent_wake_preempts_a_program_at_once,
    scheduling::long_calls_do_not_keep_the_hart,
    scheduling::equal_levels_share_the_hart,
    scheduling::floating_point_survives_preemption,
    processes::orphans_leave_nothing_behind,
    processes::memory_is_limited,
    processes::processes_are_limited,
    calls::descriptors_are_limited,
    processes::coroutine_tests_pass,
    processes::exit_with_calls_pending_leaves_nothing_behind,
    scheduling::process_is_as_urgent_as_its_coroutines,
    calls::ring_of_coroutines_passes_a_byte,
    processes::thread_tests_pass,
    processes::vcpu_tests_pass,
    processes::lending_tests_pass,
    processes::socket_tests_pass,
    processes::fork_tests_pass,
    processes::failed_test_leaves_nothing_behind,
    processes::share_tests_pass,
    processes::hostile_programs_harm_no_other_process,
    processes::last_thread_ends_the_process,
    processes::stack_overflow_in_a_thread_ends_the_process,
    processes::process_with_many_threads_can_be_killed,
}

fn main() -> isize {
    // Allocates the heap's tables.
    core::hint::black_box(Vec::<u8>::with_capacity(4096));
    if os_user::argument() == b"failing" {
        return processes::failing_tests();
    }
    begin();
    let mut failed = 0;
    for (name, test) in TESTS {
        let before = free_pages();
        let mut outcome = test();
        let released = pages_are_freed(before);
        // Wait for the memory even if the test has failed, so that the next test starts with all of
        // it.
        if outcome.is_ok() {
            outcome = released;
        }
        failed += usize::from(!report(name, outcome));
    }
    println!("tests: {} passed, {failed} failed", TESTS.len() - failed);
    isize::from(failed != 0)
}

/// Returns whether the machine has only one hart, so that the order is deterministic.
fn is_single() -> bool {
    os_user::argument() == b"single" || is_exact()
}

/// Returns whether the machine counts instructions as time, so that times are deterministic.
fn is_exact() -> bool {
    os_user::argument() == b"exact"
}

/// Returns the number of free pages, plus the pages in the heap of this program.
fn free_pages() -> isize {
    sys::free_pages().unwrap_or(0) + os_user::heap_pages() as isize
}

/// Waits until as many pages are free as before. The kernel frees an ended process only after its
/// hart has switched away from it, and the host may stop the hart's thread for seconds.
fn pages_are_freed(before: isize) -> Outcome {
    for _ in 0..1000 {
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

/// Runs the program `child` with an argument; returns its exit status.
fn run(argument: &str, files: &[usize], level: u8) -> Result<isize, String> {
    let child = spawn("child", argument.as_bytes(), files, level).map_err(message)?;
    wait(child).map_err(message)
}

fn close(file: usize) -> Outcome {
    sys::close(file).map(|_| ()).map_err(message)
}
