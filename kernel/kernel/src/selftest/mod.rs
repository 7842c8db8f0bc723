//! Tests that run inside the kernel, in a kernel coroutine.
//!
//! A test is an `async fn` that returns an error message if it fails. The runner checks the last
//! line and the exit status; a time-out ends a test that hangs.

mod devices;
mod die;
mod executor;
mod figures;
mod memory;
mod raises;
mod time;

use alloc::boxed::Box;
use alloc::string::String;
use core::future::Future;
use core::pin::Pin;

pub(crate) use time::is_icount;
use upshift_core::{Level, Priority};

use crate::arch::finisher;
use crate::net::selftest as network;
use crate::{executor as kernel, println};

/// Result of a test.
pub(crate) type Outcome = Result<(), String>;
type Test = fn() -> Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// Level of the coroutine that runs the tests.
const LEVEL: Level = Level::at::<30>();

/// Fails the test unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($arg:tt)+) => {
        if !$condition {
            return Err(alloc::format!($($arg)+));
        }
    };
}

macro_rules! tests {
    ($($(#[$attribute:meta])* $module:ident :: $name:ident),* $(,)?) => {
        const TESTS: &[(&str, Test)] = &[
            $($(#[$attribute])* (stringify!($name), || Box::pin($module::$name()))),*
        ];
    };
}

tests! {
    memory::frames_come_back,
    memory::blocks_split_and_merge,
    memory::heap_serves_every_size,
    memory::pages_of_the_heap_come_back,
    memory::heap_answers_null_when_memory_is_out,
    #[cfg(feature = "isolated")]
    memory::programs_see_two_pages_of_the_kernel,
    #[cfg(feature = "isolated")]
    memory::address_space_ids_are_distinct_and_come_back,
    executor::more_urgent_runs_first,
    executor::levels_are_fifo,
    executor::reprio_moves_a_queued_coroutine,
    executor::waking_an_ended_coroutine_is_an_error,
    executor::burst_of_wakes_from_all_harts_loses_none,
    executor::idle_harts_take_work,
    raises::raise_reaches_a_thread_on_its_way_to_the_queue,
    raises::completion_reaches_a_thread_that_leaves_its_hart,
    raises::completion_reaches_a_thread_that_drains,
    raises::child_killed_during_spawn_leaves_nothing,
    time::sleepers_wake_in_order_of_deadline,
    time::dropped_sleep_leaves_nothing_behind,
    time::timer_is_exact_under_icount,
    time::idle_hart_waits_for_interrupts,
    devices::interrupts_come_to_the_hart_they_are_routed_to,
    devices::memory_of_devices_comes_back,
    devices::card_sends_and_receives,
    network::more_urgent_socket_sends_first,
    network::idle_sockets_cost_nothing,
    network::card_interrupts_only_when_needed,
    network::polled_card_interrupts_less,
    network::bytes_written_together_are_sent_together,
    network::answers_acknowledge_requests,
    network::acknowledgements_wake_no_reader,
    network::small_reads_make_room,
    network::checksums_are_right,
    network::garbage_harms_nothing,
    network::spoofed_frames_are_recognized,
    network::frames_that_are_too_long_are_dropped,
    network::segments_out_of_order_are_put_in_order,
    network::syn_flood_keeps_no_client_out,
    network::resets_leave_nothing_behind,
    network::window_that_stays_closed_ends_the_writer,
    network::window_that_stays_closed_keeps_nothing,
    network::slow_reader_is_not_gone,
    network::alarm_that_found_no_memory_is_set_later,
}

/// Starts the tests, `times` times; the machine ends after the last test. With `icount` the machine
/// counts instructions as time. `selection` is the name of a fault, a measurement, or a part of the
/// names of the tests to run.
pub(crate) fn start(selection: &'static str, times: usize, icount: bool) {
    die::cause(selection);
    if selection == "figures" {
        figures::start();
        return;
    }
    time::set_icount(icount);
    // A bare `selftest` selects all tests.
    let part = match selection {
        "selftest" => "",
        part => part,
    };
    kernel::spawn(run(part, times), Priority::At(LEVEL))
        .expect("memory for the tests")
        .detach();
}

async fn run(part: &'static str, times: usize) {
    let (mut passed, mut failed) = (0, 0);
    for n in 0..times * TESTS.len() {
        let (name, test) = TESTS[n % TESTS.len()];
        if !name.contains(part) {
            continue;
        }
        match test().await {
            Ok(()) => {
                passed += 1;
                println!("test {name} ... ok");
            }
            Err(reason) => {
                failed += 1;
                println!("test {name} ... FAILED: {reason}");
            }
        }
    }
    println!("selftest: {passed} passed, {failed} failed");
    finisher::exit(u16::from(failed != 0));
}
