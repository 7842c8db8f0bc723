//! Tests of raises: an event for a program makes one of the program's threads as urgent as the
//! event, whatever the state of the thread.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use os_abi::shared::{DRAINING, ENTRY_WORDS};
use os_abi::thread::CRITICAL;
use upshift_core::Level;

use super::Outcome;
use super::executor::with_other_harts_busy;
use crate::arch::{csr, hart_index};
use crate::process::{self, Process, Spawn};
use crate::run_queue::{self, Next};
use crate::{ensure, hart};

/// Returns the parameters of a process with a thread of level 40, and the ceiling 20.
fn child_of(parent: usize) -> Result<Spawn<'static>, String> {
    let level = |level| Level::new(level).unwrap_or(Level::DEFAULT);
    Ok(Spawn {
        name: "child",
        program: crate::archive::find("child").ok_or("there is no such program")?,
        argument: b"endless",
        files: Vec::new(),
        level: level(40),
        ceiling: level(20),
        parent,
        share: process::share::machine(),
        halvings: 1,
    })
}

/// Creates a process with these parameters. Its thread stays in the queue, because all harts are
/// busy.
fn program_that_waits() -> Result<Arc<Process>, String> {
    process::spawn(child_of(0)?).map_err(|error| format!("{error}"))
}

/// A child that is killed while its parent ends, before either sees the end of the other, frees its
/// queue slot.
pub(super) async fn child_killed_during_spawn_leaves_nothing() -> Outcome {
    let before = process::count();
    let parent = process::spawn(child_of(0)?).map_err(|error| format!("{error}"))?;
    let number = parent.number();
    parent.end(0, Level::at::<30>());
    process::spawn_and_end(child_of(number)?).map_err(|error| format!("{error}"))?;
    let count = process::count();
    ensure!(count == before, "{before} processes before, {count} after");
    Ok(())
}

/// Completes a call of level 10. The ceiling of the process limits its threads to level 20.
fn complete(process: &Process) -> Outcome {
    let reserved = process.reserve_completion();
    reserved.map_err(|error| format!("{error}"))?;
    process.complete([0; ENTRY_WORDS], Level::at::<10>());
    Ok(())
}

/// Returns the most urgent level that has a ready thread.
fn ready_level() -> u32 {
    run_queue::ready_levels().trailing_zeros()
}

/// A thread that is about to leave its hart for more urgent work counts as running, so a completion
/// at this moment raises the thread in the queue.
pub(super) async fn completion_reaches_a_thread_that_leaves_its_hart() -> Outcome {
    with_other_harts_busy(async {
        let process = program_that_waits()?;
        let interrupts = csr::interrupts_off();
        let index = hart_index();
        // An earlier test may have raised the hart's switching coroutine, which then yields once.
        let thread = [(); 2]
            .into_iter()
            .find_map(|()| match run_queue::take(index) {
                Next::Run(thread) => Some(thread),
                _ => None,
            });
        let is_running = thread.is_some();
        hart::set_in_user(index);
        let completed = complete(&process);
        hart::clear_in_user(index);
        run_queue::clear_running(index);
        thread.into_iter().for_each(run_queue::push_front);
        let ready = ready_level();
        process.end(0, Level::at::<30>());
        csr::interrupts_restore(interrupts);
        ensure!(is_running, "the thread is not in the queue");
        completed?;
        ensure!(ready == 20, "the thread has level {ready} instead of 20");
        Ok(())
    })
    .await
}

/// A thread that was preempted while it drained the ring becomes as urgent as a new completion; so
/// does a thread that was unparked to drain the ring.
pub(super) async fn completion_reaches_a_thread_that_drains() -> Outcome {
    with_other_harts_busy(async {
        for critical in [0, 1] {
            let process = program_that_waits()?;
            let space = process.space().map_err(|error| format!("{error}"))?;
            space.set_line(0, CRITICAL, critical);
            ensure!(
                space.shared().claim(DRAINING),
                "a thread is already draining"
            );
            complete(&process)?;
            let ready = ready_level();
            process.end(0, Level::at::<30>());
            ensure!(
                ready == 20,
                "critical: {critical}: the thread has level {ready} instead of 20"
            );
        }
        Ok(())
    })
    .await
}

/// A completion raises a thread that is neither in the queue nor on a hart, but between the two.
/// The thread must enter the queue at the level of the completion.
pub(super) async fn raise_reaches_a_thread_on_its_way_to_the_queue() -> Outcome {
    with_other_harts_busy(async {
        let level = |level| Level::new(level).unwrap_or(Level::DEFAULT);
        let process = program_that_waits()?;
        for (raised, expected) in [(35, 35), (50, 35), (10, 20)] {
            let thread = process
                .take_ready()
                .ok_or("the thread is not in the queue")?;
            process.raise(level(raised));
            run_queue::push_front(thread);
            let ready = ready_level();
            ensure!(
                ready == expected,
                "raised to {raised}, the thread has level {ready} instead of {expected}"
            );
        }
        process.end(0, level(30));
        Ok(())
    })
    .await
}
